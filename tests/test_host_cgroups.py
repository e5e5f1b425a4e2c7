"""Where processes belong, from cgroup files as kernels and runtimes write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard.host.cgroups import Place, parse_place, read_place

ID = "3f1c9a2e77d0" + "5b" * 26
SHORT = "3f1c9a2e77d0"
POD = "0f7c2ab1-9d3e-4c55-8a21-6b1e2f3a4d5c"
ESCAPED_POD = POD.replace("-", "_")
IN_POD = f"kubernetes pod {POD} {SHORT}"


def hybrid(named: str, *controllers: str) -> str:
    """The file of a host with both versions: systemd's own tree, controllers, an empty v2."""
    return "".join(f"{9 - at}:{line}\n" for at, line in enumerate([*controllers, f"name=systemd:{named}"])) + "0::/\n"


@pytest.mark.parametrize(
    ("text", "container", "unit"),
    [
        pytest.param("0::/\n", None, None, id="a private namespace"),
        pytest.param("", None, None, id="an empty file"),
        pytest.param("0::/init.scope\n", None, "init.scope", id="the host's init"),
        pytest.param("0::/system.slice/vllm@qwen.service\n", None, "vllm@qwen.service", id="a service"),
        pytest.param("0::/system.slice/system-vllm.slice/vllm@qwen.service/engine\n", None, "vllm@qwen.service", id="a service with a group of its own"),
        pytest.param("0::/user.slice/user-1000.slice/session-3.scope\n", None, "session-3.scope", id="a login"),
        pytest.param("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service\n", None, "vllm.service", id="a user's service"),
        pytest.param("0::/user.slice/user-1000.slice\n", None, None, id="a user's slice"),
        pytest.param("0::/user.slice/user-1000.slice/user@1000.service\n", None, "user@1000.service", id="a user's manager"),
        pytest.param("0::/../../system.slice/x.service\n", None, "x.service", id="a service outside the namespace"),
        pytest.param("0::/system.slice/gone.service (deleted)\n", None, "gone.service", id="a service whose group is gone"),
        pytest.param("0::/system.slice/a\x1b[2J.service\n", None, None, id="a name that no unit has"),
        pytest.param("0::/" + "a" * 5000 + ".service\n", None, None, id="a name of 5000 letters"),
        pytest.param(f"0::/system.slice/docker-{ID}.scope\n", f"docker {SHORT}", None, id="docker"),
        pytest.param(hybrid(f"/docker/{ID}", f"memory:/docker/{ID}"), f"docker {SHORT}", None, id="docker on v1"),
        pytest.param(hybrid("/system.slice/docker.service", f"memory:/docker/{ID}"), f"docker {SHORT}", None, id="docker, systemd's tree behind"),
        pytest.param(f"0::/user.slice/user-7.slice/user@7.service/user.slice/docker-{ID}.scope\n", f"docker {SHORT}", None, id="docker without root"),
        pytest.param(f"0::/machine.slice/libpod-{ID}.scope/container\n", f"podman {SHORT}", None, id="podman"),
        pytest.param(f"0::/libpod_parent/libpod-{ID}\n", f"podman {SHORT}", None, id="podman without systemd"),
        pytest.param(f"0::/system.slice/vllm.service/libpod-payload-{ID}\n", f"podman {SHORT}", "vllm.service", id="podman in a service"),
        pytest.param(f"0::/machine.slice/libpod-conmon-{ID}.scope\n", None, f"libpod-conmon-{ID}.scope", id="podman's own monitor"),
        pytest.param(f"0::/system.slice/nerdctl-{ID}.scope\n", f"containerd {SHORT}", None, id="containerd"),
        pytest.param(f"0::/system.slice/cri-containerd-{ID}.scope\n", f"containerd {SHORT}", None, id="containerd without a pod"),
        pytest.param(f"0::/system.slice/crio-{ID}.scope\n", f"cri-o {SHORT}", None, id="cri-o"),
        pytest.param(f"0::/ecs/task/{ID}\n", f"container {SHORT}", None, id="a runtime without a name"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED_POD}.slice/cri-containerd-{ID}.scope\n", IN_POD, None, id="a pod"
        ),
        pytest.param(f"0::/kubepods.slice/kubepods-pod{ESCAPED_POD}.slice/crio-{ID}.scope\n", IN_POD, None, id="a guaranteed pod of cri-o"),
        pytest.param(hybrid(f"/kubepods/besteffort/pod{POD}/{ID}"), IN_POD, None, id="a pod on v1"),
        pytest.param(hybrid(f"/kubepods/pod{POD}/{ID}"), IN_POD, None, id="a guaranteed pod on v1"),
        pytest.param(
            hybrid(f"/system.slice/containerd.service/kubepods-besteffort-pod{ESCAPED_POD}.slice:cri-containerd:{ID}"), IN_POD, None, id="a pod with colons"
        ),
        pytest.param(f"0::/kubepods.slice/kubepods-pod{'a1' * 16}.slice/cri-containerd-{ID}.scope\n", f"kubernetes pod {'a1' * 16} {SHORT}", None, id="static"),
        pytest.param(f"0::/kubepods.slice/kubepods-pod{ESCAPED_POD}.slice\n", f"kubernetes pod {POD}", None, id="a pod without a container"),
        pytest.param("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n", None, "slurm job 123", id="a job on v2"),
        pytest.param("0::/system.slice/node7_slurmstepd.scope/job_123/step_batch\n", None, "slurm job 123", id="a job of one of several daemons"),
        pytest.param(hybrid("/system.slice/slurmd.service", "devices:/slurm/uid_1000/job_123/step_0"), None, "slurm job 123", id="a job on v1"),
        pytest.param("0::/user.slice/job_7\n", None, None, id="somebody's own group"),
        pytest.param(hybrid("/system.slice/a.service", "memory:/system.slice"), None, "a.service", id="a service on v1"),
        pytest.param("no colons\n1:x\n::::\n", None, None, id="no cgroup file at all"),
    ],
)
def test_a_place_is_named_as_people_name_it(text: str, container: str | None, unit: str | None) -> None:
    """Containers by runtime and short ID, pods by UID, units by name, jobs by number."""
    assert Place(container, unit) == parse_place(text)


@given(st.text() | st.lists(st.sampled_from(["0::", "/", "kubepods", "pod", POD, ID, "docker-", ".scope", "\n", "job_1", "slurm", ":"])).map("".join))
def test_any_text_gives_short_printable_names(text: str) -> None:
    """Users name their own groups."""
    assert all(name is None or (name.isprintable() and len(name) <= 120) for name in parse_place(text))


def test_a_process_that_is_gone_is_nowhere(tmp_path: Path) -> None:
    """It vanished between listing and reading, or is hidden."""
    assert Place() == read_place(2**22 + 7) == read_place(1, tmp_path)


def test_a_place_is_read_from_proc(tmp_path: Path) -> None:
    """The file of that pid."""
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text("0::/system.slice/vllm.service\n")

    assert Place(unit="vllm.service") == read_place(7, tmp_path)
    assert parse_place(Path("/proc/self/cgroup").read_text()) == read_place(os.getpid())
