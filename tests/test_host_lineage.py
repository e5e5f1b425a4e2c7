"""Lines of parents: whose engine it is, when it is an orphan, and when its end may be told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_guard.host.lineage import Family, Kin, ReadKin, find_family, read_kin

ENGINE, WORKER = ("VLLM::EngineCore",), ("VLLM::Worker_TP1",)
SERVER = ("/v/python", "/v/vllm", "serve", "Qwen/Qwen3-8B", "--api-key", "sesame")


def line(*argvs: Sequence[str], first_pid: int = 1) -> list[Kin]:
    """Processes from the topmost down, one the parent of the next; the name is the last part of the first word."""
    kins, parent = [], 0
    for pid, argv in enumerate(argvs, start=first_pid):
        kins.append(Kin(pid, parent, argv[0].rpartition("/")[2][:15], tuple(argv), 100 + pid))
        parent = pid
    return kins


def reader(kins: Sequence[Kin]) -> ReadKin:
    """What can be seen of these."""
    return {kin.pid: kin for kin in kins}.get


def family(kins: Sequence[Kin], *, later: Sequence[Kin] | None = None, initial: bool = True) -> Family:
    """The family of the last of them; `later` is the second look."""
    return find_family(kins[-1], reader(kins), reader(kins if later is None else later), initial=initial)


@pytest.mark.parametrize(
    ("kins", "expected"),
    [
        pytest.param(line(["init"], SERVER, ENGINE), Family("pid 2 vllm serve Qwen/Qwen3-8B"), id="an engine of a server"),
        pytest.param(line(["init"], SERVER, ENGINE, WORKER), Family("pid 2 vllm serve Qwen/Qwen3-8B"), id="a worker of a server"),
        pytest.param(line(["init"], SERVER, ["VLLM::APIServer_0"], ENGINE), Family("pid 2 vllm serve Qwen/Qwen3-8B"), id="a server of several processes"),
        pytest.param(line(["init"], ["VLLM::APIServer_0"], ENGINE), Family("pid 2 VLLM::APIServer_0"), id="only a title is left of the server"),
        pytest.param(line(["init"], SERVER, ["python", "-c", "forkserver"], ENGINE), Family("pid 2 vllm serve Qwen/Qwen3-8B"), id="behind a fork server"),
        pytest.param(line(["init"], ["python", "batch.py"], ENGINE), Family(), id="a script that uses vllm.LLM"),
        pytest.param(line(["init"], ["raylet"], ENGINE), Family(), id="Ray"),
        pytest.param(line(["init"], ENGINE), Family(orphan=True, end_command="kill 2"), id="an orphan"),
        pytest.param(line(["init"], ENGINE, WORKER), Family(orphan=True, end_command="kill 2"), id="a worker goes with its orphaned engine"),
        pytest.param(line(["init"], WORKER), Family(orphan=True, end_command="kill 2"), id="a worker without an engine"),
        pytest.param(line(["init"], ["/lib/systemd/systemd", "--user"], ENGINE), Family(orphan=True, end_command="kill 3"), id="inherited by a user's systemd"),
        pytest.param(line(["/pid1"], ENGINE), Family(orphan=True, end_command="kill 2"), id="the host's pid 1, whatever it is called"),
        pytest.param(line(["lost"], ENGINE, first_pid=50), Family(), id="the parent is no init"),
        pytest.param(line(ENGINE, first_pid=50), Family(), id="the parent cannot be seen"),
        pytest.param(line(["init"], *[ENGINE] * 30), Family(), id="a line without end"),
    ],
)
def test_an_engine_has_a_server_or_an_end(kins: list[Kin], expected: Family) -> None:
    """An orphan is an engine that an init or subreaper had to inherit; the command ends the topmost engine, and all below it go too."""
    assert expected == family(kins)


ORPHAN = line(["init"], ENGINE, WORKER)
INIT, TOP, LAST = ORPHAN


@pytest.mark.parametrize(
    "later",
    [
        pytest.param([INIT, replace(TOP, started_ticks=9), LAST], id="another process has its pid"),
        pytest.param([INIT, replace(TOP, argv=("python",)), LAST], id="another title"),
        pytest.param([INIT, replace(TOP, parent=7), LAST], id="another parent"),
        pytest.param([replace(INIT, started_ticks=9), TOP, LAST], id="another init"),
        pytest.param([INIT, LAST], id="it has gone"),
        pytest.param([INIT, TOP], id="the worker has gone"),
    ],
)
def test_nobody_is_ended_who_changed_between_two_looks(later: list[Kin]) -> None:
    """Pid, title, start and parent are verified just now, or there is no command."""
    assert Family(orphan=True) == family(ORPHAN, later=later)


def test_nobody_is_ended_whose_title_cannot_be_read() -> None:
    """One that has ended, or hides its command line, shows the kernel's name only."""
    assert Family(orphan=True) == family([INIT, replace(TOP, argv=())])


def test_in_a_container_no_command_is_given() -> None:
    """Its pid 1 may be the script that started the engine, and pids are not the host's."""
    assert Family() == family(line(["python"], ENGINE), initial=False)
    assert Family(orphan=True) == family(line(["tini"], ENGINE), initial=False)


def test_a_process_is_read_as_the_kernel_shows_it() -> None:
    """Parent, name, words and start."""
    me = read_kin(os.getpid())
    assert me is not None
    assert (os.getppid(), "".join(Path("/proc/self/comm").read_text().splitlines())) == (me.parent, me.name)
    assert me.argv
    assert me == read_kin(os.getpid())


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        pytest.param("7 (a b) S 3" + " 0" * 17 + " 42 0 0\n", Kin(7, 3, "a b", ("x", "y"), 42), id="a name with a space"),
        pytest.param("7 (a) S 1) S 3" + " 0" * 17 + " 42 0\n", Kin(7, 3, "a) S 1", ("x", "y"), 42), id="a name that looks like more"),
        pytest.param("7 (a\nb) S 3" + " 0" * 17 + " 42 0\n", Kin(7, 3, "a\nb", ("x", "y"), 42), id="a name of two lines"),
        pytest.param("7 (a) S 3 0", None, id="a line cut short"),
        pytest.param("", None, id="nothing"),
        pytest.param(None, None, id="no such process"),
    ],
)
def test_hostile_names_do_not_move_the_fields(tmp_path: Path, stat: str | None, expected: Kin | None) -> None:
    """A process chooses its name freely."""
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cmdline").write_bytes(b"x\0\0y\0\0\0")
    if stat is not None:
        (tmp_path / "proc/7/stat").write_text(stat)

    assert expected == read_kin(7, tmp_path)
