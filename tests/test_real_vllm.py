"""The promise with the real vLLM 0.32.0 for CPUs: the start-up gates of the GPU build, on host memory. Needs root or user namespaces."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from real.fake_memory import in_fake_memory, write_meminfo
from real.server import Server, free_port, started
from real.tiny_model import write_tiny_model

pytestmark = pytest.mark.slow

GUARD = Path(sys.executable).with_name("vllm-guard")
REFUSED_BY_VLLM = "on startup is less than desired CPU memory utilization"
LAUNCH = re.compile(r"^vllm-guard: launch: --gpu-memory-utilization (?P<asked>0\.\d+) to (?P<chosen>0\.\d+) \(", re.MULTILINE)
METRIC = re.compile(r'^vllm:cache_config_info\{.*\bgpu_memory_utilization="([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class World:
    """A node of 8 GiB with 6 GiB free, a model, a place for caches: vLLM's default of 0.92 wants 7.36 GiB."""

    vllm: Path
    model: Path
    meminfo: Path
    log: Path
    environment: dict[str, str]

    def vllm_serve(self, *options: str) -> AbstractContextManager[Server]:
        """Plain `vllm serve`."""
        return self._started([str(self.vllm), *self._serve(), *options])

    def guard_serve(self, *options: str) -> AbstractContextManager[Server]:
        """The same command with the guard in front."""
        return self._started([str(GUARD), *self._serve(), f"--guard-vllm={self.vllm}", *options])

    def guard_check(self, *options: str) -> dict[str, object]:
        """The document of `vllm-guard check` for the same command."""
        command = [str(GUARD), "check", *self._serve()[1:], f"--guard-vllm={self.vllm}", "--guard-json", *options]
        done = subprocess.run(in_fake_memory(self.meminfo, command), check=False, capture_output=True, text=True, env=self.environment, timeout=60)
        assert done.stdout, done.stderr
        document: dict[str, object] = json.loads(done.stdout)
        return document

    def _serve(self) -> list[str]:
        return ["serve", str(self.model), "--max-model-len", "256", "--enforce-eager", "--host", "127.0.0.1"]

    def _started(self, command: list[str]) -> AbstractContextManager[Server]:
        port = free_port()
        command = in_fake_memory(self.meminfo, [*command, "--port", str(port)])
        return started(command, port=port, environment=self.environment, log=self.log)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 0.7 MB."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def vllm_home() -> Iterator[Path]:
    """A home for vLLM's caches. Its path is short: vLLM puts sockets into TMPDIR, and their names end at 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="vg-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def world(vllm_python: Path, tiny_model: Path, vllm_home: Path, tmp_path: Path) -> World:
    """The world of these tests, the same at every reading."""
    if not GUARD.is_file():
        pytest.fail(f"{GUARD} is missing: install the package into this venv", pytrace=False)
    meminfo = tmp_path / "meminfo"
    write_meminfo(meminfo, total_mib=8192, free_mib=6144)
    entered = subprocess.run(in_fake_memory(meminfo, ["true"]), check=False, capture_output=True, text=True)
    if entered.returncode:
        pytest.fail(f"vLLM gets a NUMA node of its own here, by unshare(1) as root or with user namespaces: {entered.stderr}", pytrace=False)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(vllm_home),
        "TMPDIR": str(vllm_home),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return World(vllm_python.with_name("vllm"), tiny_model, meminfo, tmp_path / "log", environment)


def assert_serves(server: Server, model: Path, chosen: str) -> None:
    """The server is ready, answers a completion, and vLLM itself reports the fraction that the guard printed."""
    body = {"model": str(model), "prompt": "hello", "max_tokens": 4, "ignore_eos": True}
    status, answer = server.request("POST", "/v1/completions", body)
    assert status == 200, answer
    assert json.loads(answer)["usage"]["completion_tokens"] == 4

    metric = METRIC.search(server.request("GET", "/metrics")[1])
    assert metric is not None
    assert float(chosen) == float(metric[1])


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
