"""Waiting for free memory to become steady: a server that is being torn down gives its memory back over seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from vllm_guard.devices import Device
from vllm_guard.facts import Facts
from vllm_guard.plan.decision import Assessment, Decision, DevicePlan, Launch, Refusal, Unmeasured
from vllm_guard.units import MIB, floor_mib

AUTO_SECONDS: Final = 15.0
_INTERVAL_SECONDS: Final = 0.5
STEADY_SAMPLES: Final = 3
_STEADY_BYTES: Final = 64 * MIB
_MUCH_LESS_FRACTION: Final = 0.8
_SILENT_SECONDS: Final = 2.0


def should_settle(decision: Decision) -> bool:
    """Whether somebody on a chosen card may be leaving: a vLLM, orphaned or exiting holder, a result far under what was asked, or a refusal on a used card."""
    match decision:
        case Unmeasured():
            return False
        case Refusal(reason=reason, assessment=assessment):
            return reason != "model_too_large" and any(_is_used(plan) for plan in assessment.devices)
        case Launch(assessment):
            return _has_leaving_holder(assessment) or _is_much_less(assessment)


def _is_used(plan: DevicePlan) -> bool:
    return plan.device.nvml_total_bytes - (plan.device.driver_reserved_bytes or 0) - plan.device.free_bytes > _STEADY_BYTES


def _has_leaving_holder(assessment: Assessment) -> bool:
    return any(process.vllm or process.orphan or process.exiting for plan in assessment.devices for process in plan.device.processes)


def _is_much_less(assessment: Assessment) -> bool:
    changes = [change for change in assessment.changes if change.dest == "gpu_memory_utilization"]
    return any(float(change.after) < _MUCH_LESS_FRACTION * float(change.before or 1) for change in changes)


@dataclass(frozen=True, slots=True)
class World:
    """What settling needs of the outside: a reading, the devices that matter in one, time, and a place for a progress line."""

    read: Callable[[], Facts]
    devices: Callable[[Facts], Sequence[Device]]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    progress: Callable[[str], None]


def settle(first: Facts, at_most_seconds: float, world: World) -> Facts:
    """The first reading that agrees with the two before it within 64 MiB on every device, none of which an ended process still holds; or the last one
    when the time is over.
    """
    began, told = world.clock(), False
    facts, devices = first, world.devices(first)
    samples = [free_bytes(devices)]
    while (_is_leaving(devices) or not is_steady(samples)) and world.clock() - began < at_most_seconds:
        world.sleep(_INTERVAL_SECONDS)
        facts = world.read()
        devices = world.devices(facts)
        samples = [*samples[1 - STEADY_SAMPLES :], free_bytes(devices)]
        if not told and world.clock() - began >= _SILENT_SECONDS:
            told = True
            free = ", ".join(f"{floor_mib(size)} MiB" for size in samples[-1]) or "unknown"
            world.progress(f"free memory is changing ({free} free now), waiting up to {round(at_most_seconds, 1):g} s until it is steady")
    return facts


def free_bytes(devices: Sequence[Device]) -> list[int]:
    """A sample: what each device has free."""
    return [device.free_bytes for device in devices]


def _is_leaving(devices: Sequence[Device]) -> bool:
    """Whether a process that has ended still holds memory: what is free now is not the end."""
    return any(process.exiting for device in devices for process in device.processes)


def is_steady(samples: Sequence[Sequence[int]]) -> bool:
    """Whether there are enough samples and every device's agree within 64 MiB."""
    if len(samples) < STEADY_SAMPLES or len({len(sample) for sample in samples}) != 1:
        return False
    return all(max(values) - min(values) <= _STEADY_BYTES for values in zip(*samples, strict=True))
