"""vLLM's start-up gates, judged before it starts. Only what is certain is called pass or fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_guard.plan.budget import Room, cuda_total_bytes
from vllm_guard.plan.decision import Gate, Outcome
from vllm_guard.units import requested_bytes


def free_memory(rooms: Sequence[Room], least: float, most: float, *, world: int, interchangeable: bool) -> Gate:
    """Gate 1: `ceil(total * fraction) <= free` on every device, once vLLM's process has its context (v1/worker/utils.py request_memory).

    `least` and `most` are the fraction, twice, or the two that a release between inspected ones may use. It passes when even `most` fits beside the likely
    start overhead, and fails when even `least` does not beside the low one.
    """
    outcomes = [free_memory_on(each, least, most) for each in rooms]
    tightest = max(rooms, key=lambda each: _need(each, most)[1] - (each.open_bytes - each.start_overhead.likely))
    have = tightest.open_bytes - tightest.start_overhead.likely
    need = _need(tightest, most)[1]
    return Gate("free_memory", _combined(outcomes, world, interchangeable=interchangeable), have, need, f"gpu_memory_utilization {most:g}")


def free_memory_on(each: Room, least: float, most: float) -> Outcome:
    """Gate 1 on one device."""
    low, high = _need(each, least)[0], _need(each, most)[1]
    if low > each.open_bytes - each.start_overhead.low:
        return "fail"
    return "pass" if high <= each.open_bytes - each.start_overhead.likely else "uncertain"


def _need(each: Room, fraction: float) -> tuple[int, int]:
    least, most = cuda_total_bytes(each.device)
    return requested_bytes(least, fraction), requested_bytes(most, fraction)


def _combined(outcomes: Sequence[Outcome], world: int, *, interchangeable: bool) -> Outcome:
    """All devices must pass. Where any `world` of them may be meant, it fails for sure only when fewer can pass."""
    failed = sum(outcome == "fail" for outcome in outcomes)
    if failed and not (interchangeable and len(outcomes) - failed >= world):
        return "fail"
    return "pass" if all(outcome == "pass" for outcome in outcomes) else "uncertain"


@dataclass(frozen=True, slots=True)
class Bound:
    """What one device can give, and the least that must fit into it; None where nothing is proved."""

    have_bytes: int | None
    need_bytes: int | None


def cache_blocks(bounds: Sequence[Bound], because: str, *, world: int, interchangeable: bool, assumed: bool) -> Gate:
    """Gate 2 as far as it can be proved: a need above what a device can give leaves no KV cache. Else unknown; uncertain for a release that is assumed."""
    outcomes: list[Outcome] = ["fail" if _gap(bound) > 0 else "unknown" for bound in bounds]
    tightest = max(bounds, key=_gap)
    outcome = _combined(outcomes, world, interchangeable=interchangeable) if "fail" in outcomes else "unknown"
    return Gate("cache_blocks", "uncertain" if outcome == "fail" and assumed else outcome, tightest.have_bytes, tightest.need_bytes, because)


def _gap(bound: Bound) -> int:
    return -1 if bound.have_bytes is None or bound.need_bytes is None else bound.need_bytes - bound.have_bytes
