"""What the guard costs, as one table: CPU time and peak memory of its commands on stand-in GPUs, beside the libraries that they import.

`make bench`, or python bench/bench.py [--runs N] [--markdown]. Every figure is the median of N runs after one that does not count; CPU time is
user + system of the finished process, so that it means something on a machine that is not idle. A floor is a Python that imports the libraries
that the command was seen to import, and nothing of the guard.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Final

import setting

_MEASURE: Final = Path(__file__).parent / "measure.py"
_CARDS: Final = (1, 8, 16)
_PROCESSES: Final = (0, 50, 500)
_LIBRARIES: Final = ("pynvml", "psutil", "pydantic_settings", "structlog", "yaml")
_MODEL: Final = "org/model"
# The commands that read the cards, and how each is called. On a console no events are written, so structlog is not needed.
_ON_CARDS: Final[Mapping[str, tuple[str, ...]]] = {
    "serve to exec": ("serve", _MODEL),
    "serve to exec, on a console": ("serve", _MODEL, "--guard-log-format=console"),
    "check": ("check", _MODEL),
    "gpus": ("gpus",),
}
_BESIDE: Final[Mapping[str, tuple[str, ...]]] = {"gpustat": ("gpustat", "-cu"), "nvitop": ("nvitop", "--once")}


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of one command."""

    cpu_seconds: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table; `floor` is what the command's imports cost, None where the command is not the guard's."""

    name: str
    cards: int | None
    processes: int | None
    cost: Cost
    floor: Cost | None


def measure(commands: Mapping[str, Sequence[str]], environ: Mapping[str, str], runs: int) -> dict[str, Cost]:
    """The commands in turn, so that a slower minute of the machine is in all of them. Raises RuntimeError when one cannot be run."""
    seen: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(runs + 1):
        for name, command in commands.items():
            told = subprocess.run([sys.executable, "-I", "-S", str(_MEASURE), *command], env=environ, check=True, capture_output=True, text=True)
            cpu_seconds, peak_kib, code = told.stdout.split()
            if int(code):
                msg = f"{name}: {' '.join(command)} ended with {code}"
                raise RuntimeError(msg)
            seen[name].append(Cost(float(cpu_seconds), int(peak_kib) / 1024))
    return {name: Cost(median(cost.cpu_seconds for cost in costs[1:]), median(cost.peak_mib for cost in costs[1:])) for name, costs in seen.items()}


def imported(python: Path, command: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Which of the libraries the command imports, from the interpreter's own account."""
    told = subprocess.run([str(python), "-X", "importtime", *command], env=environ, check=True, capture_output=True, text=True)
    modules = {line.rpartition("|")[2].strip() for line in told.stderr.splitlines() if line.startswith("import time:")}
    return tuple(library for library in _LIBRARIES if library in modules)


def has_command(guard: Path, name: str, environ: Mapping[str, str]) -> bool:
    """Whether this release of the guard has the command."""
    return subprocess.run([str(guard), name], env=environ, check=False, capture_output=True).returncode == 0


def run_all(runs: int, folder: Path) -> tuple[dict[str, Cost], list[Line]]:
    """The yardsticks by name, and every line of the table."""
    programs, rivals = setting.install_guard(), setting.install_rivals()
    environ, python, guard = setting.new_host(folder), programs / "python", programs / "vllm-guard"
    setting.show_cards(folder, 1, ())
    calls = {name: (str(guard), *words) for name, words in _ON_CARDS.items() if words[0] != "gpus" or has_command(guard, "gpus", environ)}
    beside = {name: (str(rivals / words[0]), *words[1:]) for name, words in _BESIDE.items()} if rivals else {}
    base = {"python -c pass": (str(python), "-c", "pass"), "stub": (str(folder / "vllm"),), "--help": (str(guard), "--help")}
    with setting.sleepers(max(_PROCESSES)) as pids:
        floor_of: dict[tuple[str, bool], str] = {}
        for busy in (False, True):
            setting.show_cards(folder, 1, pids[:busy])
            floor_of |= {(name, busy): ", ".join(imported(python, call, environ)) for name, call in {**calls, "--help": base["--help"]}.items()}
        yardsticks = measure(base | {used: (str(python), "-c", f"import {used}") for used in floor_of.values()}, environ, runs)
        stub = yardsticks.pop("stub")
        lines = [Line("--help", None, None, yardsticks.pop("--help"), yardsticks[floor_of["--help", False]])]
        for cards, processes in product(_CARDS, _PROCESSES):
            setting.show_cards(folder, cards, pids[:processes])
            for name, cost in measure({**calls, **beside}, environ, runs).items():
                own = Cost(cost.cpu_seconds - stub.cpu_seconds, cost.peak_mib) if name.startswith("serve") else cost
                lines.append(Line(name, cards, processes, own, yardsticks[floor_of[name, processes > 0]] if name in calls else None))
    vllm = setting.find_vllm()
    if vllm is not None:
        yardsticks |= measure({"vllm --version": (str(vllm), "--version")}, os.environ, min(runs, 3))
    return yardsticks, lines


def rows_of(yardsticks: Mapping[str, Cost], lines: Sequence[Line]) -> list[list[str]]:
    """The table as text, headings first."""
    nothing, vllm = yardsticks["python -c pass"], yardsticks.get("vllm --version")
    rows = [["command", "GPUs", "processes", "CPU ms", "peak MiB", "CPU / floor", "peak / floor", "CPU / pass", "CPU / vllm --version"]]
    for name, cost in yardsticks.items():
        title = name if name in ("python -c pass", "vllm --version") else f"floor: import {name}"
        rows.append([title, "", "", *_figures(cost, None, nothing, vllm)])
    names = list(dict.fromkeys(line.name for line in lines))
    for line in sorted(lines, key=lambda line: names.index(line.name)):
        place = ["" if count is None else str(count) for count in (line.cards, line.processes)]
        rows.append([line.name, *place, *_figures(line.cost, line.floor, nothing, vllm)])
    return rows


def _figures(cost: Cost, floor: Cost | None, nothing: Cost, vllm: Cost | None) -> list[str]:
    return [
        f"{cost.cpu_seconds * 1000:.0f}",
        f"{cost.peak_mib:.1f}",
        "" if floor is None else f"{cost.cpu_seconds / floor.cpu_seconds:.2f}",
        "" if floor is None else f"{cost.peak_mib / floor.peak_mib:.2f}",
        f"{cost.cpu_seconds / nothing.cpu_seconds:.1f}",
        "" if vllm is None else f"{cost.cpu_seconds / vllm.cpu_seconds:.4f}",
    ]


def growth_of(lines: Sequence[Line]) -> list[list[str]]:
    """What each further process and GPU costs, in two steps, as means over the other axis: linear growth shows the same figure twice."""
    seconds = {(line.name, line.cards, line.processes): line.cost.cpu_seconds for line in lines}
    (few, some, many), (none, half, full) = _CARDS, _PROCESSES
    rows = [["command", f"us a process, {none} to {half}", f"{half} to {full}", f"us a GPU, {few} to {some}", f"{some} to {many}"]]
    for name in dict.fromkeys(line.name for line in lines if line.cards):
        by_processes = {count: mean(seconds[name, cards, count] for cards in _CARDS) for count in _PROCESSES}
        by_cards = {count: mean(seconds[name, count, processes] for processes in _PROCESSES) for count in _CARDS}
        steps = ((by_processes, none, half), (by_processes, half, full), (by_cards, few, some), (by_cards, some, many))
        rows.append([name, *(f"{(axis[after] - axis[before]) / (after - before) * 1e6:.0f}" for axis, before, after in steps)])
    return rows


def aligned(rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """The rows under each other: words to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]) for row in rows]
    if not markdown:
        return "\n".join(lines)
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" + "|---:" * (len(widths) - 1) + "|", *body])


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        yardsticks, lines = run_all(asked.runs, Path(name))
    machine = f"CPython {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    tables = (aligned(rows, markdown=asked.markdown) for rows in (rows_of(yardsticks, lines), growth_of(lines)))
    sys.stdout.write("\n\n".join((f"Medians of {asked.runs} runs, {machine}", *tables)) + "\n")


if __name__ == "__main__":
    main()
