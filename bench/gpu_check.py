#!/usr/bin/env python3
"""What this project assumes about GPU memory, measured: two minutes on a machine with an NVIDIA GPU, its driver, and a Python with torch. No vLLM.

Prints a table, and writes JSON with --json. Exit 0 when measured, 69 when there is no GPU, driver or torch. See docs/measurements.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpu_steps import fraction, memory, sharing
from gpu_steps.guard import read_facts, select
from gpu_steps.machine import GUARD_RELEASE, Machine, guard_environment
from gpu_steps.sheet import NotTakenError, Sheet, document, table

from vllm_guard import __version__
from vllm_guard.devices import Chosen, Elsewhere, Unusable
from vllm_guard.units import ExitCode

_WHOLE_SECONDS: Final = 110
_FIRST_ANSWER_SECONDS: Final = 20
_TORCH_SECONDS: Final = 50  # importing torch from a cold disk


@dataclass(frozen=True)
class Step:
    """One step, its figures, and the most it may take."""

    name: str
    title: str
    seconds: int
    names: tuple[str, ...]
    run: Callable[[Machine, Sheet], None]


STEPS: Final = (
    Step("card", "what NVML says of the card, raw and through the guard's readers", 15, memory.CARD, memory.read_card),
    Step("context", "what a CUDA context and the cuBLAS handles cost; CUDA's total against NVML's", 25, memory.CONTEXT, memory.cost_of_context),
    Step("sharing", "two holders: free memory in each, and who NVML lists from where", 30, sharing.SHARING, sharing.two_holders),
    Step("exec", "descriptors from 3 up, before and behind exec", 25, sharing.EXEC, sharing.descriptors_over_exec),
    Step("fraction", "the guard's fraction against vLLM's ceil(total * fraction) <= free", 25, fraction.FRACTION, fraction.fraction_against_vllm),
    Step("release", "free memory after SIGKILL of the holder", 20, memory.RELEASE, memory.free_after_kill),
)


def main() -> int:
    """The exit code; the table on stdout, progress on stderr."""
    parser = argparse.ArgumentParser(description="Measure what vllm-guard assumes about GPU memory. CUDA_VISIBLE_DEVICES chooses the card.")
    parser.add_argument("--torch-python", default="python3", help="an interpreter that has torch with CUDA (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    over = time.monotonic() + _WHOLE_SECONDS
    torch_python = os.path.abspath(shutil.which(options.torch_python) or options.torch_python)  # noqa: PTH100 - a venv's link stays one
    machine = Machine("", guard_environment(os.environ, None), torch_python, until=time.monotonic() + _FIRST_ANSWER_SECONDS)
    try:
        missing = find_card(machine) or find_torch(machine)
        if missing is not None:
            say(missing)
            return ExitCode.UNMEASURED
        sheets = [measured(step, machine, over) for step in STEPS]
    finally:
        machine.end()
    sys.stdout.write(table(sheets))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
        options.json.write_text(document(sheets, taken_at=now, guard_version=__version__, vllm_release=GUARD_RELEASE))
        say(f"written to {options.json}")
    blind = next(sheet for sheet in sheets if sheet.name == "context").unknown.get("cuda_total_bytes")
    if blind is not None:
        say(f"torch could not use the card, its figures are unknown: {blind}; install a torch that this driver supports, then run it again")
    return ExitCode.OK if blind is None else ExitCode.UNMEASURED


def find_card(machine: Machine) -> str | None:
    """Chooses the card that a plain vllm serve would use first; or why there is none, and what to do."""
    say("looking for the card")
    try:
        selection = select(read_facts(machine, machine.environ))
    except NotTakenError as error:
        return f"cannot read the GPUs: {error}; run vllm-guard gpus on this machine"
    match selection:
        case Unusable(message=message, fix=fix):
            return f"no GPU to measure: {message}; {fix}"
        case Elsewhere(warning=warning):
            return f"no GPU to measure: {warning.message}; unset CUDA_VISIBLE_DEVICES or name one card in it"
        case Chosen(devices=devices):
            machine.uuid = devices[0].uuid or ""
            machine.environ = guard_environment(machine.environ, machine.uuid)
            return None


def find_torch(machine: Machine) -> str | None:
    """Starts the processes that will hold memory, which import torch at the same time; or why that cannot be, and what to do."""
    say(f"starting torch of {machine.torch_python}")
    machine.until = time.monotonic() + _TORCH_SECONDS
    what_to_do = "say TORCH_PYTHON=/path/to/python with a torch for CUDA (pip install torch)"
    try:
        for name in ("first holder", "second holder", "fresh process"):
            machine.start_holder(name)
        hello: Mapping[str, str | None] = machine.ask(machine.holders["first holder"], "hello")
    except NotTakenError as error:
        return f"no torch to measure with: {error}; {what_to_do}"
    if hello["cuda"] is None:
        return f"no torch to measure with: torch {hello['torch']} of {machine.torch_python} is built without CUDA; {what_to_do}"
    return None


def measured(step: Step, machine: Machine, over: float) -> Sheet:
    """The step's figures. Whatever goes wrong is written down, and the next step goes on."""
    say(step.title)
    began = time.monotonic()
    machine.until = min(began + step.seconds, over)
    sheet = Sheet(step.name, step.title, step.names)
    error = None
    try:
        step.run(machine, sheet)
    except NotTakenError as reason:
        error = str(reason)
    except Exception as bug:  # noqa: BLE001 - the machine is rented: a bug in one step must not cost the figures of the others
        error = traceback.format_exception_only(type(bug), bug)[-1].strip()
    sheet.finish(error, time.monotonic() - began)
    if error is not None:
        say(f"  {error}")
    return sheet


def say(text: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"gpu-check: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
