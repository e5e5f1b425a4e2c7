"""Steps about memory: what NVML says, what a context and the cuBLAS handles cost, and how soon a killed process gives back."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

from gpu_steps.guard import card_of, read_facts
from gpu_steps.machine import Child, Machine
from gpu_steps.sheet import NotTakenError, Sheet

_MIB: Final = 1 << 20
_STEADY_SECONDS: Final = 1.0
_SAMPLE_SECONDS: Final = 0.02

CARD = (
    "driver_version",
    "nvml_version",
    "cuda_driver_version",
    "card_name",
    "card_uuid",
    "mig_mode",
    "persistence_mode",
    "compute_mode",
    "wsl",
    "pid_namespace_initial",
    "v1_total_bytes",
    "v1_free_bytes",
    "v1_used_bytes",
    "v2_total_bytes",
    "v2_reserved_bytes",
    "v2_free_bytes",
    "v2_used_bytes",
    "v2_used_counts_reserved",
    "guard_total_bytes",
    "guard_reserved_bytes",
    "guard_free_bytes",
    "free_moved_by_others_bytes",
)


def read_card(machine: Machine, sheet: Sheet) -> None:
    """The card as raw NVML and as the guard's readers see it, with nothing of ours on it."""
    sheet.put("card_uuid", machine.uuid)
    for name, value in machine.ask(machine.reader, "card").items():
        sheet.put(name, bool(value[0]) if isinstance(value, list) else value)  # MIG mode: now, and after the next reset
    memory = machine.ask(machine.reader, "memory")
    for name in CARD:
        version, _, field = name.removesuffix("_bytes").partition("_")
        if version in memory and field in {"total", "reserved", "free", "used"}:
            sheet.put(name, memory[version].get(field, memory[version]))
    sheet.take("v2_used_counts_reserved", lambda: _used_counts_reserved(memory["v2"]))
    sheet.take("free_moved_by_others_bytes", lambda: _drift(machine, 0.3))
    facts = read_facts(machine)
    card = card_of(facts, machine.uuid)
    sheet.put("wsl", facts.host.wsl)
    sheet.put("pid_namespace_initial", facts.host.pid_namespace_initial)
    sheet.put("guard_total_bytes", card.nvml_total_bytes)
    reserved_bytes = card.driver_reserved_bytes
    sheet.put("guard_reserved_bytes", {"error": "this driver does not tell it"} if reserved_bytes is None else reserved_bytes)
    sheet.put("guard_free_bytes", card.free_bytes)


def _used_counts_reserved(v2: dict[str, Any]) -> Any:
    """Whether this driver's v2 `used` contains `reserved`: its documentation differs by release."""
    if "error" in v2:
        return v2
    if v2["used"] == v2["total"] - v2["free"]:
        return {"error": "nothing is reserved"} if v2["reserved"] == 0 else True
    if v2["used"] == v2["total"] - v2["reserved"] - v2["free"]:
        return False
    return {"error": "total, reserved, free and used do not add up either way"}


def _drift(machine: Machine, seconds: float) -> int:
    """How far free memory moved in this time."""
    seen = [machine.free_bytes()]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(_SAMPLE_SECONDS)
        seen.append(machine.free_bytes())
    return max(seen) - min(seen)


_STAGES: Final = ("first_look", "first_tensor", "cublas", "cublaslt")
_PARTS: Final = ("cost_bytes", "of_it_in_torch_bytes", "cuda_free_below_nvml_free_bytes")
CONTEXT = (
    "torch_version",
    "torch_cuda_version",
    "integrated",
    "cuda_total_bytes",
    "cuda_properties_total_bytes",
    "cuda_total_below_nvml_total_bytes",
    "cuda_total_below_nvml_total_minus_reserved_bytes",
    *(f"{stage}_{part}" for stage in _STAGES for part in _PARTS),
    "start_cost_bytes",
)


def cost_of_context(machine: Machine, sheet: Sheet) -> None:
    """NVML's free memory seen from here while a process makes its context and handles, and CUDA's total against NVML's."""
    holder = machine.greet("first holder")
    hello = machine.ask(holder, "hello")
    sheet.put("torch_version", hello["torch"])
    sheet.put("torch_cuda_version", hello["cuda"] or {"error": "this torch is built without CUDA"})
    before = machine.free_bytes()
    seen = {"torch_bytes": 0}
    free = before
    for stage, words in zip(_STAGES, (("look",), ("hold", 4), ("multiply", "cublas"), ("multiply", "cublaslt")), strict=True):
        try:
            now = machine.ask(holder, *words)
        except NotTakenError as error:
            if stage == "first_look":
                raise
            for part in _PARTS:
                sheet.put(f"{stage}_{part}", {"error": str(error)})
            continue
        if stage == "first_look":
            _compare_totals(machine, sheet, holder, now["total_bytes"])
        nvml_free = machine.free_bytes()
        sheet.put(f"{stage}_cost_bytes", free - nvml_free)
        sheet.put(f"{stage}_of_it_in_torch_bytes", now["torch_bytes"] - seen["torch_bytes"])
        sheet.put(f"{stage}_cuda_free_below_nvml_free_bytes", nvml_free - now["free_bytes"])
        seen, free = now, nvml_free
    sheet.take("start_cost_bytes", lambda: before - int(machine.ask(holder, "empty")["free_bytes"]))


def _compare_totals(machine: Machine, sheet: Sheet, holder: Child, cuda_total_bytes: int) -> None:
    sheet.put("cuda_total_bytes", cuda_total_bytes)
    memory = machine.ask(machine.reader, "memory")
    v1, v2 = memory["v1"], memory["v2"]
    sheet.put("cuda_total_below_nvml_total_bytes", v1 if "error" in v1 else v1["total"] - cuda_total_bytes)
    sheet.put("cuda_total_below_nvml_total_minus_reserved_bytes", v2 if "error" in v2 else v2["total"] - v2["reserved"] - cuda_total_bytes)
    try:
        properties = machine.ask(holder, "properties")
    except NotTakenError as error:
        properties = {"total_bytes": {"error": str(error)}, "integrated": {"error": str(error)}}
    sheet.put("cuda_properties_total_bytes", properties["total_bytes"])
    sheet.put("integrated", properties["integrated"])


RELEASE = (
    "killed_held_bytes",
    "came_back_bytes",
    "gone_after_seconds",
    "most_free_after_seconds",
    "steady_after_seconds",
    "still_listed_when_gone",
)


def free_after_kill(machine: Machine, sheet: Sheet) -> None:
    """How long after SIGKILL of a holder NVML's free memory still moves."""
    holder = machine.greet("second holder")
    sheet.put("killed_held_bytes", machine.ask(holder, "look")["torch_bytes"])
    before = machine.free_bytes()
    os.kill(holder.pid, signal.SIGKILL)
    killed = time.monotonic()
    samples = [(0.0, before)]
    gone_after = None
    while samples[-1][0] - _steady_since(samples) < _STEADY_SECONDS or gone_after is None:
        if gone_after is None and holder.process.poll() is not None:
            gone_after = time.monotonic() - killed
            sheet.take("still_listed_when_gone", lambda: _is_listed(machine, holder.pid))
        samples.append((time.monotonic() - killed, machine.free_bytes()))
        if machine.left_seconds < 1:
            msg = "free memory was not steady within the time of this step"
            raise NotTakenError(msg)
        time.sleep(_SAMPLE_SECONDS)
    most = before + (samples[-1][1] - before) * 99 // 100
    sheet.put("came_back_bytes", samples[-1][1] - before)
    sheet.put("gone_after_seconds", round(gone_after, 2))
    sheet.put("most_free_after_seconds", round(next(at for at, free in samples if free >= most), 2))
    sheet.put("steady_after_seconds", round(_steady_since(samples), 2))


def _steady_since(samples: list[tuple[float, int]]) -> float:
    """The first moment from which on free memory stayed within 1 MiB of the latest sample."""
    at, latest = samples[-1]
    for earlier, free in reversed(samples):
        if abs(free - latest) > _MIB:
            break
        at = earlier
    return at


def _is_listed(machine: Machine, pid: int) -> bool:
    listed = machine.ask(machine.reader, "lists")["Compute"]
    if "error" in listed:
        raise NotTakenError(listed["error"])
    return any(entry["pid"] == pid for entry in listed)
