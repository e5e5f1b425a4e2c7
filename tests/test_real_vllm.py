"""The promise with the real vLLM 0.32.0 for CPUs: the start-up gates of the GPU build, on host memory. Needs root or user namespaces."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import psutil
import pytest
from real.fake_memory import write_meminfo
from real.world import LAUNCH, REFUSED_BY_VLLM, World, assert_serves

from vllm_guard.units import MIB

pytestmark = pytest.mark.slow


def test_plain_vllm_refuses_and_the_guarded_command_serves(world: World) -> None:
    """Where plain `vllm serve` dies at its free-memory gate, `vllm-guard serve` becomes a vLLM that answers and ends cleanly."""
    with world.vllm_serve() as plain:
        assert plain.wait_until_ended() == 1
        assert f"Available memory on node 0 (6.0/8.0 GiB) {REFUSED_BY_VLLM} (0.92, 7.36 GiB)" in plain.text()

    with world.guard_serve() as server:
        server.wait_until_ready()
        launch = LAUNCH.search(server.text())
        assert launch is not None, server.text()
        assert launch["asked"] == "0.92"
        assert_serves(server, world.model, launch["chosen"])
        assert str(world.vllm) == psutil.Process(server.process.pid).cmdline()[1]
        assert server.listening_pids() == {server.process.pid}
        assert server.terminate() == 0
        assert server.remaining() == []


def test_an_explicit_value_that_cannot_start_is_lowered(world: World) -> None:
    """An explicit 0.99 that vLLM would certainly refuse is lowered, said on the launch line, and serves."""
    with world.guard_serve("--gpu-memory-utilization", "0.99") as server:
        server.wait_until_ready()
        launch = LAUNCH.search(server.text())
        assert launch is not None, server.text()
        assert launch["asked"] == "0.99"
        assert_serves(server, world.model, launch["chosen"])
        assert server.terminate() == 0
        assert server.remaining() == []


@pytest.mark.parametrize(
    ("gpu_memory_utilization", "outcome", "vllm_says"),
    [
        pytest.param("0.75", "pass", "GiB for KV cache on node 0", id="exactly the free memory passes"),
        pytest.param("0.7501", "fail", REFUSED_BY_VLLM, id="a ten-thousandth more fails"),
    ],
)
def test_check_judges_the_first_gate_as_vllm_does(world: World, gpu_memory_utilization: str, outcome: str, vllm_says: str) -> None:
    """The guard's outcome of the free-memory gate is vLLM's own, on both sides of the boundary.

    In this world nothing that vLLM allocates lowers the node's free memory, so the overhead before the measurement is 0.
    """
    given = ("--gpu-memory-utilization", gpu_memory_utilization)
    document = world.guard_check(*given, "--guard-start-overhead=0", "--guard-margin=0", "--guard-on-explicit=keep")
    gates = document["gates"]
    assert isinstance(gates, list)
    assert [outcome] == [gate["outcome"] for gate in gates if gate["gate"] == "free_memory"]

    with world.vllm_serve(*given) as server:
        assert vllm_says == server.wait_until_printed("GiB for KV cache on node 0", REFUSED_BY_VLLM)


def test_an_orphaned_engine_is_named_and_its_end_told(world: World) -> None:
    """SIGKILL of the API server leaves its engine with the memory; the command that the guard gives ends it, and the next start serves."""
    with world.vllm_serve("--gpu-memory-utilization", "0.4") as plain:
        plain.wait_until_ready()
        serving = world.guard_check()
        plain.process.kill()
        plain.process.wait()
        write_meminfo(world.meminfo, total_mib=8192, free_mib=1536)
        refused = world.guard_check()
        orphans = [process for process in holders(refused) if process["orphan"]]
        (command,) = {process["end_command"] for process in orphans}

        assert {f"pid {plain.process.pid} vllm serve {world.model}"} == {process["server"] for process in holders(serving) if process["server"]}
        assert "refuse" == refused["verdict"]
        assert all(process["vllm"] and process["server"] is None for process in orphans)
        assert any(re.fullmatch("VLLM::EngineCore.*", process["name"]) and command == f"kill {process['pid']}" for process in orphans)
        assert sum(process["used_bytes"] for process in orphans) > 512 * MIB
        for process in orphans:
            assert process["used_bytes"] == pytest.approx(psutil.Process(process["pid"]).memory_info().rss, rel=0.1)
        freed_mib = sum(process["used_bytes"] for process in orphans) // MIB
        assert isinstance(refused["fixes"], list)
        assert f"end the orphaned engine: {command} (frees {freed_mib} MiB)" == refused["fixes"][0]
        assert f"orphaned vLLM engine, ended by: {command}" in world.guard_gpus()
        with world.guard_serve("--guard-log-format=console") as server:
            assert server.wait_until_ended() == 75
            assert f"fix: end the orphaned engine: {command} (frees" in server.text()

        ending = [psutil.Process(process["pid"]) for process in orphans]
        subprocess.run(["sh", "-c", command], check=True)
        assert psutil.wait_procs(ending, timeout=30)[1] == []  # 4 s on two quiet cores
        assert plain.remaining() == []
    write_meminfo(world.meminfo, total_mib=8192, free_mib=6144)
    with world.guard_serve() as server:
        server.wait_until_ready()
        assert server.terminate() == 0


def holders(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Who holds memory of the one device."""
    (device,) = document["devices"]
    processes: list[dict[str, Any]] = device["processes"]
    return processes
