"""Other ways to start the real vLLM 0.32.0 for CPUs, through `vllm-guard run` and through a link named vllm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from real.server import free_port
from real.world import GUARD, LAUNCH, REFUSED_BY_VLLM, World, assert_serves

pytestmark = pytest.mark.slow

ENGINE = ("--max-model-len", "256", "--enforce-eager")


@pytest.fixture(name="linked")
def _linked(world: World, tmp_path: Path) -> World:
    """A world where `vllm` on PATH is a link to the guard, and the real one stands behind it."""
    (tmp_path / "front").mkdir()
    (tmp_path / "front" / "vllm").symlink_to(GUARD)
    world.environment["PATH"] = f"{tmp_path / 'front'}:{world.vllm.parent}:{os.defpath}"
    return world


def test_the_module_form_serves(world: World) -> None:
    """`python -m vllm.entrypoints.openai.api_server` gets the guard's fraction, answers, and ends cleanly."""
    port = free_port()
    server_words = (str(world.vllm.with_name("python")), "-m", "vllm.entrypoints.openai.api_server", "--model", str(world.model))
    options = (*ENGINE, "--host", "127.0.0.1", "--port", str(port))
    with world.launched(str(GUARD), "run", "--", *server_words, *options, port=port) as server:
        server.wait_until_ready()
        launch = LAUNCH.search(server.text())
        assert launch is not None, server.text()
        assert_serves(server, world.model, launch["chosen"])
        assert server.process.pid in server.listening_pids()
        assert server.terminate() == 0
        assert server.remaining() == []


def test_a_guarded_benchmark_runs_to_its_end(world: World) -> None:
    """Where the plain one dies at the free-memory gate."""
    bench = (str(world.vllm), "bench", "throughput", "--model", str(world.model), *ENGINE, "--num-prompts", "2")
    requests = ("--dataset-name", "random", "--random-input-len", "8", "--random-output-len", "2")
    with world.launched(str(GUARD), "run", "--", *bench, *requests) as process:
        assert process.wait_until_ended() == 0, process.text()
        assert LAUNCH.search(process.text()), process.text()
        assert "Throughput: " in process.text()


def test_the_link_passes_a_benchmark_on(linked: World) -> None:
    """It is vLLM's own, and so is its end at the free-memory gate: only `serve` is guarded there."""
    with linked.launched("vllm", "bench", "latency", "--model", str(linked.model), *ENGINE, "--input-len", "8", "--output-len", "2") as process:
        assert process.wait_until_ended() == 1
        assert REFUSED_BY_VLLM in process.text()
        assert "vllm-guard" not in process.text().replace(str(GUARD), "")


def test_the_link_passes_a_question_on(linked: World) -> None:
    """`vllm --version` is vLLM's."""
    done = subprocess.run(["vllm", "--version"], env=linked.environment, check=True, capture_output=True, text=True, timeout=120)

    assert "0.32.0+cpu\n" == done.stdout


def test_the_link_guards_serve(linked: World) -> None:
    """`vllm serve`, as ever, serves where it would have died."""
    port = free_port()
    with linked.launched("vllm", "serve", str(linked.model), *ENGINE, "--port", str(port), port=port) as server:
        server.wait_until_ready()
        launch = LAUNCH.search(server.text())
        assert launch is not None, server.text()
        assert_serves(server, linked.model, launch["chosen"])
