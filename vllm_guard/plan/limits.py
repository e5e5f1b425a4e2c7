"""The operator's thresholds, and whose fault it is that there is no room: pure."""

from __future__ import annotations

from vllm_guard.devices import competitors
from vllm_guard.plan.budget import cuda_total_bytes
from vllm_guard.plan.case import Case
from vllm_guard.plan.choice import NoRoom
from vllm_guard.plan.decision import Need, RefusalReason
from vllm_guard.plan.state_blocks import NEED as STATES
from vllm_guard.units import requested_bytes


def below_min_free(case: Case) -> NoRoom | None:
    """The first device with less free memory than the operator wants; None where there is none."""
    for index, each in enumerate(case.rooms):
        need = case.policy.min_free.of(each.device.nvml_total_bytes)
        if each.device.free_bytes < need:
            return NoRoom(index, each.device.free_bytes, (Need("min_free", need),))
    return None


def taken(case: Case) -> NoRoom | None:
    """The first card on which somebody else computes: what they are seen to hold is what the card lacks. Graphics do not count, nor who has ended."""
    for index, each in enumerate(case.rooms):
        if each.device.kind == "cuda" and competitors(each.device):
            whole = Need("the whole card", cuda_total_bytes(each.device)[1])
            return NoRoom(index, each.device.free_bytes, (whole,))
    return None


def below_min_utilization(case: Case, fraction: float) -> NoRoom:
    """What a fraction below the operator's threshold gives, and what the threshold asks for, on the smallest device."""
    index = smallest(case)
    total = case.rooms[index].device.nvml_total_bytes
    need = Need("min_utilization", requested_bytes(total, case.policy.min_utilization))
    return NoRoom(index, requested_bytes(total, fraction), (need,), capped=True)


def smallest(case: Case) -> int:
    """The index of the device with the smallest total."""
    totals = [each.device.nvml_total_bytes for each in case.rooms]
    return totals.index(min(totals))


def reason_of(case: Case, short: NoRoom) -> RefusalReason:
    """Whose fault it is: weights that not even the empty card could hold, a threshold or ceiling of the operator, or others on the card."""
    each = case.rooms[short.device]
    floor = case.weights_floor_bytes
    if floor + each.start_overhead.low > each.device.nvml_total_bytes:
        return "model_too_large"
    if short.needs[0].name.startswith(STATES):
        return "too_many_sequences"
    if short.needs[0].name == "min_utilization":
        return "below_min_utilization"
    left = short.have_bytes if short.capped else each.left_bytes(outside_bytes=0, margin_bytes=each.margin_bytes)
    if short.threshold:
        return "below_min_kv_cache" if left > floor else "gpu_busy"
    return "model_too_large" if short.capped and case.pool_bytes is None else "gpu_busy"
