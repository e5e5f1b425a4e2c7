"""The world of the tests with the real vLLM: a node of 8 GiB, a tiny model, and what may be started there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from real.fake_memory import in_fake_memory, write_meminfo
from real.server import Server, free_port, started
from real.tiny_model import write_tiny_model

GUARD: Final = Path(sys.executable).with_name("vllm-guard")
REFUSED_BY_VLLM: Final = "on startup is less than desired CPU memory utilization"
LAUNCH: Final = re.compile(r"^vllm-guard: launch: --gpu-memory-utilization (?P<asked>0\.\d+) to (?P<chosen>0\.\d+) \(", re.MULTILINE)
METRIC: Final = re.compile(r'^vllm:cache_config_info\{.*\bgpu_memory_utilization="([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class World:
    """A node of 8 GiB with 6 GiB free, a model, a place for caches: vLLM's default of 0.92 wants 7.36 GiB."""

    vllm: Path
    model: Path
    meminfo: Path
    log: Path
    environment: dict[str, str]
    max_model_len: int = 256

    def vllm_serve(self, *options: str) -> AbstractContextManager[Server]:
        """Plain `vllm serve`."""
        return self._started([str(self.vllm), *self._serve(), *options])

    def guard_serve(self, *options: str) -> AbstractContextManager[Server]:
        """The same command with the guard in front."""
        return self._started([str(GUARD), *self._serve(), f"--guard-vllm={self.vllm}", *options])

    def guard_check(self, *options: str) -> dict[str, Any]:
        """The document of `vllm-guard check` for the same command."""
        command = [str(GUARD), "check", *self._serve()[1:], f"--guard-vllm={self.vllm}", "--guard-json", *options]
        done = subprocess.run(in_fake_memory(self.meminfo, command), check=False, capture_output=True, text=True, env=self.environment, timeout=60)
        assert done.stdout, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def guard_gpus(self) -> str:
        """What `vllm-guard gpus` shows here."""
        command = in_fake_memory(self.meminfo, [str(GUARD), "gpus", f"--guard-vllm={self.vllm}"])
        return subprocess.run(command, check=True, capture_output=True, text=True, env=self.environment, timeout=60).stdout

    def _serve(self) -> list[str]:
        return ["serve", str(self.model), "--max-model-len", str(self.max_model_len), "--enforce-eager", "--host", "127.0.0.1"]

    def launched(self, *command: str, port: int = 0) -> AbstractContextManager[Server]:
        """Any command of this world."""
        return started(in_fake_memory(self.meminfo, command), port=port, environment=self.environment, log=self.log)

    def _started(self, command: Sequence[str]) -> AbstractContextManager[Server]:
        port = free_port()
        return self.launched(*command, "--port", str(port), port=port)


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
        "VLLM_GUARD_CLAIMS_DIR": str(tmp_path / "claims"),  # not those of this machine, whose node has another size
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
