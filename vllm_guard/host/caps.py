"""Memory limits below the card that NVML may not show."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from vllm_guard.facts import Gpu, Warn
from vllm_guard.units import GIB, KIB, MIB

_MPS: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_HAMI: Final = "CUDA_DEVICE_MEMORY_LIMIT"
_LIMIT: Final = re.compile(r"([0-9]{1,18})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_FACTORS: Final = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes by CUDA ordinal (as text) or UUID; the empty key holds for every device that has none of its own."""

    mps: Mapping[str, int]
    hami: Mapping[str, int]
    warnings: tuple[Warn, ...]


def parse_limits(environment: Mapping[str, str]) -> Limits:
    """The limits that the environment sets, and a warning for each variable: one that was counted, or one that could not be read and was ignored.

    MPS writes `0=4G,1=8192M` or one size for all; HAMi writes `4g` into CUDA_DEVICE_MEMORY_LIMIT_<ordinal> or, for all, into CUDA_DEVICE_MEMORY_LIMIT.
    Units are binary; zero is no limit.
    """
    mps: dict[str, int] = {}
    hami: dict[str, int] = {}
    warnings: list[Warn] = []
    for name, text in sorted(environment.items()):
        if name == _MPS:
            found = _parse_pairs(text)
            mps.update(found or {})
        elif name == _HAMI or name.startswith(f"{_HAMI}_"):
            size_bytes = _parse_limit(text)
            found = None if size_bytes is None else {name[len(_HAMI) + 1 :]: size_bytes}
            hami.update(found or {})
        else:
            continue
        if found is None:
            warnings.append(Warn("memory_limit_unreadable", f"{name}={text[:80]!r} is not a memory limit that the guard can read: it was not counted"))
        elif any(found.values()):
            warnings.append(Warn("memory_limit", f"{name}={text[:80]!r} limits GPU memory below what NVML may show: the guard counts with it"))
    return Limits(mps, hami, tuple(warnings))


def capped(gpu: Gpu, ordinals: Collection[int], limits: Limits) -> Gpu:
    """The card as vLLM will find it under these limits, the smallest one where it may be any of several ordinals.

    MPS: CUDA refuses allocations beyond the limit and still reports the whole card, so the total that vLLM multiplies stays and only free is capped;
    if a driver reports the limit as total too, the chosen fraction is too small, never too large. HAMi hooks CUDA and NVML, so vLLM multiplies the
    slice: total and free are capped, which changes nothing where the hook already did it, and the slice has no driver reserve of its own.
    """
    pinned = _smallest(limits.mps, gpu.uuid, ordinals)
    if pinned is not None:
        gpu = replace(gpu, free_bytes=min(gpu.free_bytes, pinned))
    share = _smallest(limits.hami, gpu.uuid, ordinals)
    if share is not None and share < gpu.nvml_total_bytes:
        gpu = replace(gpu, nvml_total_bytes=share, free_bytes=min(gpu.free_bytes, share), driver_reserved_bytes=0)
    return gpu


def _smallest(table: Mapping[str, int], uuid: str, ordinals: Collection[int]) -> int | None:
    found = [table.get(str(ordinal), table.get(uuid, table.get("", 0))) for ordinal in ordinals]
    return min((size_bytes for size_bytes in found if size_bytes), default=None)


def _parse_pairs(text: str) -> dict[str, int] | None:
    pairs: dict[str, int] = {}
    for part in text.split(","):
        device, equals, size = part.rpartition("=")
        limit = _parse_limit(size)
        if limit is None or (equals and not device.strip()):
            return None
        pairs[device.strip()] = limit
    return pairs


def _parse_limit(text: str) -> int | None:
    match = _LIMIT.fullmatch(text.strip())
    return None if match is None else int(match[1]) * _FACTORS[match[2].lower()]
