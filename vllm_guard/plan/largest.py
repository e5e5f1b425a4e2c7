"""The largest fraction that is safe on every device, and the smallest one that is worth starting with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_guard.facts import Warn
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan.budget import Room, cuda_total_bytes, fraction_at_least, fraction_within
from vllm_guard.plan.choice import Emit, NoRoom
from vllm_guard.plan.decision import Need
from vllm_guard.plan.needs import Demand
from vllm_guard.plan.policy import Policy
from vllm_guard.units import MIB, ceil_mib, requested_bytes

_LEAST_POOL_BYTES: Final = 512 * MIB


@dataclass(frozen=True, slots=True)
class Weights:
    """What the checkpoint's files prove: `floor_bytes` is the least that one device must hold, `share_bytes` what it most likely holds."""

    floor_bytes: int
    share_bytes: int


@dataclass(frozen=True, slots=True)
class Least:
    """The smallest budget worth starting with. The margin yields to a model whose weights are known, never to the operator's own threshold."""

    needs: tuple[Need, ...]
    min_utilization: float = 0.0
    margin_yields: bool = False

    def on(self, total_bytes: int) -> tuple[tuple[Need, ...], bool]:
        """The needs on a device of this total, and whether the margin yields to them."""
        threshold = Need("min_utilization", requested_bytes(total_bytes, self.min_utilization))
        if threshold.size_bytes > _sum(self.needs):
            return (threshold,), False
        return self.needs, self.margin_yields


def least_budget(policy: Policy, weights: Weights | None, demand: Demand, *, pool_is_explicit: bool, shortest: bool) -> Least:
    """Weights and the smallest pool that the operator's threshold allows; one MiB where the pool's size is given and the fraction does not set it.

    Where the model is known the smallest pool is one full sequence, and everything beside it counts at its low figure: only what is certain refuses.
    """
    if pool_is_explicit:
        return Least((Need("a budget", MIB),), policy.min_utilization)
    if not isinstance(demand.weights, Unknown) and not isinstance(demand.activation, Unknown) and not isinstance(demand.kv, Unknown):
        beside = Need("weights at least", demand.weights.low), Need("activations at least", demand.activation.low)
        if policy.min_kv_cache_bytes is None:
            length = 1 if shortest else demand.kv.setting.max_model_len
            pool = Need(f"one sequence of {length} tokens", demand.kv.tested_bytes_of(length) + demand.kv.null_block_bytes)
        else:
            pool = Need("min_kv_cache", max(policy.min_kv_cache_bytes, MIB))
        return Least((*beside, pool), policy.min_utilization, margin_yields=True)
    if policy.min_kv_cache_bytes is None:
        pool, held = Need("smallest KV cache", _LEAST_POOL_BYTES), Need("weights", weights.share_bytes if weights else 0)
    else:
        pool, held = Need("min_kv_cache", max(policy.min_kv_cache_bytes, MIB)), Need("weights at least", weights.floor_bytes if weights else 0)
    return Least((held, pool) if weights else (pool,), policy.min_utilization, margin_yields=weights is not None)


def barest(weights: Weights | None) -> Least:
    """The least that is not certain to fail."""
    return Least((Need("weights at least", weights.floor_bytes if weights else 0), Need("KV cache", MIB)))


def largest(rooms: Sequence[Room], ceiling: float, least: Least, *, world: int, interchangeable: bool) -> Emit | NoRoom:
    """One fraction for all devices: the worst one decides. Where any `world` of them may be meant, those without room do not count while others remain."""
    fits = [_fit(index, each, ceiling, least) for index, each in enumerate(rooms)]
    shorts = [fit for fit in fits if isinstance(fit, NoRoom)]
    fractions = {index: fit for index, fit in enumerate(fits) if isinstance(fit, float)}
    if shorts and not (interchangeable and len(fractions) >= world):
        return shorts[0]
    warnings = [warning for index in fractions for warning in _given_up(rooms[index], fractions[index])]
    if shorts:
        warnings.append(Warn("order_unknown", "a card that may be meant has no room, another one has"))
    limiting = min(fractions, key=lambda index: fractions[index])
    return Emit(fractions[limiting], limiting, tuple(warnings))


def _fit(index: int, each: Room, ceiling: float, least: Least) -> float | NoRoom:
    """The largest safe fraction on one device.

    Where it is below the least, what lies outside the budget and, for a model that needs it, the margin give way just as far as the least needs them.
    """
    total = each.device.nvml_total_bytes
    least_total, most_total = cuda_total_bytes(each.device)
    needs, margin_yields = least.on(total)
    margin = 0 if margin_yields else each.margin_bytes
    smallest = fraction_at_least(_sum(needs), least_total)
    fraction = fraction_within(each.usable_bytes, total)
    if fraction < smallest and requested_bytes(most_total, smallest) <= each.left_bytes(outside_bytes=0, margin_bytes=margin):
        fraction = smallest
    if fraction < smallest:
        beside = (Need("start overhead", each.start_overhead.likely), *((Need("margin", margin),) if margin else ()))
        return NoRoom(index, each.open_bytes, (*needs, *beside), threshold=True)
    if ceiling < smallest:
        return NoRoom(index, requested_bytes(most_total, ceiling), needs, capped=True, threshold=True)
    return min(fraction, ceiling)


def given_up(each: Room, fraction: float) -> tuple[int, int]:
    """What of the memory outside the budget, and then of the margin, this fraction uses up on a device, in bytes."""
    short = max(0, requested_bytes(cuda_total_bytes(each.device)[1], fraction) - each.usable_bytes)
    outside = min(short, each.outside_budget_bytes)
    return outside, min(short - outside, each.margin_bytes)


def _given_up(each: Room, fraction: float) -> list[Warn]:
    outside, margin = given_up(each, fraction)
    warnings = []
    if outside:
        message = f"{each.label}: {ceil_mib(outside)} MiB less are kept free for what vLLM adds beyond its budget (CUDA graphs); it may run out of memory there"
        warnings.append(Warn("outside_budget_dropped", message))
    if margin:
        warnings.append(Warn("margin_given_up", f"{each.label}: the model needs {ceil_mib(margin)} MiB of the margin"))
    return warnings


def _sum(needs: Sequence[Need]) -> int:
    return sum(need.size_bytes for need in needs)
