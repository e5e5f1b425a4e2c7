"""The shape of what one attention layer keeps of a token: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from vllm_guard.model.config import _positive_int
from vllm_guard.model.kv_kinds import LayerKind, first_int, window_tokens
from vllm_guard.model.unknown import Unknown

AttentionKind = Literal["full", "mla", "indexer", "sliding", "chunked", "cross"]

# transformers_utils/model_arch_config_convertor.py is_deepseek_mla, and wrappers whose inner model is one of them.
_MLA_TYPES: Final = frozenset(
    (
        "axk1",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_vl_v2",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "kimi_k2",
        "kimi_k25",
        "kimi_k3",
        "kimi_linear",
        "kimi_vl",
        "mistral_large_3",
        "pangu_ultra_moe",
    )
)
_HEAD_KEYS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
_KV_HEAD_KEYS: Final = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
_WIDTH_KEYS: Final = ("hidden_size", "n_embd", "d_model")


@dataclass(frozen=True, slots=True)
class Attention:
    """What one layer keeps of every token: `kv_heads` keys and values of these sizes. `span_tokens` is the window, the chunk, or what the encoder gives."""

    index: int
    kind: AttentionKind
    kv_heads: int
    head_size: int
    head_size_v: int
    span_tokens: int = 0


def attention_shape(text: Mapping[str, Any], kind: LayerKind) -> tuple[Attention, ...] | Unknown:
    """What one layer of this kind keeps; index 0."""
    if text.get("kv_lora_rank") and text.get("model_type") != "minicpm3":
        return _mla(text)
    if kind == "chunked":
        chunk = _positive_int(text.get("attention_chunk_size", 8192))
        return _attention(text, "full", 0) if chunk is None else _attention(text, "chunked", chunk)
    if kind == "sliding":
        window = _positive_int(text.get("sliding_window_size")) or window_tokens(text)
        return Unknown("the config does not say the window of its sliding layers") if window is None else _attention(text, "sliding", window)
    return _attention(text, "full", 0)


def _attention(text: Mapping[str, Any], kind: AttentionKind, span_tokens: int) -> tuple[Attention, ...] | Unknown:
    heads, size = kv_heads(text), head_size(text)
    value_size = size
    model_type = str(text.get("model_type"))
    if model_type.startswith("mimo_v2"):
        prefix = "swa_" if kind == "sliding" else ""
        heads = _positive_int(text.get(prefix + "num_key_value_heads")) or heads
        size = _positive_int(text.get(prefix + "head_dim")) or size
        value_size = _positive_int(text.get(prefix + "v_head_dim")) or size
    elif model_type.startswith("gemma4") and kind == "full":
        size = value_size = _positive_int(text.get("global_head_dim", 512)) or size
        heads = _positive_int(text.get("num_global_key_value_heads")) or heads
    other = text.get("attention_other_setting")
    if kind == "sliding" and isinstance(other, dict) and other.get("attention_type") == "sliding_attention":
        heads = _positive_int(other.get("num_attention_groups")) or heads
        size = value_size = _positive_int(other.get("head_dim")) or size
    if heads is None or size is None or value_size is None:
        return Unknown("the config does not say how many key-value heads there are, or of what size")
    return (Attention(0, kind, heads, size, value_size, span_tokens),)


def _mla(text: Mapping[str, Any]) -> tuple[Attention, ...] | Unknown:
    """One latent vector per token, the same on every rank; DeepSeek-V3.2's sparse attention adds an index key of one byte a value and a float32 scale per
    128 of them (models/deepseek_v2.py).
    """
    rank, rope = _positive_int(text.get("kv_lora_rank")), _positive_int(text.get("qk_rope_head_dim"))
    if str(text.get("model_type")) not in _MLA_TYPES or rank is None or rope is None:
        return Unknown("whether latent attention is used cannot be told for this model type")
    latent = Attention(0, "mla", 1, rank + rope, 0)
    if text.get("index_topk") is None:
        return (latent,)
    width = _positive_int(text.get("index_head_dim"))
    if width is None or any(text.get(key) for key in ("index_topk_freq", "index_topk_pattern", "indexer_types")):
        return Unknown("which layers keep an index cache cannot be told")
    return (latent, Attention(0, "indexer", 1, width + width // 128 * 4, 0))


def kv_heads(text: Mapping[str, Any]) -> int | None:
    """Key-value heads of the whole model (model_arch_config_convertor.py get_total_num_kv_heads)."""
    attention = text.get("attn_config")
    if isinstance(attention, dict) and _positive_int(attention.get("kv_n_heads")) is not None:
        return _positive_int(attention.get("kv_n_heads"))
    if text.get("multi_query") is True and text.get("new_decoder_architecture") is not True:
        return 1
    keys = _KV_HEAD_KEYS if text.get("multi_query_attention") is not False else _KV_HEAD_KEYS[:3]
    return first_int(text, (*keys, *_HEAD_KEYS))


def head_size(text: Mapping[str, Any]) -> int | None:
    """The size of one head (model_arch_config_convertor.py get_head_size)."""
    if text.get("model_type") == "minicpm3":
        sizes = [_positive_int(text.get(key)) for key in ("qk_nope_head_dim", "qk_rope_head_dim")]
        return None if sizes[0] is None or sizes[1] is None else sizes[0] + sizes[1]
    stated = first_int(text, ("head_dim", "hidden_size_per_head"))
    if stated is not None:
        return stated
    width, heads = first_int(text, _WIDTH_KEYS), first_int(text, _HEAD_KEYS)
    return width // heads or None if width is not None and heads is not None else None
