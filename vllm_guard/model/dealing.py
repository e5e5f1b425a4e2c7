"""How lots of weights are dealt to pipeline stages and to the ranks of a stage: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_guard.model.config import text_config
from vllm_guard.model.feed_forward import expert_count
from vllm_guard.model.fields import Fields, LackingError
from vllm_guard.model.kv_kinds import LayerKind, layer_count, layer_kinds
from vllm_guard.model.lots import Lot
from vllm_guard.model.mixers import key_heads, query_heads
from vllm_guard.model.parallel import Parallel, held_bytes, layer_stages
from vllm_guard.model.parameters import tied
from vllm_guard.model.unknown import Unknown
from vllm_guard.release import Release

_MOST_RANKS: Final = 1 << 16
# Enough units for any number of ranks to share evenly.
_EVENLY: Final = 1 << 30
# From here on the default runner gives the towers to the first stage only.
_TOWERS_FIRST_SINCE: Final = Release(0, 30)


@dataclass(frozen=True, slots=True)
class Held:
    """What the fullest rank of a stage holds of one lot."""

    lot: Lot
    low: int
    likely: int
    high: int


@dataclass(frozen=True, slots=True)
class Dealer:
    """The stage and the KV heads of each layer, and what else decides who holds what."""

    parallel: Parallel
    stages: Sequence[int]
    key_heads: tuple[int, ...]
    query_heads: int
    experts: int
    one_table: bool
    towers_first: bool

    @property
    def layers(self) -> int:
        """Decoder layers of the whole model."""
        return len(self.stages)

    def deal(self, lots: Iterable[Lot]) -> list[list[Held]]:
        """What the fullest rank of each stage holds."""
        held: list[list[Held]] = [[] for _ in range(self.parallel.pipeline_parallel_size)]
        for lot in lots:
            share = Held(lot, *self._share(lot))
            for stage in self._homes(lot):
                held[stage].append(share)
        return held

    def _homes(self, lot: Lot) -> Sequence[int]:
        last = self.parallel.pipeline_parallel_size - 1
        if lot.layer is not None and lot.layer < self.layers:
            return (self.stages[lot.layer],)
        if lot.rule.home == "towers":
            return (0,) if self.towers_first else range(last + 1)
        if lot.rule.home == "first":
            # One table for both ends is there twice when they are on different stages.
            return (0, last) if last and self.one_table and lot.rule.dealing == "rows" else (0,)
        return (last,)

    def _share(self, lot: Lot) -> tuple[int, int, int]:
        ranks, rule = self.parallel.tensor_parallel_size, lot.rule
        if rule.part == "experts":
            units = self.experts if self.parallel.enable_expert_parallel and self.experts else _EVENLY
            return _dealt(lot, units, self.parallel.expert_ranks)
        if rule.home == "towers" or rule.dealing == "unclear":
            # Not every tower is sharded, and what has no known name may not be loaded at all.
            low, likely, _ = _dealt(lot, 1 if rule.dealing == "whole" or self.parallel.mm_encoder_tp_mode == "data" else _EVENLY, ranks)
            return 0 if rule.dealing == "unclear" else low, likely, lot.high
        keys = self.key_heads[lot.layer] if lot.layer is not None and lot.layer < self.layers else max(self.key_heads, default=1) if rule.further else 1
        if rule.dealing == "keys":
            return _dealt(lot, keys, ranks)
        if rule.dealing == "fused":
            heads, every = -(-self.query_heads // ranks) + 2 * -(-keys // ranks), self.query_heads + 2 * keys
            return -(-lot.low * heads // every), -(-lot.likely * heads // every), -(-lot.high * heads // every)
        return _dealt(lot, 1 if rule.dealing == "whole" else _EVENLY, ranks)


def _dealt(lot: Lot, units: int, ranks: int) -> tuple[int, int, int]:
    return held_bytes(lot.low, units, ranks), held_bytes(lot.likely, units, ranks), held_bytes(lot.high, units, ranks)


def _kinds(text: Mapping[str, Any]) -> tuple[LayerKind, ...] | Unknown:
    """One kind per layer; where the config names them in a way that is not known here all attend, which only decides how keys are shared."""
    kinds = layer_kinds(text)
    if not isinstance(kinds, Unknown):
        return kinds
    count = layer_count(text)
    everyone: LayerKind = "full"
    return count if isinstance(count, Unknown) else (everyone,) * count


def dealer_of(config: Mapping[str, Any], parallel: Parallel, release: Release | None) -> Dealer | Unknown:
    """The dealer of a model, or why there is none: a config without layers, more stages than layers."""
    text = Fields(text_config(config))
    kinds = _kinds(text.values)
    if isinstance(kinds, Unknown):
        return kinds
    sizes = (parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.data_parallel_size)
    if min(sizes) < 1 or max(sizes) > _MOST_RANKS or parallel.pipeline_parallel_size > len(kinds):
        return Unknown(f"{len(kinds)} layers cannot be dealt to {parallel.pipeline_parallel_size} stages")
    try:
        keys = tuple(1 if kind in {"state", "none"} else key_heads(text, kind, layer) for layer, kind in enumerate(kinds))
        queries = query_heads(text) if any(kind not in {"state", "none"} for kind in kinds) else 1
    except LackingError as lacking:
        return Unknown(str(lacking))
    return Dealer(
        parallel=parallel,
        stages=layer_stages(len(kinds), parallel),
        key_heads=keys,
        query_heads=queries,
        experts=expert_count(text),
        one_table=tied(config),
        towers_first=release is not None and release >= _TOWERS_FIRST_SINCE,
    )
