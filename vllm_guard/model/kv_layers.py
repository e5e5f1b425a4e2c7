"""Which layers of a model keep key-value memory or a state, and of what shape, before any parallelism: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from vllm_guard.model.config import _positive_int, text_config
from vllm_guard.model.kv_kinds import MOST_LAYERS, LayerKind, layer_count, layer_kinds
from vllm_guard.model.kv_shapes import Attention, attention_shape, head_size
from vllm_guard.model.kv_states import State, read_state
from vllm_guard.model.unknown import Unknown
from vllm_guard.release import Release

# Caches of a form of their own, or attention over an encoder that this release keeps elsewhere.
_OWN_CACHES: Final = {
    "deepseek_v4": "DeepSeek-V4 keeps compressed caches of several page sizes",
    "deepseek_v41": "DeepSeek-V4 keeps compressed caches of several page sizes",
    "deepseek_ref": "DeepSeek-V4 keeps compressed caches of several page sizes",
    "minimax_m3": "MiniMax-M3 keeps an index cache beside its attention",
    "longcat_flash": "LongCat-Flash attends twice in every layer",
    "bailing_hybrid": "Bailing's hybrid layers are not modelled",
    "zamba2": "Zamba2 shares its attention blocks between layers",
    "plamo2": "PLaMo 2's layers are not modelled",
    "qwen4_exp": "Qwen4's caches are not modelled",
    "dots3_note": "dots3's caches are not modelled",
    "voxtral_realtime": "Voxtral Realtime keeps a cache for its audio encoder too",
    "mllama": "cross attention to images is not modelled",
}
_ENCODERS: Final = ("bert", "roberta", "modernbert", "nomic_bert", "xlm-roberta", "distilbert", "electra", "gte", "new", "siglip", "clip")
Layer = Attention | State


@dataclass(frozen=True, slots=True)
class KvLayers:
    """The layers that keep something, in order; `decoder_layers` counts all of them, because pipeline stages are cut through all. `sparse`: DeepSeek's
    sparse attention, whose cache layout depends on more than the dtype.
    """

    decoder_layers: int
    layers: tuple[Layer, ...]
    sparse: bool = False


def read_layers(config: Mapping[str, Any], release: Release | None) -> KvLayers | Unknown:
    """What every decoder layer keeps, or why that cannot be told; never raises. A layer that shares another's cache and every encoder layer keep nothing.

    Sources: model_executor/models/*.py, model_executor/layers/attention/*.py get_kv_cache_spec.
    """
    text = text_config(config)
    for part in (config, text):
        reason = _OWN_CACHES.get(str(part.get("model_type")))
        if reason is not None:
            return Unknown(reason)
    if text.get("compress_ratios"):
        return Unknown(_OWN_CACHES["deepseek_v4"])
    if _attends_both_ways(config, text):
        count = layer_count(text)
        return count if isinstance(count, Unknown) else KvLayers(count, ())
    if config.get("is_encoder_decoder") is True or text.get("model_type") == "whisper":
        return _encoder_decoder(text)
    if isinstance(text.get("block_configs"), list):
        return _deci(text)
    return _decoder(text, release)


def _attends_both_ways(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    """Encoders keep nothing between steps (AttentionType.ENCODER_ONLY)."""
    if str(config.get("model_type")) in _ENCODERS:
        return True
    return text.get("is_causal") is False or text.get("use_bidirectional_attention") in (True, "all")


def _decoder(text: Mapping[str, Any], release: Release | None) -> KvLayers | Unknown:
    kinds = layer_kinds(text)
    if isinstance(kinds, Unknown):
        return kinds
    state = read_state(text, release) if {"state", "both"} & set(kinds) else None
    if isinstance(state, Unknown):
        return state
    shapes: dict[LayerKind, tuple[Attention, ...]] = {}
    for kind in set(kinds) - {"state", "none"}:
        shape = attention_shape(text, kind)
        if isinstance(shape, Unknown):
            return shape
        shapes[kind] = shape
    shared = _shared_layers(text, len(kinds))
    layers = tuple(layer for index, kind in enumerate(kinds[: len(kinds) - shared]) for layer in _at(index, kind, shapes, state))
    return KvLayers(len(kinds), layers, sparse=any(isinstance(layer, Attention) and layer.kind == "indexer" for layer in layers))


def _at(index: int, kind: LayerKind, shapes: Mapping[LayerKind, tuple[Attention, ...]], state: State | None) -> Iterator[Layer]:
    for shape in shapes.get(kind, ()):
        yield replace(shape, index=index)
    if state is not None and kind in ("state", "both"):
        yield replace(state, index=index)


def _shared_layers(text: Mapping[str, Any], count: int) -> int:
    """The last layers of Gemma 3n and 4 read the cache of an earlier one (models/gemma3n.py, gemma4.py)."""
    model_type = str(text.get("model_type"))
    default = 15 if model_type.startswith("gemma3n") else 0
    shared = _positive_int(text.get("num_kv_shared_layers", default)) or 0
    return shared if model_type.startswith(("gemma3n", "gemma4")) and shared < count else 0


def _encoder_decoder(text: Mapping[str, Any]) -> KvLayers | Unknown:
    """Whisper: every decoder layer attends to the text so far and to the audio; its encoder keeps nothing (models/whisper.py)."""
    count = layer_count({"num_hidden_layers": text.get("decoder_layers")})
    heads, width = _positive_int(text.get("decoder_attention_heads")), _positive_int(text.get("d_model"))
    frames = _positive_int(text.get("max_source_positions", 1500))
    if text.get("model_type") != "whisper":
        return Unknown("of encoder-decoder models only Whisper is modelled")
    if isinstance(count, Unknown) or heads is None or width is None or frames is None or width < heads:
        return Unknown("the config does not say how Whisper's decoder attends")
    size = width // heads
    layers = [Attention(index, kind, heads, size, size, frames if kind == "cross" else 0) for index in range(count) for kind in ("full", "cross")]
    return KvLayers(count, tuple(layers))


def _deci(text: Mapping[str, Any]) -> KvLayers | Unknown:
    """Nemotron-NAS: each block says how many query heads share a key, or that it does not attend (models/nemotron_nas.py)."""
    queries, size, layers = _positive_int(text.get("num_attention_heads")), head_size(text), list[Layer]()
    blocks = text["block_configs"]
    if queries is None or size is None or len(blocks) > MOST_LAYERS:
        return Unknown("the config does not say how its blocks attend")
    for index, block in enumerate(blocks):
        attention = block.get("attention") if isinstance(block, dict) else None
        if not isinstance(attention, dict):
            return Unknown("block_configs does not say how every block attends")
        shared = _positive_int(attention.get("n_heads_in_group"))
        if attention.get("no_op") is True or attention.get("replace_with_linear") is True:
            continue
        if shared is None or shared > queries:
            return Unknown("block_configs does not say how every block attends")
        layers.append(Attention(index, "full", queries // shared, size, size))
    return KvLayers(len(blocks), tuple(layers))
