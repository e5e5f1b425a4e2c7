"""What a model's config.json says, as vLLM reads it: pure. Every value is checked, because configs are anybody's data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_guard.release import Release

# transformers_utils/model_arch_config_convertor.py derive_max_model_len_and_key: the smallest of those present counts.
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
# The key under which a kind says its length; a config without it has its class's default.
_OWN_LENGTH_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "chatglm": ("seq_length",),
    "mpt": ("max_seq_len",),
    "step3_text": ("max_seq_len",),
    "whisper": ("max_target_positions",),
}
_USUAL_LENGTH_KEYS: Final = ("max_position_embeddings", "n_positions")
# The defaults of the classes whose configs do leave it out, as the text parts of many multimodal models (transformers 5.19 configuration_*.py).
_UNSAID_LENGTHS: Final[Mapping[str, int]] = {
    "llama": 2048,
    "mistral": 131_072,
    "mixtral": 131_072,
    "qwen2": 32_768,
    "qwen2_moe": 32_768,
    "qwen3": 32_768,
    "qwen3_moe": 32_768,
    "gemma": 8192,
    "gemma2": 8192,
    "gemma3_text": 131_072,
    "phi3": 4096,
    "bert": 512,
}
# Kinds that have no length.
_WITHOUT_LENGTH: Final = frozenset(("bloom", "mamba", "mamba2", "falcon_mamba"))
_FALLBACK_MAX_MODEL_LEN: Final = 2048
# Kinds whose class has an original_max_position_embeddings that a config may leave out.
_UNSAID_ORIGINAL: Final = frozenset(("phi3", "phi4_multimodal"))
# vLLM lowers its length to 8192 after the batch was decided (model_executor/models/config.py).
_LOWERED_LATER: Final = "embedding_gemma2"
_LONGROPE: Final = frozenset(("su", "longrope"))
_YARN: Final = frozenset(("yarn", "deepseek_yarn", "deepseek_llama_scaling"))
_YARN_UNSCALED_SINCE: Final = Release(0, 30, 0)
# Models whose images are attended to in both directions: an item must fit into one batch (platforms/cuda.py, from 0.15.1).
_PREFIX_LM_TYPES: Final = frozenset(("bagel", "gemma3", "gemma4", "molmo2", "moondream3", "paligemma"))
# Of these, whose items are so small that no default batch is raised for one: 256 tokens an image (engine/arg_utils.py _get_min_mm_batched_tokens).
_SMALL_ITEM_TYPES: Final = frozenset(("gemma3",))
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
    large_items: bool
    hybrid: bool
    generates: bool
    quantized: bool
    tied: bool
    causal: bool
    latent: bool
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
        large_items=any(config.get("model_type") == name for name in _PREFIX_LM_TYPES - _SMALL_ITEM_TYPES),
        hybrid=any(text.get(key) for key in _STATE_KEYS),
        generates=architecture is not None and architecture.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")),
        quantized=any(part.get("quantization_config") or part.get("compression_config") for part in (config, text)),
        tied=any(part.get("tie_word_embeddings") is True for part in (config, text)),
        causal=text.get("is_causal") is not False and not text.get("use_bidirectional_attention"),
        latent=_positive_int(text.get("kv_lora_rank")) is not None,
        stored_dtype=next((part[key] for part in (text, config) for key in ("torch_dtype", "dtype") if isinstance(part.get(key), str)), None),
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model."""
    for key in ("text_config", "llm_config", "language_config"):
        part = config.get(key)
        if isinstance(part, dict):
            return {**config, **part}
    return config


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model, alone: vLLM looks for the length nowhere else (get_hf_text_config)."""
    part = config
    for keys in (("thinker_config",), ("text_config", "llm_config", "language_config")):
        part = next((inner for key in keys if isinstance(inner := part.get(key), dict)), part)
    return part


def derived_max_model_len(config: Mapping[str, Any], release: Release | None, limit: int | None = None) -> int | None:
    """The length that vLLM takes when none is given; None where only the class of the config knows it.

    `limit` is one more bound, which rope scaling multiplies like the config's own. Source: config/model.py _get_and_verify_max_len.
    """
    part = language_part(config)
    length = _stated_length(part)
    if length is None or config.get("model_type") == _LOWERED_LATER:
        return None
    length = scaled = length if limit is None else min(length, limit)
    ropes = [(str(rope.get("rope_type", rope.get("type", "default"))), rope) for rope in _rope_parameters(part)]
    if any(kind in _LONGROPE for kind, _ in ropes):
        original = _positive_int(part.get("original_max_position_embeddings"))
        return original or (None if part.get("model_type") in _UNSAID_ORIGINAL else length)
    if any("gemma3" in str(each.get("model_type")) for each in (config, part)):
        return length  # it is scaled already
    yarn_scales = release is not None and release < _YARN_UNSCALED_SINCE
    for kind, rope in ropes:
        if "factor" in rope and kind != "llama3" and (yarn_scales or kind not in _YARN):
            scaled = _scaled(length, kind, rope)
    return scaled


def takes_less_than_it_can(config: Mapping[str, Any]) -> bool:
    """Whether vLLM takes a shorter length than the model's own when none is given, for LongRoPE is worse beyond the original one (_get_and_verify_max_len)."""
    return any(str(rope.get("rope_type", rope.get("type"))) in _LONGROPE for rope in _rope_parameters(language_part(config)))


def _stated_length(part: Mapping[str, Any]) -> int | None:
    """The length before scaling; a `model_max_length` beats all others. None where it is the default of a class that is not known."""
    override = _positive_int(part.get("model_max_length"))
    if override is not None:
        return override
    kind = str(part.get("model_type"))
    lengths = [length for key in _LENGTH_KEYS if (length := _positive_int(part.get(key))) is not None]
    if kind in _WITHOUT_LENGTH:
        return min(lengths, default=_FALLBACK_MAX_MODEL_LEN)
    if not any(_positive_int(part.get(key)) for key in _OWN_LENGTH_KEYS.get(kind, _USUAL_LENGTH_KEYS)):
        unsaid = _UNSAID_LENGTHS.get(kind)
        return None if unsaid is None else min((unsaid, *lengths))
    return min(lengths)


def _scaled(length: int, kind: str, rope: Mapping[str, Any]) -> int:
    factor = rope["factor"]
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not math.isfinite(factor) or factor <= 0:
        return length
    original = _positive_int(rope.get("original_max_position_embeddings")) if kind in _YARN else None
    return _positive_int((original or length) * factor) or length


def _rope_parameters(text: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if not isinstance(rope, dict):
        return
    nested = [value for value in rope.values() if isinstance(value, dict)]
    yield from nested or [rope]


def _positive_int(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if 1 <= value < 2**53 else None
