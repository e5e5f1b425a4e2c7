"""The stand-in NVIDIA driver: builds `standin/nvml.c` as libnvidia-ml.so.1 and writes the scenarios that it plays.

A program started with LD_LIBRARY_PATH=<folder> and STANDIN_NVML_SCENARIO=<file> sees the cards of that file through the real
pynvml; inside `with loaded_driver(folder):` this process does too. A scenario that is written again counts from the next NVML call.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCENARIO_VARIABLE: Final = "STANDIN_NVML_SCENARIO"
_SOURCE: Final = Path(__file__).parent / "standin" / "nvml.c"
_SONAME: Final = "libnvidia-ml.so.1"

# A value, or steps of (seconds, value): the first holds from the start, each stays until the next.
Series = int | tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A process on a card. `kinds` of c (compute), g (graphics), m (MPS); `used_mib` None is N/A; it is listed between the two times."""

    pid: int
    used_mib: int | None
    kinds: str = "c"
    from_seconds: float = 0.0
    until_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Fault:
    """An NVML error code that calls matching the shell pattern answer, after so many good ones. Code 0 in a series is no error."""

    pattern: str
    code: Series
    after_calls: int = 0


@dataclass(frozen=True, slots=True)
class Card:
    """A card or a MIG slice. `free_mib` None is total - reserved - what the listed processes use; `slices` turns MIG on, None in it is a hole."""

    name: str = "NVIDIA H100 80GB HBM3"
    total_mib: int = 81559
    reserved_mib: int = 479
    free_mib: Series | None = None
    processes: tuple[Listed, ...] = ()
    uuid: str | None = None
    capability: tuple[int, int] | None = (9, 0)
    faults: tuple[Fault, ...] = ()
    slices: tuple[Card | None, ...] | None = None
    scrambled: bool = False


def build_driver(folder: Path, *, old: bool = False) -> Path:
    """The folder for LD_LIBRARY_PATH, with the library built in it; `old` is a driver before R510 (no memory v2, no process v3).

    Raises RuntimeError when there is no C compiler: these tests are the only ones on the real binding, so they must not be skipped.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        msg = "the stand-in NVIDIA driver needs a C compiler (cc, gcc or clang) on PATH: install gcc and libc6-dev"
        raise RuntimeError(msg)
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{_SONAME}.{os.getpid()}"
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{_SONAME}", *(["-DOLD_DRIVER"] if old else [])]
    subprocess.run([compiler, *flags, "-o", str(draft), str(_SOURCE), "-lm"], check=True)
    draft.replace(folder / _SONAME)
    return folder


@contextmanager
def loaded_driver(folder: Path) -> Iterator[None]:
    """Inside, this process's pynvml talks to the library of that folder, whatever it had loaded before."""
    import pynvml  # noqa: PLC0415 - only tests of NVML need the binding

    before = pynvml.nvmlLib
    pynvml.nvmlLib = ctypes.CDLL(str(folder / _SONAME))
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - the binding keeps pointers into the library before
    try:
        yield
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - as above


def write_scenario(
    path: Path,
    cards: Sequence[Card],
    init_error: Series | None = None,
    faults: Sequence[Fault] = (),
    epoch_seconds: float | None = None,
) -> None:
    """Write the file that the stand-in plays, in one step, so that a reader never sees half of it.

    `epoch_seconds` is the wall-clock zero of all times in it; without it each process counts from its own first NVML call.
    """
    faults_of_all = (*faults, *([] if init_error is None else [Fault("nvmlInitWithFlags", init_error)]))
    lines = ["[system]", *(f"error = {_fault_text(fault)}" for fault in faults_of_all)]
    if epoch_seconds is not None:
        lines.append(f"epoch = {epoch_seconds:.6f}")
    for index, card in enumerate(cards):
        lines += ["[gpu]", *_card_lines(card, f"GPU-{index:08x}-0000-4000-8000-000000000000")]
        for position, piece in enumerate(card.slices or ()):
            uuid = f"MIG-{index:04x}{position:04x}-0000-5000-8000-000000000000"
            lines += ["[hole]"] if piece is None else ["[mig]", *_card_lines(piece, uuid)]
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
    draft.replace(path)


def _card_lines(card: Card, uuid: str) -> list[str]:
    lines = [
        f"name = {card.name}",
        f"uuid = {card.uuid or uuid}",
        f"total_mib = {card.total_mib}",
        f"reserved_mib = {card.reserved_mib}",
        f"mig = {int(card.slices is not None)}",
        f"scrambled = {int(card.scrambled)}",
    ]
    if card.capability is not None:
        lines.append(f"capability = {card.capability[0]}.{card.capability[1]}")
    if card.free_mib is not None:
        lines.append(f"free_mib = {_series_text(card.free_mib)}")
    lines += [f"process = {_listed_text(process)}" for process in card.processes]
    lines += [f"error = {_fault_text(fault)}" for fault in card.faults]
    return lines


def _listed_text(process: Listed) -> str:
    used = "N/A" if process.used_mib is None else process.used_mib
    return f"{process.pid} {process.kinds} {used} {process.from_seconds} {process.until_seconds}"


def _fault_text(fault: Fault) -> str:
    return f"{fault.pattern} {_series_text(fault.code)}" + (f" after {fault.after_calls}" if fault.after_calls else "")


def _series_text(series: Series) -> str:
    return str(series) if isinstance(series, int) else " ".join(f"{value}@{seconds}" for seconds, value in series)
