"""Which `gpu_memory_utilization` the launch gets: the value asked for where it works, else the largest that is safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_guard.facts import Warn
from vllm_guard.plan.budget import Room, cuda_total_bytes, default_fits, format_fraction, fraction_within
from vllm_guard.plan.decision import Gate, Need
from vllm_guard.plan.policy import Policy
from vllm_guard.units import MIB, floor_mib, requested_bytes

_LEAST_POOL_BYTES: Final = 512 * MIB


@dataclass(frozen=True, slots=True)
class Asked:
    """The fraction that was asked for: the user's, or vLLM's default; `least` and `most` differ where a release may use either default."""

    least: float
    most: float
    given: bool


@dataclass(frozen=True, slots=True)
class Weights:
    """What the checkpoint's files prove: `floor_bytes` is the least that one device must hold, `share_bytes` what it most likely holds."""

    floor_bytes: int
    share_bytes: int


@dataclass(frozen=True, slots=True)
class Keep:
    """The value asked for stays; argv is untouched."""

    because: str
    warnings: tuple[Warn, ...] = ()


@dataclass(frozen=True, slots=True)
class Emit:
    """A fraction that the guard chose; `limiting` is the index of the device that decides it."""

    fraction: float
    limiting: int
    warnings: tuple[Warn, ...] = ()


@dataclass(frozen=True, slots=True)
class NoRoom:
    """No fraction is worth starting with on the device at this index. The bytes are free memory, or vLLM's budget where a ceiling binds (`capped`)."""

    device: int
    have_bytes: int
    needs: tuple[Need, ...]
    capped: bool = False

    @property
    def need_bytes(self) -> int:
        """All needs together."""
        return sum(need.size_bytes for need in self.needs)


Choice = Keep | Emit | NoRoom


@dataclass(frozen=True, slots=True)
class LeastBudget:
    """The smallest budget on one device that is worth starting with."""

    needs: tuple[Need, ...]

    @property
    def size_bytes(self) -> int:
        """Its bytes."""
        return sum(need.size_bytes for need in self.needs)


def least_budget(policy: Policy, weights: Weights | None, *, pool_is_explicit: bool) -> LeastBudget:
    """Weights and the smallest pool that the operator's threshold allows; one MiB where the pool's size is given and the fraction does not set it."""
    if pool_is_explicit:
        return LeastBudget((Need("a budget", MIB),))
    if policy.min_kv_cache_bytes is not None:
        pool = Need("KV cache (min_kv_cache)", max(policy.min_kv_cache_bytes, MIB))
        return LeastBudget((Need("weights at least", weights.floor_bytes), pool) if weights else (pool,))
    pool = Need("smallest KV cache", _LEAST_POOL_BYTES)
    return LeastBudget((Need("weights", weights.share_bytes), pool) if weights else (pool,))


def choose_utilization(rooms: Sequence[Room], asked: Asked, gate: Gate, policy: Policy, least: LeastBudget) -> Choice:
    """Keep what was asked where that works; else the largest safe fraction; else no room. `gate` is gate 1 judged at the value asked for."""
    movable = "utilization" in policy.levers
    if asked.given:
        if gate.outcome != "fail":
            return Keep("given by the user", _uncertain(gate))
        if policy.on_explicit == "keep" or not movable:
            return _short(rooms, asked)
        return _largest(rooms, asked.most, least)
    if not movable:
        return _short(rooms, asked) if gate.outcome == "fail" else Keep("the guard's levers exclude it", _uncertain(gate))
    ceiling = min(_ceiling(each, policy) for each in rooms)
    if ceiling >= asked.most and default_fits(rooms, asked.most, margin_is_auto=policy.margin is None):
        return Keep("vLLM's default fits", _uncertain(gate))
    choice = _largest(rooms, min(ceiling, asked.least), least)
    if isinstance(choice, NoRoom) and gate.outcome != "fail" and _no_limits(policy):
        return Keep("vLLM's default may fit, nothing smaller would leave a KV cache", (Warn("no_margin", "vLLM's default leaves no margin here"),))
    return choice


def _no_limits(policy: Policy) -> bool:
    """Whether the operator set none of the limits that may refuse a launch which could work."""
    return policy.budget_bytes is None and policy.max_utilization is None and policy.min_kv_cache_bytes is None


def _ceiling(each: Room, policy: Policy) -> float:
    """The most that the operator lets the guard choose on this device."""
    by_budget = 1.0 if policy.budget_bytes is None else fraction_within(policy.budget_bytes, each.device.nvml_total_bytes)
    return min(by_budget, 1.0 if policy.max_utilization is None else policy.max_utilization)


def _largest(rooms: Sequence[Room], ceiling: float, least: LeastBudget) -> Emit | NoRoom:
    """The largest fraction that is safe on every device. What lies outside the budget is given up only as far as the least budget needs it."""
    fractions = []
    least_bytes = least.size_bytes
    for index, each in enumerate(rooms):
        budget = max(each.usable_bytes, min(least_bytes, each.usable_without_outside_bytes))
        if budget < least_bytes:
            beside = (Need("start overhead", each.start_overhead.likely), Need("margin", each.margin_bytes))
            return NoRoom(index, each.open_bytes, (*least.needs, *beside))
        fraction = min(ceiling, fraction_within(budget, each.device.nvml_total_bytes))
        granted = requested_bytes(each.device.nvml_total_bytes, fraction)
        if granted < least_bytes:
            return NoRoom(index, granted, least.needs, capped=True)
        fractions.append(fraction)
    limiting = fractions.index(min(fractions))
    return Emit(fractions[limiting], limiting, _given_up(rooms, least_bytes))


def _given_up(rooms: Sequence[Room], least_bytes: int) -> tuple[Warn, ...]:
    for each in rooms:
        if each.outside_budget_bytes and each.usable_bytes < least_bytes:
            mib = floor_mib(each.outside_budget_bytes)
            message = f"GPU {each.device.ordinal}: nothing is kept free for the {mib} MiB that vLLM adds beyond its budget (CUDA graphs); it may run out there"
            return (Warn("outside_budget_dropped", message),)
    return ()


def _short(rooms: Sequence[Room], asked: Asked) -> NoRoom:
    """The device on which the fixed value misses most."""
    shorts = [
        NoRoom(
            index,
            each.open_bytes,
            (
                Need(f"gpu_memory_utilization {format_fraction(asked.least)}", requested_bytes(cuda_total_bytes(each.device)[0], asked.least)),
                Need("start overhead at least", each.start_overhead.low),
            ),
        )
        for index, each in enumerate(rooms)
    ]
    return max(shorts, key=lambda short: short.need_bytes - short.have_bytes)


def _uncertain(gate: Gate) -> tuple[Warn, ...]:
    if gate.outcome != "uncertain" or gate.have_bytes is None or gate.need_bytes is None:
        return ()
    have, need = floor_mib(gate.have_bytes), floor_mib(gate.need_bytes)
    message = f"vLLM may refuse at its free-memory gate: {gate.detail} needs {need} MiB, about {have} MiB will be free"
    return (Warn("gate_uncertain", message),)


def share_text(rooms: Sequence[Room], emit: Emit, asked: Asked, policy: Policy, weights: Weights | None) -> str:
    """Why this fraction: the device that decides, its free memory, the margin, and what is left of the KV cache where the weights are known."""
    each = rooms[emit.limiting]
    total = each.device.nvml_total_bytes
    label = "host memory" if each.device.kind == "cpu" else f"GPU {each.device.ordinal}"
    parts = [f"{label}: {floor_mib(each.device.free_bytes)} of {floor_mib(total)} MiB free"]
    if each.device.claimed_bytes:
        parts.append(f"{floor_mib(each.device.claimed_bytes)} MiB claimed by other guards")
    parts.append(f"margin {floor_mib(each.margin_bytes)} MiB")
    if policy.budget_bytes is not None and fraction_within(policy.budget_bytes, total) <= emit.fraction:
        parts.append(f"budget {floor_mib(policy.budget_bytes)} MiB")
    if weights is not None:
        normal = requested_bytes(total, asked.most) - weights.share_bytes
        now = requested_bytes(total, emit.fraction) - weights.share_bytes
        if normal > now > 0:
            parts.append(f"KV pool about {max(1, now * 100 // normal)} % of normal")
    return ", ".join(parts)
