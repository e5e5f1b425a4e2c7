"""How vLLM's planner shares one pool of blocks among layers of several kinds: pure. Source: v1/core/kv_cache_utils.py get_kv_cache_groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from vllm_guard.model.kv_layers import KvLayers
from vllm_guard.model.kv_pages import Page, pages, unified
from vllm_guard.model.kv_setting import KvSetting
from vllm_guard.model.unknown import Unknown

_EVERYTHING_KEPT: Final = frozenset(("full", "mla", "indexer"))


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table: `page` says how many blocks a sequence takes, `stage_bytes` what one block costs on each pipeline stage."""

    page: Page
    stage_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Groups:
    """The plan of the whole model, and each kind of page as the layers ask for it, before any padding."""

    groups: tuple[Group, ...]
    asked: tuple[Group, ...]


def plan_groups(held: KvLayers, setting: KvSetting) -> Groups | Unknown:
    """The groups in the order of their first layer; none for a model that keeps nothing."""
    found = pages(held, setting)
    if isinstance(found, Unknown) or not found:
        return found if isinstance(found, Unknown) else Groups((), ())
    stages = _stages(held, setting)
    if not _shares_blocks(found, setting):
        found = _promoted(found)
    asked = tuple(_group(page, indices, stages) for page, indices in _by_page(found).items())
    if _one_kind([page for _, page in found]):
        total = tuple(sum(group.stage_bytes[stage] for group in asked) for stage in range(len(setting.stage_sizes(held.decoder_layers))))
        return Groups((Group(found[0][1], total),), asked)
    return Groups(tuple(_group(page, part, stages) for page, part in _parts(_by_page(unified(found)), setting)), asked)


def _stages(held: KvLayers, setting: KvSetting) -> Sequence[int]:
    """The first layer after each pipeline stage."""
    return tuple(accumulate(setting.stage_sizes(held.decoder_layers)))


def _group(page: Page, indices: Sequence[int], stages: Sequence[int]) -> Group:
    starts = (0, *stages[:-1])
    return Group(page, tuple(page.size_bytes * sum(start <= index < end for index in indices) for start, end in zip(starts, stages, strict=True)))


def _by_page(found: Sequence[tuple[int, Page]]) -> Mapping[Page, list[int]]:
    buckets: dict[Page, list[int]] = {}
    for index, page in found:
        buckets.setdefault(page, []).append(index)
    return buckets


def _shares_blocks(found: Sequence[tuple[int, Page]], setting: KvSetting) -> bool:
    """Whether the hybrid KV cache manager runs. Chunked attention switched it off from 0.10.1 to 0.12 (config/vllm.py, pull requests 21761 and 29627)."""
    if setting.hybrid_kv_cache_manager is not None:
        return setting.hybrid_kv_cache_manager
    chunked = any(page.kind == "chunked" for _, page in found)
    return not chunked or setting.since(0, 13) or not setting.since(0, 10, 1)


def _promoted(found: tuple[tuple[int, Page], ...]) -> tuple[tuple[int, Page], ...]:
    """Local layers beside full ones keep everything when the hybrid manager is off."""
    if not any(page.kind == "full" for _, page in found):
        return found
    return tuple((index, replace(page, kind="full", bound=0) if page.kind in ("sliding", "chunked") else page) for index, page in found)


def _one_kind(kept: Sequence[Page]) -> bool:
    """Whether all layers need the same number of blocks, and so share one table."""
    kinds = {page.kind for page in kept}
    if kinds <= _EVERYTHING_KEPT:
        return len({page.block_size for page in kept}) == 1
    return len(kinds) == 1 and len({(page.block_size, page.bound) for page in kept}) == 1


def _parts(buckets: Mapping[Page, list[int]], setting: KvSetting) -> list[tuple[Page, list[int]]]:
    """Groups of equal size: as many layers as the rarest kind has, or as the commonest where that is less than half more (from 0.11)."""
    counts = [len(indices) for indices in buckets.values()]
    size = max(counts) if setting.since(0, 11) and max(counts) < 1.5 * min(counts) else min(counts)
    parts: list[tuple[Page, list[int]]] = []
    for page, indices in buckets.items():
        number = -(-len(indices) // size)
        parts.extend((page, indices[first::number]) for first in range(number))
    return parts
