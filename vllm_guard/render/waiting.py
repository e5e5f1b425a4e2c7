"""A moment of a wait as one line: what is missing, and who holds it."""

from __future__ import annotations

from vllm_guard.command.mask import mask_text
from vllm_guard.devices import Device
from vllm_guard.facts import GpuProcess
from vllm_guard.plan.decision import Decision, Launch, Refusal, Unmeasured
from vllm_guard.plan.gap import Gap, gap
from vllm_guard.render.devices import device_label, plain
from vllm_guard.render.text import summary
from vllm_guard.units import ceil_mib, floor_mib


def missing_text(decision: Decision, goal: Launch | None, *, fits: bool) -> str:
    """What is waited for: the gap on the worst device in MiB with its largest holder, a threshold, or a device that cannot be read."""
    return plain(mask_text(_missing_text(decision, goal, fits=fits)))


def _missing_text(decision: Decision, goal: Launch | None, *, fits: bool) -> str:
    if fits:
        return "what was asked fits once free memory is steady"
    if isinstance(decision, Unmeasured):
        return decision.message
    missing = missing_of(decision, goal)
    return summary(decision) if missing is None else _gap_text(missing)


def missing_of(decision: Decision, goal: Launch | None) -> Gap | None:
    """The gap, where free memory is what is missing."""
    by_threshold = isinstance(decision, Refusal) and decision.reason in {"below_min_free", "competitors"}
    return None if isinstance(decision, Unmeasured) or by_threshold else gap(decision, goal)


def largest_holder(device: Device) -> GpuProcess | None:
    """Who holds most of a device, as far as the driver tells."""
    return max(device.processes, key=lambda process: process.used_bytes or 0, default=None)


def _gap_text(missing: Gap) -> str:
    have, need = floor_mib(missing.have_bytes), ceil_mib(missing.need_bytes)
    claimed_bytes = missing.plan.device.claimed_bytes
    beside = f" beside {floor_mib(claimed_bytes)} MiB claimed by other guards" if claimed_bytes else ""
    sizes = f"has {have} MiB free{beside}, --gpu-memory-utilization {missing.gpu_memory_utilization:.4g} needs about {need} MiB (short by {need - have} MiB)"
    return f"{device_label(missing.plan)} {sizes}{_holder_text(largest_holder(missing.plan.device))}"


def _holder_text(holder: GpuProcess | None) -> str:
    if holder is None:
        return ""
    used = "an unknown amount" if holder.used_bytes is None else f"{floor_mib(holder.used_bytes)} MiB"
    who = holder.command or holder.name
    return f", pid {holder.pid}{'' if who == 'unknown' else f' ({who})'} holds {used}"
