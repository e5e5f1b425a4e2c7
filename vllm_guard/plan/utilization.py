"""Which `gpu_memory_utilization` the launch gets: the value asked for where it works, else the largest that is safe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_guard.facts import Warn
from vllm_guard.plan.budget import Room, cuda_total_bytes, default_fits, format_fraction, fraction_within
from vllm_guard.plan.choice import Asked, Choice, Emit, Keep, NoRoom
from vllm_guard.plan.decision import Gate, Need
from vllm_guard.plan.largest import Least, Weights, barest, given_up, largest
from vllm_guard.plan.policy import Policy
from vllm_guard.units import floor_mib, requested_bytes


@dataclass(frozen=True, slots=True)
class Options:
    """What there is to choose from. `gate` is gate 1 judged at the value asked for; `beside_pool_bytes` what the budget most likely loses before the KV
    cache, None where that is not known or the fraction does not size it.
    """

    rooms: tuple[Room, ...]
    asked: Asked
    gate: Gate
    policy: Policy
    weights: Weights | None
    beside_pool_bytes: int | None
    world: int
    interchangeable: bool

    def largest(self, least: Least) -> Emit | NoRoom:
        """The largest safe fraction below what was asked and the operator's ceilings."""
        ceiling = min(self.asked.least, *(_ceiling(each, self.policy) for each in self.rooms))
        return largest(self.rooms, ceiling, least, world=self.world, interchangeable=self.interchangeable)


def choose_utilization(options: Options, least: Least) -> Choice:
    """Keep what was asked where that works; else the largest safe fraction; else no room."""
    asked, gate, policy = options.asked, options.gate, options.policy
    may_change = "utilization" in policy.levers and not (asked.given and policy.on_explicit == "keep")
    if not may_change or (asked.given and gate.outcome != "fail"):
        because = "given by the user" if asked.given else "the guard's levers exclude it"
        return _short(options.rooms, asked) if gate.outcome == "fail" else Keep(because, _uncertain(gate))
    if not asked.given and _default_stays(options):
        return Keep("vLLM's default fits", _uncertain(gate))
    choice: Choice = options.largest(least)
    if isinstance(choice, NoRoom) and gate.outcome != "fail" and _no_limits(policy):
        choice = _without_margin(options)
    if isinstance(choice, Emit) and choice.fraction >= asked.most:
        return Keep("vLLM's default fits", choice.warnings)
    return choice


def _default_stays(options: Options) -> bool:
    asked, policy = options.asked, options.policy
    within_limits = all(_ceiling(each, policy) >= asked.most for each in options.rooms)
    return within_limits and default_fits(options.rooms, asked.most, margin_is_auto=policy.margin is None)


def _without_margin(options: Options) -> Emit | Keep:
    """A default that may pass gate 1 is never refused for what the guard would like to keep free: everything that is open, or the default itself."""
    bare = tuple(replace(each, margin_bytes=0, outside_budget_bytes=0) for each in options.rooms)
    choice = replace(options, rooms=bare).largest(barest(options.weights))
    warning = Warn("no_margin", "nothing is kept free here: what remains is hardly enough for the model")
    if isinstance(choice, Emit):
        return replace(choice, warnings=(*choice.warnings, warning))
    return Keep("vLLM's default may fit, nothing smaller would leave a KV cache", (warning,))


def _no_limits(policy: Policy) -> bool:
    """Whether the operator set none of the limits that may refuse a launch which could work."""
    limits = (policy.margin, policy.budget_bytes, policy.max_utilization, policy.min_kv_cache_bytes)
    return all(limit is None for limit in limits) and policy.min_utilization <= 0


def _ceiling(each: Room, policy: Policy) -> float:
    """The most that the operator lets the guard choose on this device, four decimals, rounded down."""
    by_budget = 1.0 if policy.budget_bytes is None else fraction_within(policy.budget_bytes, each.device.nvml_total_bytes)
    return min(by_budget, 1.0 if policy.max_utilization is None else math.floor(policy.max_utilization * 10_000) / 10_000)


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


def because_text(options: Options, emit: Emit) -> str:
    """Why this fraction: the device that decides, its free memory, the margin, and what is left of the KV cache where the weights are known."""
    each, policy = options.rooms[emit.limiting], options.policy
    total = each.device.nvml_total_bytes
    parts = [f"{each.label}: {floor_mib(each.device.free_bytes)} of {floor_mib(total)} MiB free"]
    if each.device.claimed_bytes:
        parts.append(f"{floor_mib(each.device.claimed_bytes)} MiB claimed by other guards")
    parts.append(f"margin {floor_mib(each.margin_bytes - given_up(each, emit.fraction)[1])} MiB")
    if policy.budget_bytes is not None and fraction_within(policy.budget_bytes, total) <= emit.fraction:
        parts.append(f"budget {floor_mib(policy.budget_bytes)} MiB")
    if options.beside_pool_bytes is not None:
        normal = requested_bytes(total, options.asked.most) - options.beside_pool_bytes
        now = requested_bytes(total, emit.fraction) - options.beside_pool_bytes
        if normal > now > 0:
            parts.append(f"KV pool about {max(1, now * 100 // normal)} % of normal")
    return ", ".join(parts)
