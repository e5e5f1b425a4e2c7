"""Which kind of memory each decoder layer keeps: pure. What a config leaves out is what its Hugging Face class would fill in, else unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from vllm_guard.model.config import _positive_int
from vllm_guard.model.unknown import Unknown

# `both`: attention and a recurrent state side by side. `none`: nothing is kept (MLP and expert layers, no-op attention).
LayerKind = Literal["full", "sliding", "chunked", "state", "both", "none"]

MOST_LAYERS: Final = 4096
_LAYER_COUNT_KEYS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")

_WORDS: Final[Mapping[str, LayerKind]] = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "deepseek_sparse_attention": "full",
    "indexed_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "conv": "state",
    "hybrid": "both",
    "moe": "none",
    "mlp": "none",
}
_LETTERS: Final[Mapping[str, LayerKind]] = {"M": "state", "*": "full", "-": "none", "E": "none"}

# (every nth layer sees everything, the window of the others), where the config says neither (transformers configuration_*.py __post_init__).
_LOCAL_DEFAULTS: Final = {
    "gemma2": (2, 4096),
    "gemma3": (6, 4096),
    "gemma3_text": (6, 4096),
    "gemma3n": (5, 512),
    "gemma3n_text": (5, 512),
    "gemma4": (6, 512),
    "gemma4_text": (6, 512),
    "cohere2": (4, 4096),
    "gpt_oss": (2, 128),
    "olmo3": (4, 4096),
    "exaone4": (4, 4096),
}
# The named key replaces the number above in these only.
_PATTERN_KEY_COUNTS: Final = frozenset(("gemma3", "gemma3_text", "cohere2", "exaone4"))
_LINEAR_WITH_INTERVAL: Final = frozenset(("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"))
_LLAMA4: Final = frozenset(("llama4", "llama4_text"))
_ATTENTION_FREE: Final = frozenset(("mamba", "mamba2", "falcon_mamba"))
_NEED_A_PATTERN: Final = {
    "nemotron_h": "hybrid_override_pattern",
    "nemotron_h_puzzle": "hybrid_override_pattern",
    "kimi_linear": "linear_attn_config",
    "kimi_k3": "linear_attn_config",
    "jamba": "attn_layer_period",
    "bamba": "attn_layer_indices",
    "granitemoehybrid": "layer_types",
    "minimax": "layer_types",
    "minimax_text_01": "attn_type_list",
    "minimax_m1": "attn_type_list",
    "mimo_v2_flash": "hybrid_layer_pattern",
    "mimo_v2": "hybrid_layer_pattern",
    "lfm2": "layer_types",
    "lfm2_moe": "layer_types",
    "step3p5": "layer_types",
    "step3p7": "layer_types",
    "olmo_hybrid": "layer_types",
    "afmoe": "layer_types",
    "exaone_moe": "layer_types",
    "ministral": "layer_types",
}


def layer_kinds(text: Mapping[str, Any]) -> tuple[LayerKind, ...] | Unknown:
    """One kind per decoder layer, in order. A local layer without a window is a full one, as in vLLM."""
    kinds = _stated(text)
    if kinds is None:
        kinds = _by_model_type(text)
    if isinstance(kinds, Unknown):
        return kinds
    if "sliding" in kinds and not windowed(text):
        return tuple("full" if kind == "sliding" else kind for kind in kinds)
    return tuple(kinds)


def windowed(text: Mapping[str, Any]) -> bool:
    """Whether `sliding_window` counts: Qwen's configs carry one that is switched off, and 0 means none (config/model.py)."""
    return text.get("use_sliding_window") is not False and _positive_int(text.get("sliding_window", 1)) is not None


def window_tokens(text: Mapping[str, Any]) -> int | None:
    """The window of the sliding layers."""
    default = _LOCAL_DEFAULTS.get(str(text.get("model_type")))
    return _positive_int(text.get("sliding_window", default and default[1]))


def first_int(text: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    """The positive integer under the first of these keys that holds one."""
    return next((number for key in keys if (number := _positive_int(text.get(key))) is not None), None)


def layer_count(text: Mapping[str, Any]) -> int | Unknown:
    """The number of decoder layers."""
    count = first_int(text, _LAYER_COUNT_KEYS)
    if count is None:
        return Unknown("the config does not say how many layers there are")
    return count if count <= MOST_LAYERS else Unknown(f"the config names more than {MOST_LAYERS} layers")


def _stated(text: Mapping[str, Any]) -> Sequence[LayerKind] | Unknown | None:
    """What the config spells out layer by layer; None where it does not."""
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return _translated(pattern, _LETTERS, "hybrid_override_pattern", len(pattern))
    count = layer_count(text)
    if isinstance(count, Unknown):
        return count
    for key in ("layers_block_type", "layer_types"):
        if text.get(key):
            return _translated(text[key], _WORDS, key, count)
    if text.get("attn_type_list") and text.get("model_type") != "minimax_m2":  # whose attention is full whatever the list says
        return _translated(text["attn_type_list"], {1: "full", 0: "state"}, "attn_type_list", count)
    if text.get("hybrid_layer_pattern"):
        return _translated(text["hybrid_layer_pattern"], {0: "full", 1: "sliding"}, "hybrid_layer_pattern", count)
    return _indexed(text, count)


def _translated(values: Any, words: Mapping[Any, LayerKind], key: str, count: int) -> Sequence[LayerKind] | Unknown:
    if not isinstance(values, list | str) or not count <= len(values) <= MOST_LAYERS:
        return Unknown(f"{key} does not name every layer")
    kinds = [words.get(value) if isinstance(value, str | int) else None for value in values[:count]]
    named = [kind for kind in kinds if kind is not None]
    return named if len(named) == count else Unknown(f"{key} names a kind of layer that is not known here")


def _indexed(text: Mapping[str, Any], count: int) -> Sequence[LayerKind] | Unknown | None:
    """Models that list the layers of one kind: Kimi Linear, Bamba, Lfm2, Jamba."""
    linear = text.get("linear_attn_config")
    if isinstance(linear, dict):
        states = _numbers(linear.get("kda_layers"))
        return Unknown("linear_attn_config does not list kda_layers") if states is None else _marked(count, states, "state", "full", 1)
    full = _numbers(text.get("attn_layer_indices")) or _numbers(text.get("full_attn_idxs"))
    if full is not None:
        return _marked(count, full, "full", "state", 0)
    period, offset = _positive_int(text.get("attn_layer_period")), text.get("attn_layer_offset")
    if period is not None and isinstance(offset, int):
        return ["full" if index % period == offset else "state" for index in range(count)]
    return None


def _marked(count: int, indices: frozenset[int], kind: LayerKind, other: LayerKind, first: int) -> Sequence[LayerKind]:
    return [kind if index + first in indices else other for index in range(count)]


def _numbers(value: Any) -> frozenset[int] | None:
    if not isinstance(value, list) or not all(isinstance(number, int) for number in value):
        return None
    return frozenset(value)


def _by_model_type(text: Mapping[str, Any]) -> Sequence[LayerKind] | Unknown:
    count, model_type = layer_count(text), str(text.get("model_type"))
    if isinstance(count, Unknown):
        return count
    if model_type in _NEED_A_PATTERN:
        return Unknown(f"a {model_type} config without {_NEED_A_PATTERN[model_type]} does not say which layers attend")
    if model_type in _ATTENTION_FREE:
        return ["state"] * count
    if model_type == "falcon_h1":
        return ["both"] * count
    if model_type in _LINEAR_WITH_INTERVAL:
        return _every(count, _positive_int(text.get("full_attention_interval")) or 4, "state")
    if model_type in _LLAMA4:
        return _llama4(text, count)
    if model_type in _LOCAL_DEFAULTS:
        stated = _positive_int(text.get("sliding_window_pattern")) if model_type in _PATTERN_KEY_COUNTS else None
        return _every(count, stated or _LOCAL_DEFAULTS[model_type][0], "sliding")
    # Qwen2 and Qwen3 slide from this layer on; every other config with a window slides in all of them.
    full = _positive_int(text.get("max_window_layers")) if text.get("use_sliding_window") is True else None
    slides = bool(text.get("sliding_window")) and windowed(text)
    return ["sliding" if slides and index >= (full or 0) else "full" for index in range(count)]


def _every(count: int, interval: int, other: LayerKind) -> Sequence[LayerKind]:
    return [other if (index + 1) % interval else "full" for index in range(count)]


def _llama4(text: Mapping[str, Any], count: int) -> Sequence[LayerKind] | Unknown:
    """Layers with rotary positions see one chunk, every fourth sees everything (models/llama4.py)."""
    rotary = text.get("no_rope_layers")
    if rotary:
        return _translated(rotary, {1: "chunked", 0: "full"}, "no_rope_layers", count)
    return _every(count, _positive_int(text.get("no_rope_layer_interval")) or 4, "chunked")
