"""What would make it fit: at most two actions with numbers, least harmful first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from vllm_guard.devices import Device
from vllm_guard.facts import Gpu
from vllm_guard.plan.budget import Room, format_fraction, fraction_within
from vllm_guard.plan.case import Case
from vllm_guard.plan.decision import RefusalReason
from vllm_guard.plan.what_if import smaller_requests
from vllm_guard.release import Release, parse_release
from vllm_guard.units import MIB, ceil_mib, floor_mib

MOST_FIXES: Final = 2
# Up to here vLLM reads the entries of CUDA_VISIBLE_DEVICES as integers (platforms/cuda.py).
_LAST_WITHOUT_UUIDS: Final = Release(0, 21, 0)


def fixes_for(case: Case, reason: RefusalReason, room: Room, need_free_bytes: int) -> tuple[str, ...]:
    """Actions that the reader can carry out on this host; `need_free_bytes` is what the device would have to have free."""
    return tuple(_candidates(case, reason, room, need_free_bytes))[:MOST_FIXES]


def _candidates(case: Case, reason: RefusalReason, room: Room, need_free_bytes: int) -> Iterator[str]:
    if reason in {"context_too_long", "too_many_sequences"}:
        yield from smaller_requests(case)
        yield "use more cards (--tensor-parallel-size)"
        return
    if reason == "model_too_large":
        yield from smaller_requests(case)
        yield "use more cards (--tensor-parallel-size), or serve a quantized build"
        return
    fraction = fraction_within(room.usable_bytes, room.device.nvml_total_bytes)
    least = case.least_budget()
    if case.asked.given and reason == "gpu_busy" and fraction > 0 and room.usable_bytes >= sum(need.size_bytes for need in least.needs):
        yield f"--gpu-memory-utilization {format_fraction(fraction)} or less"
    most = room.usable_bytes - (case.demand.beside_pool.likely if case.demand.beside_pool is not None else case.weights_floor_bytes)
    if case.pool_bytes is not None and 0 < most // MIB * MIB < case.pool_bytes:
        yield f"--kv-cache-memory-bytes {most // MIB}M or less"
    if case.pool_bytes is not None and need_free_bytes > room.device.nvml_total_bytes:
        return  # more than there is, whoever ended
    missing_bytes = max(0, need_free_bytes - room.open_bytes)
    yield from _end_orphan(room.device)
    if room.device.kind == "cpu":
        yield f"free {ceil_mib(missing_bytes)} MiB of host memory"
        yield from smaller_requests(case)
        return
    other = _other_card(case, need_free_bytes)
    if other is not None:
        yield other
    yield from _stop_largest(room.device, missing_bytes)
    yield from smaller_requests(case)


def _end_orphan(device: Device) -> Iterator[str]:
    """The command that ends the largest orphan, with all that goes with it."""
    command, freed_bytes = _largest_orphan(device)
    if command is not None:
        yield f"end the orphaned engine: {command}" + (f" (frees {floor_mib(freed_bytes)} MiB)" if freed_bytes else "")


def _largest_orphan(device: Device) -> tuple[str | None, int]:
    freed_bytes: Counter[str] = Counter()
    for process in device.processes:
        if process.orphan and process.end_command is not None:
            freed_bytes[process.end_command] += process.used_bytes or 0
    return max(freed_bytes.items(), key=lambda item: item[1], default=(None, 0))


def _stop_largest(device: Device, missing_bytes: int) -> Iterator[str]:
    """Whose end would free most; nobody's where the end of an orphan is enough."""
    command, freed_bytes = _largest_orphan(device)
    if command is not None and freed_bytes >= missing_bytes:
        return
    holders = [process for process in device.processes if process.used_bytes and (command is None or process.end_command != command)]
    largest = max(holders, key=lambda process: process.used_bytes or 0, default=None)
    if largest is None:
        yield f"free {ceil_mib(missing_bytes)} MiB on GPU {device.ordinal}; whoever holds it is not visible from here"
        return
    frees = f"pid {largest.pid} (frees {floor_mib(largest.used_bytes or 0)} MiB)"
    yield f"wait for the end of {frees}" if largest.exiting else f"stop {frees}"


def _other_card(case: Case, need_free_bytes: int) -> str | None:
    """How to take the freest card that has enough, for a command of one rank; named as this release understands it."""
    used = {each.device.uuid for each in case.rooms}
    cards = [gpu for gpu in case.facts.gpus if isinstance(gpu, Gpu) and gpu.uuid not in used and gpu.free_bytes >= need_free_bytes]
    if case.chosen.world > 1 or not cards:
        return None
    best = max(cards, key=lambda gpu: gpu.free_bytes)
    release = parse_release(case.facts.vllm_version)
    by_index = release is not None and release <= _LAST_WITHOUT_UUIDS
    entry = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={best.nvml_index}" if by_index else f"CUDA_VISIBLE_DEVICES={best.uuid}"
    return f"{entry} ({best.name}, {floor_mib(best.free_bytes)} MiB free)"
