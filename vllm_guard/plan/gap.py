"""What is missing until what was asked fits: pure."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_guard.plan.budget import cuda_total_bytes
from vllm_guard.plan.decision import Assessment, DevicePlan, Launch, Refusal
from vllm_guard.units import requested_bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """The device that misses most. `need_bytes` is about what must be free there for this fraction, what the guard keeps free included."""

    plan: DevicePlan
    gpu_memory_utilization: float
    have_bytes: int
    need_bytes: int

    @property
    def short_bytes(self) -> int:
        """How much more must become free."""
        return self.need_bytes - self.have_bytes


def gap(decision: Launch | Refusal, goal: Launch | None) -> Gap | None:
    """What is missing on the worst device until it can give what was asked, or what `goal` takes where that is less.

    `goal` is the launch on idle devices: what stays free beside vLLM's budget is counted as there. None where free memory is not what is missing: a
    threshold of the operator, or somebody on a card that is to be exclusive.
    """
    now = decision.assessment
    asked, most = _asked_fraction(now), None if goal is None else fraction_of(goal.assessment)
    if asked is None:
        return None
    then = now if goal is None else goal.assessment
    given = now.settings["gpu_memory_utilization"].given is not None
    fraction = asked if most is None else min(asked, most)
    gaps = [Gap(plan, fraction, _open_bytes(plan), _need_bytes(idle, fraction, given=given)) for plan, idle in zip(now.devices, then.devices, strict=True)]
    worst = max(gaps, key=lambda each: each.short_bytes, default=None)
    return worst if worst is not None and worst.short_bytes > 0 else None


def _open_bytes(plan: DevicePlan) -> int:
    return max(0, plan.device.free_bytes - plan.device.claimed_bytes)


def _need_bytes(plan: DevicePlan, fraction: float, *, given: bool) -> int:
    """A value that the user gave is kept without any margin (plan/utilization.py)."""
    beside = 0 if given else plan.outside_budget_bytes
    each_rank = requested_bytes(cuda_total_bytes(plan.device)[0], fraction) + plan.start_overhead_bytes + beside
    return each_rank * plan.device.ranks + (0 if given else plan.margin_bytes)


def fraction_of(assessment: Assessment) -> float | None:
    """The effective `gpu_memory_utilization`; None where it is not known or no number."""
    setting = assessment.settings.get("gpu_memory_utilization")
    return float(setting.value) if setting is not None and isinstance(setting.value, int | float) else None


def _asked_fraction(assessment: Assessment) -> float | None:
    change = next((change for change in assessment.changes if change.dest == "gpu_memory_utilization"), None)
    return fraction_of(assessment) if change is None or change.before is None else float(change.before)
