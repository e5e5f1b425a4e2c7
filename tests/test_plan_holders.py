"""When a list of holders cannot be complete, and how an orphan's memory comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import cpu_facts, facts, gpu, judge, process, refused

from vllm_guard.devices import Device
from vllm_guard.facts import Facts, GpuProcess
from vllm_guard.plan.decision import Launch
from vllm_guard.plan.holders import why_incomplete
from vllm_guard.render.devices import device_lines
from vllm_guard.render.document import decision_document
from vllm_guard.units import MIB

DEVICE = Device("cuda", 0, 0, "GPU-1", "H100", 80_000 * MIB, free_bytes=20_000 * MIB, driver_reserved_bytes=500 * MIB)
EXPLAINED = replace(DEVICE, processes=(process(7, 59_500),))
NAMELESS = replace(DEVICE, processes=(process(7, 59_500, name="unknown"),))
NODE = Device("cpu", 0, None, None, "NUMA node 0", 8192 * MIB, free_bytes=4096 * MIB)
HERE = facts()
CONTAINER = replace(HERE, host=replace(HERE.host, pid_namespace_initial=False))
OLD = "process list unreadable with this driver"


@pytest.mark.parametrize(
    ("world", "device", "says"),
    [
        pytest.param(CONTAINER, DEVICE, "--pid=host", id="another pid namespace"),
        pytest.param(CONTAINER, NAMELESS, "--pid=host", id="a pid of another namespace"),
        pytest.param(facts(wsl=True), DEVICE, "Task Manager", id="WSL2"),
        pytest.param(HERE, replace(DEVICE, uuid="MIG-1"), "MIG", id="a MIG device"),
        pytest.param(HERE, replace(DEVICE, processes_unreadable=OLD), f"{OLD}: update the driver", id="an old driver"),
        pytest.param(HERE, NAMELESS, "pid 7 is hidden from this user (hidepid, ProtectProc): run vllm-guard gpus as root", id="hidepid"),
        pytest.param(
            HERE, replace(DEVICE, processes=tuple(process(pid, 1, name="unknown") for pid in (7, 8))), "2 processes (pid 7 is one) are hidden", id="two"
        ),
        pytest.param(HERE, replace(NODE, processes_unreadable="hidden"), "hidden: run vllm-guard check as root", id="hidden holders of host memory"),
        pytest.param(CONTAINER, NODE, "--pid=host", id="host memory in a container"),
        pytest.param(facts(wsl=True), NODE, None, id="WSL2 tells who holds host memory"),
        pytest.param(HERE, DEVICE, None, id="nothing here hides anybody"),
        pytest.param(CONTAINER, EXPLAINED, None, id="the container itself explains all of it"),
        pytest.param(facts(wsl=True), EXPLAINED, None, id="WSL2, all explained"),
        pytest.param(HERE, replace(DEVICE, processes=(process(7, 59_500, name="unknown", exiting=True),)), None, id="one that has ended"),
        pytest.param(CONTAINER, replace(DEVICE, free_bytes=79_244 * MIB), None, id="256 MiB are explained by nobody"),
        pytest.param(CONTAINER, replace(DEVICE, free_bytes=79_243 * MIB), "--pid=host", id="more than 256 MiB"),
        pytest.param(CONTAINER, replace(DEVICE, free_bytes=79_000 * MIB, driver_reserved_bytes=None), None, id="the driver's own part is unknown"),
    ],
)
def test_it_is_said_who_cannot_be_named(world: Facts, device: Device, says: str | None) -> None:
    """Only where memory is really unexplained, and with what to do about it."""
    why = why_incomplete(world, device)

    assert says in why if says is not None and why is not None else says == why


def test_what_cannot_be_named_is_evidence_and_a_warning() -> None:
    """A line under the device; a code in the document; nothing that a launch would print beside its line."""
    decision = judge(replace(CONTAINER, gpus=(gpu(free_mib=40_000),)))
    assert isinstance(decision, Launch)
    document = decision_document(decision, CONTAINER, executable=None, given={}, masked_argv=(), warnings=(), elapsed_seconds=0)

    assert 1 == sum("--pid=host" in line for line in device_lines(decision.assessment))
    assert ["holders_incomplete"] == [warning["code"] for warning in document["warnings"]]
    assert document["warnings"][0]["message"].startswith("GPU 0: processes outside this container")
    assert "--pid=host" in document["devices"][0]["holders_incomplete"]
    assert () == decision.assessment.warnings


ENGINE = process(50, 900, orphan=True, vllm=True, end_command="kill 50")
WORKER = process(51, 70_000, orphan=True, vllm=True, end_command="kill 50")
OTHER = process(60, 9_000)


@pytest.mark.parametrize(
    ("processes", "fixes"),
    [
        pytest.param([ENGINE, WORKER], ("end the orphaned engine: kill 50 (frees 70900 MiB)",), id="an engine and its worker"),
        pytest.param([OTHER, WORKER], ("end the orphaned engine: kill 50 (frees 70000 MiB)",), id="nobody else need be stopped"),
        pytest.param([OTHER, ENGINE], ("end the orphaned engine: kill 50 (frees 900 MiB)", "stop pid 60 (frees 9000 MiB)"), id="an orphan that is not enough"),
        pytest.param([replace(WORKER, end_command=None)], ("stop pid 51 (frees 70000 MiB)",), id="an orphan that was not verified"),
        pytest.param([replace(WORKER, used_bytes=None)], ("end the orphaned engine: kill 50",), id="an unknown amount"),
    ],
)
def test_the_end_of_an_orphan_is_the_first_fix(processes: list[GpuProcess], fixes: tuple[str, ...]) -> None:
    """With all that goes with it; nobody's work is stopped where that is enough."""
    refusal = refused(judge(facts(gpu(free_mib=300, processes=processes))))

    assert fixes == refusal.assessment.fixes[: len(fixes)]


def test_an_orphan_in_host_memory_is_ended_too() -> None:
    """The CPU build."""
    world = cpu_facts(total_mib=8192, free_mib=1500)
    refusal = refused(judge(replace(world, host=replace(world.host, processes=(ENGINE, OTHER)))))

    assert "end the orphaned engine: kill 50 (frees 900 MiB)" == refusal.assessment.fixes[0]
    assert refusal.assessment.fixes[1].startswith("free ")
    assert any(line.strip().startswith("pid 60") for line in device_lines(refusal.assessment))


def test_a_worker_leaves_the_command_to_its_engine() -> None:
    """Where both are listed it is said once."""
    refusal = refused(judge(facts(gpu(free_mib=300, processes=[ENGINE, WORKER]))))
    alone = refused(judge(facts(gpu(free_mib=300, processes=[WORKER]))))
    lines = [line for line in device_lines(refusal.assessment) if "orphaned" in line]

    assert [False, True] == ["kill 50" in line for line in lines]
    assert any("orphaned vLLM engine, ended by: kill 50" in line for line in device_lines(alone.assessment))
