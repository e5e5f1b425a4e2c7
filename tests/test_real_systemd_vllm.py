"""The shipped unit with the real vLLM for CPUs and a tiny model: it answers, is started again when killed, stops, and explains a failed start."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from booted_units import Machine, Unit, booted_machine, instance, texts
from other_worlds import wait_for
from real.fake_memory import NODE_MEMINFO, write_meminfo
from real.world import LAUNCH, REFUSED_BY_VLLM

pytestmark = pytest.mark.slow

_READY_SECONDS: Final = 240  # 25 s on two quiet cores
_MODEL: Final = "/srv/models/tiny"


@pytest.fixture(name="machine", scope="module")
def _machine(vllm_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with the real vLLM, a model, and a node of 8 GiB with 6 GiB free for units that mount it."""
    where = subprocess.run([vllm_python, "-c", "import sys; print(sys.base_prefix)"], check=True, capture_output=True, text=True).stdout.strip()
    meminfo = tmp_path_factory.mktemp("node") / "meminfo"
    write_meminfo(meminfo, total_mib=8192, free_mib=6144)
    with booted_machine(vllm_python.parent.parent.resolve(), Path(where)) as machine:
        machine.shell(texts("Install")[0])
        machine.copy(tiny_model, _MODEL)
        machine.copy(meminfo.parent, "/opt/node")
        yield machine


def of_vllm(machine: Machine, vllm_python: Path, name: str, **environ: str) -> Unit:
    """An instance with the tiny model."""
    settings = {"MODEL": _MODEL, "VLLM_GUARD_VLLM": str(vllm_python.parent.resolve() / "vllm"), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **environ}
    short = {"RestartSec": "1", "BindReadOnlyPaths": f"/opt/node/meminfo:{NODE_MEMINFO}"}
    unit = instance(machine, name, args="--max-model-len 256 --enforce-eager --host 127.0.0.1", environ=settings, short=short)
    machine.run("systemctl", "start", unit.name)
    return unit


def titles(unit: Unit) -> dict[int, str]:
    """The processes of a unit and what they call themselves."""
    listed = unit.machine.run("ps", "-o", "pid=,args=", "-p", ",".join(map(str, unit.processes)))
    return {int(line.split()[0]): line.split(maxsplit=1)[1] for line in listed.splitlines()}


def served(unit: Unit) -> dict[int, str]:
    """Its processes, once it has answered a completion."""
    wait_for(lambda: unit.request("/health") is not None, _READY_SECONDS)
    answer = unit.request("/v1/completions", {"model": _MODEL, "prompt": "hello", "max_tokens": 4, "ignore_eos": True})
    assert answer is not None
    assert 4 == json.loads(answer)["usage"]["completion_tokens"]
    return titles(unit)


def test_the_real_vllm_is_started_again_and_leaves_nothing_behind(machine: Machine, vllm_python: Path) -> None:
    """After SIGKILL of the engine it exits with 0, after that of the server the engine stays: either way the next one is alone, and a stop is clean."""
    unit = of_vllm(machine, vllm_python, "tiny")
    first = served(unit)
    launch = LAUNCH.search(unit.journal)
    assert launch is not None
    assert ("0.92", "0.375") == (launch["asked"], launch["chosen"])

    (engine,) = [pid for pid, title in first.items() if "EngineCore" in title]
    machine.run("kill", "-KILL", str(engine))
    wait_for(lambda: unit.show("NRestarts") == "1", 60)
    second = served(unit)
    assert "Deactivated successfully" in unit.journal

    server = unit.show("MainPID")
    machine.run("kill", "-KILL", server)
    wait_for(lambda: unit.show("NRestarts") == "2", 60)
    third = served(unit)
    assert set() == (first.keys() | second.keys()) & third.keys()
    assert sorted(first.values()) == sorted(third.values())

    machine.run("systemctl", "stop", unit.name)
    assert ("inactive", "success", set()) == (unit.state["ActiveState"], unit.state["Result"], unit.processes)
    assert "" == machine.run("ls", "/dev/shm")  # noqa: S108 - what the unit has as its own is not here


def test_a_start_of_the_real_vllm_that_fails_is_explained(machine: Machine, vllm_python: Path) -> None:
    """Which the guard would have avoided: it is off."""
    unit = of_vllm(machine, vllm_python, "unlucky", VLLM_GUARD_MODE="off")
    wait_for(lambda: "vllm-guard: explain: " in unit.journal, _READY_SECONDS)
    machine.run("systemctl", "stop", unit.name)

    assert REFUSED_BY_VLLM in unit.journal
    assert "vllm-guard: explain: not enough memory was free when vLLM started (gate_free_memory, certain)" in unit.journal
