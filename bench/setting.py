"""What is measured and where: virtual environments of the bench's own, a stand-in driver, a stub vLLM, processes that sleep."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from standin_driver import SCENARIO_VARIABLE, Card, Listed, write_scenario  # noqa: E402 - the tests' folder is on the path only now
from stub_vllm import write_stub  # noqa: E402 - as above

VENVS: Final = ROOT / ".venv-bench"
RIVALS: Final = ("gpustat", "nvitop")
_PACKAGE: Final = ("pyproject.toml", "README.md", "LICENSE", "vllm_guard")
_USED_MIB: Final = 100


def install_guard() -> Path:
    """The folder of the programs of a virtual environment with this tree's package, installed as a user would: not editable, with its bytecode."""
    programs = _new_venv(VENVS / "guard")
    with tempfile.TemporaryDirectory() as name:  # a build leaves files in its tree, and would install those of the last one
        tree = Path(name)
        for part in _PACKAGE:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, tree / part)
        subprocess.run([*_pip(programs), name], check=True)
        subprocess.run([*_pip(programs), "--force-reinstall", "--no-deps", name], check=True)
    return programs


def install_rivals() -> Path | None:
    """The same with gpustat and nvitop; None when they cannot be had, which is said."""
    programs = _new_venv(VENVS / "rivals")
    if subprocess.run([*_pip(programs), *RIVALS], check=False).returncode:
        sys.stderr.write("bench: gpustat and nvitop cannot be installed: left out\n")
        return None
    return programs


def find_vllm() -> Path | None:
    """The real vLLM of `make test-slow`, else the first on PATH."""
    ours = ROOT / ".venv-vllm" / "bin" / "vllm"
    found = shutil.which("vllm")
    return ours if ours.exists() else Path(found) if found else None


def _new_venv(folder: Path) -> Path:
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder / "bin"


def _pip(programs: Path) -> list[str]:
    return [str(programs / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--compile"]


def build_driver(folder: Path) -> Path:
    """The tests' stand-in driver with the calls of other tools beside it."""
    sources = [str(ROOT / "tests" / "standin" / "nvml.c"), str(Path(__file__).parent / "not_supported.c")]
    compiler = shutil.which("cc") or shutil.which("gcc") or "clang"
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *flags, "-o", str(folder / "libnvidia-ml.so.1"), *sources, "-lm"], check=True)
    return folder


def new_host(folder: Path) -> dict[str, str]:
    """The environment of a host with that driver and a stub vLLM, a guard that waits for nothing, and nothing of the caller's."""
    write_stub(folder)
    return {
        "PATH": f"{folder}:{os.defpath}",
        "HOME": str(folder),
        "LD_LIBRARY_PATH": str(build_driver(folder)),
        SCENARIO_VARIABLE: str(folder / "scenario"),
        "VLLM_GUARD_SETTLE": "0",
        "VLLM_GUARD_REMOTE_METADATA": "off",
        "VLLM_GUARD_CONFIG": "",
    }


def show_cards(folder: Path, cards: int, pids: Sequence[int]) -> None:
    """What the driver shows from now on: idle H100s, the processes dealt out over them."""
    write_scenario(
        folder / "scenario",
        [Card(processes=tuple(Listed(pid, _USED_MIB) for pid in pids[index::cards])) for index in range(cards)],
    )


@contextmanager
def sleepers(count: int) -> Iterator[list[int]]:
    """That many processes, in /proc until the end."""
    program = shutil.which("sleep") or "sleep"
    processes = [subprocess.Popen([program, "infinity"], stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
