"""The first screen of README.md with the real vLLM for CPUs, on a node with 6 of 8 GiB free: what it prints alone, and with the guard in front."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil
import pytest
from doc_pages import Step, assert_printed, blocks
from real.server import free_port
from real.world import GUARD, World

pytestmark = pytest.mark.slow

ALONE: Final = "vllm serve ./tiny --max-model-len 256 --enforce-eager"
GUARDED: Final = "vllm-guard serve ./tiny --max-model-len 256 --enforce-eager"


def shown(name: str) -> Step:
    """The one command of this block."""
    (step,) = blocks("README.md")[name].steps
    return step


def command(world: World, folder: Path, step: Step) -> tuple[list[str], int]:
    """The command of the page where both programs are on PATH and the model is in the working folder, with a port of its own; and the port."""
    for name, program in (("vllm", world.vllm), ("vllm-guard", GUARD)):
        (folder / name).symlink_to(program)
    (folder / "tiny").symlink_to(world.model)
    world.environment["PATH"] = f"{folder}:{world.environment['PATH']}"
    world.environment["VLLM_GUARD_LOG_FORMAT"] = "console"  # as on a terminal
    port = free_port()
    return ["sh", "-c", f'cd "$0" && exec {step.command} --host 127.0.0.1 --port {port}', str(folder)], port


def test_vllm_alone_dies_with_these_words(world: World, tmp_path: Path) -> None:
    """The page wraps the long line."""
    step = shown(ALONE)
    words, port = command(world, tmp_path, step)
    assert step.shown is not None
    with world.launched(*words, port=port) as server:
        assert 1 == server.wait_until_ended()
        printed = " ".join(server.text().split())

    assert step.shown[0].startswith("[")
    assert " ".join(" ".join(step.shown[1:]).split()) in printed


def test_with_the_guard_in_front_it_serves(world: World, tmp_path: Path) -> None:
    """The guard's words first, then vLLM's, in the same process."""
    step = shown(GUARDED)
    words, port = command(world, tmp_path, step)
    assert step.shown is not None
    with world.launched(*words, port=port) as server:
        server.wait_until_ready()
        assert str(world.vllm) in psutil.Process(server.process.pid).cmdline()[1] or "vllm" == Path(psutil.Process(server.process.pid).cmdline()[1]).name
        assert 0 == server.terminate()
        assert_printed(step.shown, server.text())
