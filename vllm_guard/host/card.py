"""One card, through NVML calls: its memory, its MIG devices, and who is listed on it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from vllm_guard.facts import Gpu, GpuProcess, ProcessKind, UnreadableGpu
from vllm_guard.host.memory import read_host_memory
from vllm_guard.host.nvml_errors import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    SENSELESS,
    Call,
    CallFailedError,
    optional,
)
from vllm_guard.host.printable import printable

_MEMORY_V2: Final = 0x02000028  # nvmlMemory_v2: the version and the size of its struct
# The first kind wins where a pid is in several lists.
_LISTS: Final[tuple[tuple[str, ProcessKind], ...]] = (("MPSCompute", "mps"), ("Compute", "compute"), ("Graphics", "graphics"))
# Boards whose GPU has no memory of its own: NVML answers NOT_SUPPORTED and vLLM counts host memory.
_UNIFIED: Final = re.compile(r"\b(?:GB10|Thor|Orin|Tegra)\b")
_PID_MAX: Final = 1 << 22  # PID_MAX_LIMIT of the kernel


class _Memory(NamedTuple):
    total_bytes: int
    free_bytes: int
    reserved_bytes: int | None
    unified: bool = False


def read_card(call: Call, index: int) -> list[Gpu | UnreadableGpu]:
    """The card at this NVML index, or its MIG devices where MIG is on; processes carry pid, kind and bytes only."""
    uuid = name = None
    try:
        handle = call("nvmlDeviceGetHandleByIndex", index)
        name = _read_name(call, handle)
        uuid = call("nvmlDeviceGetUUID", handle)
        capability = optional(call, "nvmlDeviceGetCudaComputeCapability", handle)
        card = Gpu(index, uuid, name or "unknown", 0, 0, compute_capability=capability)
        mig_mode = optional(call, "nvmlDeviceGetMigMode", handle)
        if mig_mode and mig_mode[0]:
            return list(_read_slices(call, handle, card))
        return [_read_gpu(call, handle, card)]
    except CallFailedError as error:
        return [UnreadableGpu(index, uuid, name, f"cannot read memory of GPU {index}: {error.what}", error.fix)]


def _read_name(call: Call, handle: object) -> str | None:
    name = optional(call, "nvmlDeviceGetName", handle)
    return name and printable(name)


def _read_slices(call: Call, parent: object, card: Gpu) -> Iterator[Gpu | UnreadableGpu]:
    """The MIG devices of a card. Its own memory may be closed to a container, and then its total is None."""
    try:
        parent_total_bytes = _read_memory(call, parent, card.name).total_bytes
    except CallFailedError:
        parent_total_bytes = None
    slots = range(call("nvmlDeviceGetMaxMigDeviceCount", parent))
    handles = [handle for handle in (_slice_handle(call, parent, slot) for slot in slots) if handle is not None]
    if not handles:
        message = f"cannot read memory of GPU {card.nvml_index}: MIG mode is on and no MIG device is visible"
        fix = "create one with nvidia-smi mig -cgi PROFILE -C, or give one to this container"
        yield UnreadableGpu(card.nvml_index, card.uuid, card.name, message, fix)
    for handle in handles:
        uuid, name = None, _read_name(call, handle) or f"{card.name} MIG"
        try:
            uuid = call("nvmlDeviceGetUUID", handle)
            piece = replace(card, uuid=uuid, name=name, mig_parent_uuid=card.uuid, mig_parent_total_bytes=parent_total_bytes)
            yield _read_gpu(call, handle, piece)
        except CallFailedError as error:
            yield UnreadableGpu(card.nvml_index, uuid, name, f"cannot read memory of a MIG device of GPU {card.nvml_index}: {error.what}", error.fix)


def _slice_handle(call: Call, parent: object, slot: int) -> object | None:
    try:
        handle: object = call("nvmlDeviceGetMigDeviceHandleByIndex", parent, slot)
    except CallFailedError as error:
        # An empty slot, or a MIG device that belongs to another container.
        if error.code not in {NOT_FOUND, NO_PERMISSION}:
            raise
        return None
    return handle


def _read_gpu(call: Call, handle: object, card: Gpu) -> Gpu:
    """The card with its memory. Free is the least of before and after the list of processes: where one of them grows or shrinks between the calls, free
    memory and what is listed are never more together than they were at any moment. A promise less what is listed is taken from it.
    """
    memory = _read_memory(call, handle, card.name)
    processes, unreadable = _read_held(call, handle, memory.total_bytes)
    if processes:
        memory = min(memory, _read_memory(call, handle, card.name), key=lambda each: each.free_bytes)
    return replace(
        card,
        nvml_total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        driver_reserved_bytes=memory.reserved_bytes,
        unified=memory.unified,
        processes=processes,
        processes_unreadable=unreadable,
    )


def _read_memory(call: Call, handle: object, name: str) -> _Memory:
    """Total, free and reserved; never `used`, which counts the reserved part in one driver and not in another."""
    try:
        return _checked(call("nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2))
    except CallFailedError as error:
        if error.code not in {FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, NOT_SUPPORTED}:
            raise
    try:
        return _checked(call("nvmlDeviceGetMemoryInfo", handle))
    except CallFailedError as error:
        if error.code != NOT_SUPPORTED or not _UNIFIED.search(name):
            raise
    host = read_host_memory()
    return _Memory(host.total_bytes, host.available_bytes, None, unified=True)


def _checked(memory: Any) -> _Memory:
    if not 0 <= memory.free <= memory.total or memory.total == 0:
        raise CallFailedError(function="nvmlDeviceGetMemoryInfo", code=SENSELESS)
    return _Memory(memory.total, memory.free, getattr(memory, "reserved", None))


def _read_held(call: Call, handle: object, total_bytes: int) -> tuple[tuple[GpuProcess, ...], str | None]:
    """Who is listed, largest first, and why nobody is when the list cannot be read. A pid in several lists counts once, with its largest figure."""
    held: dict[int, GpuProcess] = {}
    for suffix, kind in _LISTS:
        try:
            listed = _read_list(call, suffix, handle)
        except CallFailedError as error:
            if kind == "compute":
                return (), error.what
            continue  # a driver may lack the lists of MPS clients and graphics
        for entry in listed:
            pid, used_bytes = entry.pid, entry.usedGpuMemory
            # Drivers 535.43 to 535.98 wrote longer records under the same version, so that every other field is garbage.
            if not 0 < pid <= _PID_MAX or (used_bytes or 0) > total_bytes:
                return (), "process list unreadable with this driver"
            seen = held.get(pid, GpuProcess(pid, kind, "unknown"))
            figures = [figure for figure in (seen.used_bytes, used_bytes) if figure is not None]
            held[pid] = replace(seen, used_bytes=max(figures, default=None))
    return tuple(sorted(held.values(), key=lambda process: (-(process.used_bytes or 0), process.pid))), None


def _read_list(call: Call, suffix: str, handle: object) -> Iterable[Any]:
    function = f"nvmlDeviceGet{suffix}RunningProcesses"
    try:
        return call(f"{function}_v3", handle)  # type: ignore[no-any-return]
    except CallFailedError as error:
        if error.code not in {INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND}:
            raise
        grew = error.code == INSUFFICIENT_SIZE
    return call(f"{function}_v3" if grew else f"{function}_v2", handle)  # type: ignore[no-any-return]
