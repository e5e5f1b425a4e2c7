"""What a model's config.json says, as vLLM reads it: pure. Every value is checked, because configs are anybody's data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_guard.facts import Release

# config/model.py _get_and_verify_max_len: the smallest of those present counts.
_LENGTH_KEYS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_FALLBACK_MAX_MODEL_LEN: Final = 2048
_UNSCALED_ROPE: Final = frozenset(("default", "su", "longrope", "llama3"))
_YARN: Final = frozenset(("yarn", "deepseek_yarn", "deepseek_llama_scaling"))
_YARN_UNSCALED_SINCE: Final = Release(0, 30, 0)
# Models whose images are attended to in both directions: an item must fit into one batch (platforms/cuda.py, from 0.15.1).
_PREFIX_LM_TYPES: Final = frozenset(("bagel", "gemma3", "gemma4", "molmo2", "moondream3", "paligemma"))
_MULTIMODAL_KEYS: Final = ("vision_config", "audio_config", "mm_vision_tower", "vision_tower", "thinker_config")
_STATE_KEYS: Final = (
    "mamba_d_state",
    "mamba_num_heads",
    "linear_num_key_heads",
    "ssm_cfg",
    "hybrid_override_pattern",
    "attn_layer_period",
    "linear_attn_config",
)


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """The few properties of a model that the batch budget and the outside budget depend on."""

    architecture: str | None
    vocab_size: int | None
    hidden_size: int | None
    intermediate_size: int | None
    experts: bool
    max_model_len: int | None
    encoder_decoder: bool
    multimodal: bool
    prefix_lm: bool
    hybrid: bool
    generates: bool
    quantized: bool
    tied: bool
    causal: bool
    stored_dtype: str | None


def read_traits(config: Mapping[str, Any], release: Release | None) -> ModelTraits:
    """The traits of a config; what the config does not say is None or the harmless side."""
    text = text_config(config)
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    architecture = first if isinstance(first, str) else None
    return ModelTraits(
        architecture=architecture,
        vocab_size=_positive_int(text.get("vocab_size")),
        hidden_size=_positive_int(text.get("hidden_size")),
        intermediate_size=_positive_int(text.get("intermediate_size")),
        experts=any("expert" in key for key in text),
        max_model_len=derived_max_model_len(config, release),
        encoder_decoder=config.get("is_encoder_decoder") is True,
        multimodal=any(config.get(key) for key in _MULTIMODAL_KEYS),
        prefix_lm=any(config.get("model_type") == name for name in _PREFIX_LM_TYPES),
        hybrid=any(text.get(key) for key in _STATE_KEYS),
        generates=architecture is not None and architecture.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")),
        quantized=any(part.get("quantization_config") or part.get("compression_config") for part in (config, text)),
        tied=any(part.get("tie_word_embeddings") is True for part in (config, text)),
        causal=text.get("is_causal") is not False and not text.get("use_bidirectional_attention"),
        stored_dtype=next((part[key] for part in (text, config) for key in ("torch_dtype", "dtype") if isinstance(part.get(key), str)), None),
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model."""
    for key in ("text_config", "llm_config", "language_config"):
        part = config.get(key)
        if isinstance(part, dict):
            return {**config, **part}
    return config


def derived_max_model_len(config: Mapping[str, Any], release: Release | None) -> int | None:
    """The length that vLLM takes when none is given; None when the config's values are no lengths.

    The tokenizer's own limit is not read, so a smaller one there is not seen. Source: config/model.py _get_and_verify_max_len.
    """
    text = text_config(config)
    lengths = [value for key in _LENGTH_KEYS if (value := _positive_int(text.get(key))) is not None]
    length = min(lengths, default=_FALLBACK_MAX_MODEL_LEN)
    for rope in _rope_parameters(text):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "longrope" and (original := _positive_int(text.get("original_max_position_embeddings"))) is not None:
            return original
        if lengths and "gemma3" not in str(config.get("model_type")):
            length = _scaled(length, str(kind), rope, release)
    return length


def _scaled(length: int, kind: str, rope: Mapping[str, Any], release: Release | None) -> int:
    factor = rope.get("factor")
    if kind in _UNSCALED_ROPE or not isinstance(factor, int | float) or isinstance(factor, bool) or not math.isfinite(factor) or factor <= 0:
        return length
    if kind in _YARN:
        if release is None or release >= _YARN_UNSCALED_SINCE:
            return length
        original = _positive_int(rope.get("original_max_position_embeddings"))
        return _positive_int((original or length) * factor) or length
    return _positive_int(length * factor) or length


def _rope_parameters(text: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if not isinstance(rope, dict):
        return
    nested = [value for value in rope.values() if isinstance(value, dict)]
    yield from nested[:1] or [rope]


def _positive_int(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if 1 <= value < 2**53 else None
