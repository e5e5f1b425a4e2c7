"""What would make it fit: at most two actions with numbers, least harmful first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_guard.facts import Facts, Gpu, GpuProcess
from vllm_guard.plan.budget import Room, format_fraction, fraction_within
from vllm_guard.plan.decision import RefusalReason
from vllm_guard.units import floor_mib

_MOST_FIXES = 2


def fixes_for(reason: RefusalReason, room: Room, need_free_bytes: int, facts: Facts, *, given: bool) -> tuple[str, ...]:
    """Actions that the reader can carry out on this host; `need_free_bytes` is what the device would have to have free."""
    return tuple(_candidates(reason, room, need_free_bytes, facts, given=given))[:_MOST_FIXES]


def _candidates(reason: RefusalReason, room: Room, need_free_bytes: int, facts: Facts, *, given: bool) -> Iterator[str]:
    if reason == "model_too_large":
        yield "use more cards (--tensor-parallel-size), or serve a quantized build"
        return
    if given and reason == "gpu_busy" and room.usable_bytes > 0:
        fraction = fraction_within(room.usable_bytes, room.device.nvml_total_bytes)
        if fraction > 0:
            yield f"--gpu-memory-utilization {format_fraction(fraction)} or less"
    holders = _largest_holders(room)
    if room.device.kind == "cpu":
        yield f"free {floor_mib(max(0, need_free_bytes - room.open_bytes))} MiB of host memory"
        return
    free_card = _card_with(facts, room, need_free_bytes)
    if free_card is not None:
        yield f"CUDA_VISIBLE_DEVICES={free_card.uuid} ({free_card.name}, {floor_mib(free_card.free_bytes)} MiB free)"
    if holders:
        biggest = holders[0]
        yield f"stop pid {biggest.pid} (frees {floor_mib(biggest.used_bytes or 0)} MiB), or wait until it ends"
    else:
        yield f"free memory on GPU {room.device.ordinal}; whoever holds it is not visible from here"


def _largest_holders(room: Room) -> Sequence[GpuProcess]:
    known = [process for process in room.device.processes if process.used_bytes]
    return sorted(known, key=lambda process: process.used_bytes or 0, reverse=True)


def _card_with(facts: Facts, room: Room, need_free_bytes: int) -> Gpu | None:
    """The card with the most free memory that has enough, other than this one; cards in use by this command are not better, so the first choice only."""
    cards = [gpu for gpu in facts.gpus if isinstance(gpu, Gpu) and gpu.uuid != room.device.uuid and gpu.free_bytes >= need_free_bytes]
    return max(cards, key=lambda gpu: gpu.free_bytes, default=None)
