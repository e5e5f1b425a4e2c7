"""What the weights take of each GPU: pure. From the headers of the weight files, else from the config alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from vllm_guard.model.config import text_config
from vllm_guard.model.dealing import Held, dealer_of
from vllm_guard.model.fields import Fields
from vllm_guard.model.lots import Lot, Wanted, config_lots, rotary_bytes, stored_lots
from vllm_guard.model.parallel import Parallel
from vllm_guard.model.parameters import familiar_decoder
from vllm_guard.model.storage import Scheme, padding, scheme_of
from vllm_guard.model.tensors import Headers
from vllm_guard.model.towers import familiar, skipped
from vllm_guard.model.unknown import Unknown
from vllm_guard.release import Release
from vllm_guard.units import MIB

_FOUR_BYTES: Final = frozenset(("float32", "float"))
_TOWERS_OFFLOADED_SINCE: Final = Release(0, 33)
_PARTS: Final = ("embeddings", "attention", "mlp", "experts", "norms", "lm_head", "vision", "audio", "further tokens", "other")
# Methods whose tensors stay as they are stored; the others are repacked, unpacked or padded at load.
_AS_STORED: Final = frozenset(("fp8",))
# What loading takes beside the weights: repacking, and what the allocator rounds up. Recorded starts lie between 0 and 2 % above the tensors.
_ABOVE_FRACTION: Final = 0.02
_ABOVE_BYTES: Final = 128 * MIB
_FAMILIAR_FRACTION: Final = 0.03
_STRANGE_FRACTION: Final = 0.25


@dataclass(frozen=True, slots=True)
class Loading:
    """What the command says about loading, as vLLM spells it; `limit_mm_per_prompt` by kind of item, `pooling` for models that embed or score."""

    release: Release | None = None
    dtype: str | None = None
    quantization: str | None = None
    load_format: str | None = None
    cpu_offload_bytes: int = 0
    language_model_only: bool = False
    limit_mm_per_prompt: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    pooling: bool = False
    predicts_further: bool = False


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of the weights on the fullest GPU of a pipeline stage, without what is offloaded.

    `low` is a bound from below, `likely` what "Model loading took" says. `parts` add up to `likely` plus `offloaded_bytes`. `offloadable_bytes` is
    all that cpu_offload_gb can ever move. `exact`: headers, cast and sharding leave nothing open.
    """

    low: int
    likely: int
    high: int
    source: Literal["computed", "estimated"]
    stage: int
    parts: tuple[tuple[str, int], ...]
    offloadable_bytes: int
    offloaded_bytes: int = 0
    exact: bool = False


def weigh(config: Mapping[str, Any], headers: Headers | None, parallel: Parallel, loading: Loading) -> WeightBytes | Unknown:
    """The weights of one GPU, or why they are not known. Source: "computed" from headers, "estimated" from the config.

    Without files the bounds are 3 % wide for families whose layers are known here and a quarter for others. Of 61 recorded starts (0.9.2 to 0.32,
    one to four GPUs, 13 of them quantized) 54 loaded within the bounds and within 2.5 % of `likely`; the records of the other 7 leave out that a
    pooling model was served, or that no item of any kind was allowed.
    """
    if "gguf" in {loading.load_format, loading.quantization} or loading.load_format == "ipc_cache":
        return Unknown("the weights are in a GGUF file" if loading.load_format != "ipc_cache" else "the weights are those of another process")
    text = text_config(config)
    asked = loading.load_format if loading.load_format == "bitsandbytes" else loading.quantization
    scheme = scheme_of(config, text, asked)
    if isinstance(scheme, Unknown) and (headers is None or not _is_quantized(config, text)):
        return scheme
    dealer = dealer_of(config, parallel, loading.release)
    if isinstance(dealer, Unknown):
        return dealer
    known = scheme if isinstance(scheme, Scheme) else None
    wanted = _wanted(config, known, parallel, loading)
    lots = config_lots(config, wanted) if headers is None else stored_lots(headers, config, dealer.layers, wanted)
    if isinstance(lots, Unknown):
        return lots
    weighed = _weighed(dealer.deal(lots), parallel.stage, rotary_bytes(config, wanted.dtype_bytes), loading)
    if headers is None:
        return _widened(weighed, _FAMILIAR_FRACTION if familiar_decoder(config) and familiar(config) else _STRANGE_FRACTION)
    as_stored = scheme is None or (isinstance(scheme, Scheme) and not scheme.online and scheme.method in _AS_STORED)
    return replace(weighed, source="computed", exact=as_stored and _settled(lots, parallel, loading))


def _is_quantized(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    """Whether the checkpoint is quantized already: then its tensors say what they take, whatever the method."""
    return any(isinstance(part.get(key), dict) for part in (config, text) for key in ("quantization_config", "compression_config"))


def _settled(lots: Sequence[Lot], parallel: Parallel, loading: Loading) -> bool:
    """Whether the rules leave nothing open: who holds a lot, what of it is loaded, and as what, but for a thousandth (states in 32 bits)."""
    shared = parallel.tensor_parallel_size > 1 or parallel.pipeline_parallel_size > 1
    clear = not any(lot.rule.dealing == "unclear" or (lot.rule.home == "towers" and shared) for lot in lots)
    return clear and not loading.cpu_offload_bytes and sum(lot.high - lot.low for lot in lots) * 1000 <= sum(lot.low for lot in lots)


def _wanted(config: Mapping[str, Any], scheme: Scheme | None, parallel: Parallel, loading: Loading) -> Wanted:
    text = Fields(text_config(config))
    inner = text.number("moe_intermediate_size", "intermediate_size")
    slices = 1 if parallel.enable_expert_parallel else parallel.expert_ranks
    return Wanted(
        dtype_bytes=4 if loading.dtype in _FOUR_BYTES else 2,
        scheme=scheme,
        skipped=skipped(config, loading.release, loading.limit_mm_per_prompt, language_model_only=loading.language_model_only),
        pooling=loading.pooling,
        predicts_further=loading.predicts_further,
        release=loading.release,
        expert_slices=slices,
        padding=padding(scheme, inner, text.number("hidden_size"), slices),
    )


def _weighed(stages: Sequence[Sequence[Held]], stage: int | None, buffer_bytes: int, loading: Loading) -> WeightBytes:
    """One stage: the one asked for, or the one that likely holds most."""
    fullest = max(range(len(stages)), key=lambda index: sum(held.likely for held in stages[index]))
    chosen = stage if stage is not None and 0 <= stage < len(stages) else fullest
    holdings = stages[chosen]
    movable = [held for held in holdings if _is_movable(held.lot, loading.release)]
    offloadable = sum(held.likely for held in movable)
    moved = min(loading.cpu_offload_bytes, offloadable)
    # Parameters move one by one until the budget is used up: the last one may lie beyond it.
    most_moved = min(moved + max((held.high for held in movable), default=0), sum(held.low for held in movable)) if moved else 0
    parts = {part: sum(held.likely for held in holdings if _part(held.lot) == part) for part in _PARTS}
    parts["other"] += buffer_bytes
    likely = sum(parts.values()) - moved
    high = sum(held.high for held in holdings) + buffer_bytes - moved
    return WeightBytes(
        low=sum(held.low for held in holdings) - most_moved,
        likely=likely,
        high=high + int(high * _ABOVE_FRACTION) + _ABOVE_BYTES,
        source="estimated",
        stage=chosen,
        parts=tuple((part, size_bytes) for part, size_bytes in parts.items() if size_bytes),
        offloadable_bytes=offloadable,
        offloaded_bytes=moved,
    )


def _part(lot: Lot) -> str:
    return "further tokens" if lot.rule.further else lot.rule.part


def _is_movable(lot: Lot, release: Release | None) -> bool:
    """Decoder layers only, and towers in the newest releases (model_executor/models/utils.py make_layers)."""
    towers = release is not None and release >= _TOWERS_OFFLOADED_SINCE
    return lot.layer is not None or (towers and lot.rule.home == "towers")


def _widened(weighed: WeightBytes, fraction: float) -> WeightBytes:
    """The same with bounds as far apart as an estimate needs."""
    return replace(weighed, low=int(weighed.low * (1 - fraction)), high=int(weighed.high * (1 + fraction)))
