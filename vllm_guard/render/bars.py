"""Memory of a device as a bar: who has it, what vLLM gets, what stays free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vllm_guard.plan.decision import DevicePlan
from vllm_guard.units import requested_bytes

WIDTH: Final = 48
_MEANINGS: Final = {"#": "in use", "=": "vLLM", "+": "beside its budget", ".": "margin and free"}


def bar(plan: DevicePlan, gpu_memory_utilization: float | None) -> str:
    """`[####====++..]`: occupied and claimed memory, vLLM's budget, what its process takes beside it, the rest; without a fraction only who has what now.

    A part that is there gets a cell at least.
    """
    device = plan.device
    occupied = device.nvml_total_bytes - device.free_bytes + device.claimed_bytes
    budget = device.ranks * requested_bytes(device.nvml_total_bytes, gpu_memory_utilization) if gpu_memory_utilization else 0
    beside = device.ranks * (plan.start_overhead_bytes + plan.outside_budget_bytes) if budget else 0
    rest = max(0, device.nvml_total_bytes - occupied - budget - beside)
    cells = share_cells([occupied, budget, beside, rest], WIDTH)
    return "[" + "".join(sign * count for sign, count in zip("#=+.", cells, strict=True)) + "]"


def legend(bars: Sequence[str]) -> str:
    """What the signs in these bars mean; without vLLM in them there is no margin either."""
    meanings = _MEANINGS if any("=" in each for each in bars) else {**_MEANINGS, ".": "free"}
    return "   ".join(f"{sign} {meaning}" for sign, meaning in meanings.items() if any(sign in each for each in bars))


def share_cells(parts: Sequence[int], width: int) -> list[int]:
    """Cells for each part, in proportion, adding up to `width`; each positive part gets one at least, taken from the largest."""
    total = sum(parts)
    if total <= 0:
        return [0] * (len(parts) - 1) + [width]
    cells = [max(1, part * width // total) if part > 0 else 0 for part in parts]
    largest = max(range(len(parts)), key=lambda index: parts[index])
    cells[largest] += width - sum(cells)
    return cells
