"""Where a weight goes, by its checkpoint name: which part it belongs to, and how the ranks share it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

Part = Literal["embeddings", "lm_head", "attention", "mlp", "experts", "norms", "vision", "audio", "other"]
# rows: dealt evenly. keys: by KV heads. fused: queries, keys and values in one matrix. whole: on every rank. unclear: a name that is not known here.
Dealing = Literal["rows", "keys", "fused", "whole", "unclear"]
Home = Literal["layer", "first", "last", "towers"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a name means. `linear`: a quantization method may make it smaller at load. `buffer`: a scale or index of a quantization method.
    `further`: a part of a layer that predicts further tokens, which the last stage holds.
    """

    part: Part
    dealing: Dealing
    home: Home
    linear: bool = False
    buffer: bool = False
    further: bool = False

    @property
    def shared(self) -> bool:
        """Whether the layer that predicts further tokens takes the model's own instead (v1/worker/gpu/spec_decode/eagle/utils.py load_eagle_model)."""
        return self.further and self.part in {"embeddings", "lm_head"}


# Whole words only: fc1 and conv1d keep theirs.
_DIGITS: Final = re.compile(r"(?<![^.])\d+(?![^.])")
_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d{1,9})\.")
_VISION: Final = frozenset(
    (
        *("visual", "vision", "vision_tower", "vision_model", "vision_encoder", "vpm", "resampler", "multi_modal_projector", "mm_projector", "projector"),
        *("embed_vision", "vision_language_adapter", "patch_merger", "pre_mm_projector_norm", "mlp1", "connector", "image_newline", "vision_projection"),
    )
)
_AUDIO: Final = frozenset(("audio", "audio_tower", "audio_model", "apm", "embed_audio", "audio_projection_layer", "audio_encoder", "whisper_encoder"))
_EMBEDDINGS: Final = frozenset(("embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed_in", "embed_tokens_per_layer", "embeddings"))
_HEADS: Final = frozenset(("lm_head", "output", "embed_out"))
_FIRST: Final = frozenset(("wpe", "embed_positions", "position_embeddings", "token_type_embeddings", "project_in", "per_layer_model_projection"))
_KEYS: Final = frozenset(("k_proj", "v_proj", "wk", "wv", "key", "value"))
_FUSED: Final = frozenset(("qkv_proj", "query_key_value", "c_attn", "wqkv", "qkv", "w_pack"))
_ATTENTION: Final = frozenset(
    (
        *("q_proj", "o_proj", "wq", "wo", "query", "q_b_proj", "kv_b_proj", "out_proj", "in_proj", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z"),
        *("in_proj_a", "in_proj_b", "x_proj", "dt_proj", "k_proj_linear", "v_proj_linear", "f_b_proj", "g_b_proj", "b_proj", "g_proj", "wo_a", "wo_b", "wq_b"),
    )
)
_STATES: Final = frozenset(("conv", "conv1d", "q_conv1d", "k_conv1d", "v_conv1d", "k_proj_linear_conv1d", "v_proj_linear_conv1d", "q_proj_conv1d"))
_STATE_LEAVES: Final = frozenset(("a_log", "d", "dt_bias", "sinks"))
_MLP: Final = frozenset(
    (
        *("gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3", "fc1", "fc2", "dense_h_to_4h", "dense_4h_to_h", "c_fc", "w13", "linear_mlp"),
        *("fc_in", "fc_out", "input_linear", "output_linear"),
    )
)
_WHOLE: Final = frozenset(
    (
        *(
            "gate",
            "router",
            "shared_expert_gate",
            "q_a_proj",
            "kv_a_proj_with_mqa",
            "fused_qkv_a_proj",
            "wq_a",
            "wkv",
            "f_a_proj",
            "g_a_proj",
            "per_layer_input_gate",
        ),
        *("eh_proj", "input_proj"),
        *("per_layer_projection", "layer_scalar", "fc1_latent_proj", "fc2_latent_proj", "e_score_correction_bias", "correction_bias"),
        *("cross_attn_attn_gate", "cross_attn_mlp_gate"),
    )
)
# Output projections of attention and of MLPs by the same name.
_AMBIGUOUS: Final = frozenset(("dense", "c_proj"))
_QUANTIZED_WHOLE: Final = frozenset(("q_a_proj", "kv_a_proj_with_mqa", "fc1_latent_proj", "fc2_latent_proj", "f_a_proj", "g_a_proj", "wq_b", "wk"))
_BUFFERS: Final = ("scale", "zero", "g_idx", "weight_shape", "absmax", "quant_map", "_zp", "bias")
_LEAVES: Final = frozenset(("weight", "bias", "qweight", "weight_packed", "blocks", "tensor"))


def layer_of(name: str) -> int | None:
    """The number of the decoder layer in a checkpoint's name."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def rule_of(name: str) -> Rule:
    """The rule of a checkpoint's name. Numbers do not matter to it."""
    return _rule(_DIGITS.sub("#", name) if len(name) < _LONGEST_NAME else "")


_LONGEST_NAME: Final = 512
_FURTHER: Final = frozenset(("mtp", "mtp_layers"))
# What joins the embedding of the last token and the state before it.
_JOINS: Final[Mapping[str, Dealing]] = {"fc": "rows", "eh_proj": "whole"}


@lru_cache(maxsize=4096)
def _rule(pattern: str) -> Rule:
    words = pattern.lower().split(".")
    names = frozenset(words)
    buffer = any(mark in words[-1] for mark in _BUFFERS)
    if names & _FURTHER:
        return further_rule(_inner_rule(words, buffer=buffer))
    # Whisper's encoder has layers of the same names as its decoder.
    if names & _AUDIO or words[:2] == ["model", "encoder"]:
        return Rule("audio", _tower_dealing(words), "towers", buffer=buffer)
    if names & _VISION:
        return Rule("vision", _tower_dealing(words), "towers", buffer=buffer)
    if _LAYER.search(pattern.replace("#", "0")):
        return _layer_rule(words, names, buffer=buffer)
    module = words[-2] if len(words) > 1 and (words[-1] in _LEAVES or buffer) else words[-1]
    if module in _EMBEDDINGS:
        return Rule("embeddings", "rows", "first")
    if module in _HEADS:
        return Rule("lm_head", "rows", "last")
    if module in _FIRST:
        return Rule("embeddings", "whole", "first")
    return Rule("norms", "whole", "last") if _is_norm(module) else Rule("other", "unclear", "last")


def further_rule(rule: Rule) -> Rule:
    """The rule of a name within a layer that predicts further tokens."""
    return replace(rule, home="last", further=True)


def _inner_rule(words: list[str], *, buffer: bool) -> Rule:
    """A name within such a layer as it would be outside of it: `mtp.layers.0.mlp.up_proj`, `model.mtp_layers.0.mlp.up_proj`."""
    start = max(index for index, word in enumerate(words) if word in _FURTHER) + 1
    inner = words[start:] if words[start - 1] == "mtp" else ["layers", *words[start:]]
    joins = _JOINS.get(inner[0]) if inner else None
    return _rule(".".join(inner)) if joins is None else Rule("mlp", joins, "last", linear=not buffer, buffer=buffer)


def _tower_dealing(words: list[str]) -> Dealing:
    return "whole" if any(_is_norm(word) or word in {"patch_embed", "pos_embed", "positions", "conv", "patch_embedding"} for word in words) else "rows"


def _is_norm(word: str) -> bool:
    return "norm" in word or word.startswith("ln_") or word == "ln"


def _layer_rule(words: list[str], names: frozenset[str], *, buffer: bool) -> Rule:
    """A name within a decoder layer."""
    leaf = next((word for word in reversed(words) if word not in _LEAVES and not (buffer and word == words[-1])), "")
    # Stacked experts carry the matrix in the leaf itself: gate_up_proj_blocks, gate_up_proj_scales.
    leaf = leaf.removesuffix("_blocks") if "experts" not in names else leaf
    if "experts" in names:
        return Rule("experts", "rows", "layer", linear=not buffer, buffer=buffer)
    if "indexer" in names:
        return Rule("attention", "whole", "layer", linear=not buffer and leaf in _QUANTIZED_WHOLE, buffer=buffer)
    if leaf in _KEYS:
        return Rule("attention", "keys", "layer", linear=not buffer, buffer=buffer)
    if leaf in _FUSED:
        return Rule("attention", "fused", "layer", linear=not buffer, buffer=buffer)
    if leaf in _STATES or words[-1] in _STATE_LEAVES:
        return Rule("attention", "rows", "layer")
    if leaf in _MLP or (leaf in _AMBIGUOUS and not names & {"attn", "self_attn", "attention", "self_attention"}):
        return Rule("mlp", "rows", "layer", linear=not buffer, buffer=buffer)
    if leaf in _ATTENTION or leaf in _AMBIGUOUS:
        return Rule("attention", "rows", "layer", linear=not buffer, buffer=buffer)
    if leaf in _WHOLE or words[-1] in _WHOLE or "act_fn" in names:
        part: Part = "attention" if names & {"self_attn", "attention"} else "mlp"
        return Rule(part, "whole", "layer", linear=not buffer and leaf in _QUANTIZED_WHOLE, buffer=buffer)
    return Rule("norms", "whole", "layer") if any(_is_norm(word) for word in words) else _odd_rule(leaf, names, buffer=buffer)


def _odd_rule(leaf: str, names: frozenset[str], *, buffer: bool) -> Rule:
    """A name that only a layer for further tokens has, or an unknown one."""
    if leaf == "embed_tokens" or "shared_head" in names:
        return Rule("lm_head" if "shared_head" in names else "embeddings", "rows", "layer")
    return Rule("other", "unclear", "layer", buffer=buffer)
