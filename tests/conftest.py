"""What every test gets: a clean environment, versions in the header, and the real vLLM only where it was asked for."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import hypothesis
import pytest
from real import install

pytest_plugins = ("golden_files", "guard_process", "real.world")

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("untimed")

_FOREIGN = ("VLLM_", "CUDA_", "NVIDIA_", "HF_", "TRANSFORMERS_")
_DECIDING_PACKAGES = ("nvidia-ml-py", "psutil", "pydantic-settings", "structlog")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--run-slow`, which `make test-slow` gives."""
    parser.addoption("--run-slow", action="store_true", help="run the tests that need the real vLLM too")


def pytest_report_header() -> str:
    """The versions that decide what the readers see."""
    return "with " + ", ".join(f"{name} {version(name)}" for name in _DECIDING_PACKAGES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests are deselected, not skipped, unless asked for: pytest counts them in its last line."""
    if config.getoption("--run-slow"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
        config.stash[_SLOW_LEFT_OUT] = len(slow)


_SLOW_LEFT_OUT = pytest.StashKey[int]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says what was not run, and how to run it."""
    left_out = config.stash.get(_SLOW_LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(f"not run: {left_out} tests with the real vLLM, systemd or podman (make test-slow)")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the caller's shell decides a test."""
    for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of the real vLLM; its console script `vllm` lies beside it."""
    if not install.is_up_to_date():
        pytest.fail(f"the real vLLM is missing or out of date in {install.VENV}: run `make test-slow`, or python3 tests/real/install.py", pytrace=False)
    return install.VENV / "bin" / "python"
