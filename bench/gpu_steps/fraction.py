"""The step about the promise: the guard's fraction, and its word on a user's, against vLLM's inequality computed with torch."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from gpu_steps.guard import card_of, decision_on, read_facts
from gpu_steps.machine import Child, Machine
from gpu_steps.sheet import Sheet
from vllm_guard.facts import Facts
from vllm_guard.plan.budget import format_fraction, fraction_within
from vllm_guard.plan.decision import Assessment, Decision, Launch, Refusal, Unmeasured
from vllm_guard.units import requested_bytes

_LEFT_FREE_PERCENT: Final = 60
_FLAG: Final = "--gpu-memory-utilization"

FRACTION = (
    "neighbour_holds_bytes",
    "guard_saw_free_bytes",
    "guard_fraction",
    "guard_start_overhead_bytes",
    "guard_margin_bytes",
    "cublas_made",
    "cublaslt_made",
    "vllm_would_see_total_bytes",
    "vllm_would_see_free_bytes",
    "vllm_would_want_bytes",
    "vllm_would_start",
    "slack_bytes",
    "start_overhead_bytes",
    "user_values",
)


def fraction_against_vllm(machine: Machine, sheet: Sheet) -> None:
    """A neighbour holds memory; the guard chooses; a fresh process makes what vLLM makes before it measures, and measures."""
    second, fresh = machine.greet("second holder"), machine.greet("fresh process")
    sheet.put("neighbour_holds_bytes", _leave_a_part_free(machine, second))
    facts = read_facts(machine)
    free_bytes = card_of(facts, machine.uuid).free_bytes
    sheet.put("guard_saw_free_bytes", free_bytes)
    sheet.take("guard_fraction", lambda: _chosen(facts))
    sheet.take("guard_start_overhead_bytes", lambda: _device_figure(facts, "start_overhead_bytes"))
    sheet.take("guard_margin_bytes", lambda: _device_figure(facts, "margin_bytes"))
    machine.ask(fresh, "hold", 4)
    for library in ("cublas", "cublaslt"):
        sheet.take(f"{library}_made", partial(_makes, machine, fresh, library))
    seen = machine.ask(fresh, "empty")
    total_bytes, seen_free_bytes = seen["total_bytes"], seen["free_bytes"]
    sheet.put("vllm_would_see_total_bytes", total_bytes)
    sheet.put("vllm_would_see_free_bytes", seen_free_bytes)
    sheet.put("start_overhead_bytes", free_bytes - seen_free_bytes)
    sheet.put("user_values", _user_values(facts, total_bytes, seen_free_bytes, free_bytes))
    fraction = sheet.taken.get("guard_fraction")
    if fraction is not None:
        want_bytes = requested_bytes(total_bytes, fraction)
        sheet.put("vllm_would_want_bytes", want_bytes)
        sheet.put("vllm_would_start", want_bytes <= seen_free_bytes)
        sheet.put("slack_bytes", seen_free_bytes - want_bytes)


def _makes(machine: Machine, holder: Child, library: str) -> bool:
    """Makes the handle that vLLM makes; old releases of torch cannot choose the library."""
    machine.ask(holder, "multiply", library)
    return True


def _leave_a_part_free(machine: Machine, holder: Child) -> int:
    """The holder takes so much that about 60 % of the card stay free, where that much is free."""
    seen = machine.ask(holder, "look")
    more_bytes = seen["free_bytes"] - seen["total_bytes"] * _LEFT_FREE_PERCENT // 100
    return int(machine.ask(holder, "hold", more_bytes)["torch_bytes"] if more_bytes > 0 else seen["torch_bytes"])


def _assessment(facts: Facts, *argv: str) -> Assessment | str:
    decision = decision_on(facts, *argv)
    match decision:
        case Unmeasured(message=message):
            return message
        case Launch(assessment=assessment) | Refusal(assessment=assessment):
            return assessment


def _chosen(facts: Facts) -> Any:
    """The fraction that vLLM would run with after the guard; an error where the guard refuses."""
    decision = decision_on(facts)
    if not isinstance(decision, Launch):
        return {"error": f"the guard refuses here: {getattr(decision, 'reason', 'unmeasured')}"}
    return float(str(decision.assessment.settings["gpu_memory_utilization"].value))


def _device_figure(facts: Facts, name: str) -> Any:
    assessment = _assessment(facts)
    return {"error": assessment} if isinstance(assessment, str) else getattr(assessment.devices[0], name)


def _user_values(facts: Facts, total_bytes: int, seen_free_bytes: int, free_bytes: int) -> list[dict[str, Any]]:
    """Values around vLLM's boundary: what vLLM would do, and what the guard says. `wrong`: a value that works was lowered or refused."""
    works = fraction_within(seen_free_bytes, total_bytes)
    all_free = fraction_within(free_bytes, total_bytes)
    judged = []
    for what, fraction in (("largest that starts", works), ("next above", round(works + 0.0001, 4)), ("all that was free", all_free)):
        starts = requested_bytes(total_bytes, fraction) <= seen_free_bytes
        guard = _verdict_on(decision_on(facts, _FLAG, format_fraction(fraction)))
        wrong = starts and not guard.startswith("keeps")
        judged.append({"value": what, "fraction": fraction, "vllm_starts": starts, "guard": guard, "wrong": wrong})
    return judged


def _verdict_on(decision: Decision) -> str:
    """What becomes of a user's value, in words; a kept one with the guard's outcome of gate 1."""
    match decision:
        case Unmeasured():
            return "could not judge"
        case Refusal(reason=reason):
            return f"refuses ({reason})"
        case Launch(assessment=assessment):
            lowered = [change.after for change in assessment.changes if change.dest == "gpu_memory_utilization"]
            outcome = next(gate.outcome for gate in assessment.gates if gate.gate == "free_memory")
            return f"lowers to {lowered[0]}" if lowered else f"keeps ({outcome})"
