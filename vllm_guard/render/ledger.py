"""What becomes of a device's memory once vLLM has started, part by part: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_guard.plan.budget import cuda_total_bytes
from vllm_guard.plan.decision import DevicePlan
from vllm_guard.plan.needs import Demand
from vllm_guard.units import floor_mib, requested_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a device's memory with its sign in the bar."""

    name: str
    sign: str
    size_bytes: int


def ledger(plan: DevicePlan, gpu_memory_utilization: float | None, demand: Demand | None, pool_bytes: int | None = None) -> tuple[Part, ...]:
    """Parts that add up to the device's total: of what the model needs where that is known, else of vLLM as a whole; without a fraction who has what now.

    `pool_bytes` is the KV cache of each rank where it is given: then it and what stands beside it count, and not the fraction. The context is an estimate,
    and takes no more than what the rest leaves.
    """
    device, needs = plan.device, None if demand is None else demand.beside_pool
    budget = device.ranks * requested_bytes(cuda_total_bytes(device)[1], gpu_memory_utilization) if gpu_memory_utilization else 0
    if budget and pool_bytes is not None and needs is not None:
        budget = device.ranks * (needs.likely + pool_bytes)
    beside = device.ranks * (plan.start_overhead_bytes + plan.outside_budget_bytes) if budget else 0
    beside = min(beside, max(0, device.free_bytes - device.claimed_bytes - budget))
    parts = [
        Part("in use", "#", device.nvml_total_bytes - device.free_bytes),
        Part("claimed", ":", device.claimed_bytes),
        Part("context", "+", beside),
        *_budget_parts(budget, device.ranks, demand),
    ]
    rest = device.nvml_total_bytes - sum(part.size_bytes for part in parts)
    return (*parts, Part("margin and free" if budget else "free", ".", max(0, rest)))


def _budget_parts(budget_bytes: int, ranks: int, demand: Demand | None) -> list[Part]:
    needs = None if demand is None else demand.beside_pool
    if demand is None or needs is None or not 0 < ranks * needs.likely < budget_bytes:
        return [Part("vLLM", "=", budget_bytes)]
    parts = [("weights", "w", demand.weights), ("activations", "a", demand.activation), ("CUDA graphs", "g", demand.cuda_graphs)]
    sizes = [(name, sign, ranks * getattr(need, "likely", 0)) for name, sign, need in parts]
    return [*(Part(*size) for size in sizes), Part("KV cache", "k", budget_bytes - ranks * needs.likely)]


def is_split(parts: Sequence[Part]) -> bool:
    """Whether vLLM's part is split into what it is for."""
    return any(part.sign == "k" for part in parts)


def sum_line(parts: Sequence[Part]) -> str:
    """`total 24564 = in use 464 + context 640 + weights 15348 + ...` in MiB that add up; parts of nothing are left out, the last takes the rounding."""
    total = floor_mib(sum(part.size_bytes for part in parts))
    shown = [part for part in parts[:-1] if part.size_bytes]
    sizes = [floor_mib(part.size_bytes) for part in shown]
    named = [f"{part.name} {size}" for part, size in zip(shown, sizes, strict=True)]
    return f"total {total} = {' + '.join([*named, f'{parts[-1].name} {total - sum(sizes)}'])}   [MiB]"
