"""The weights of a model by its config alone: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vllm_guard.model.config import text_config
from vllm_guard.model.feed_forward import expert_count, experts, feed_forward, mlp
from vllm_guard.model.fields import Fields, LackingError
from vllm_guard.model.kv_kinds import LayerKind, layer_kinds
from vllm_guard.model.matrix import Matrix, table
from vllm_guard.model.mixers import hidden, mixer
from vllm_guard.model.unknown import Unknown

DECODER: Final = "model.layers"
# What the config class fills in where the config does not say (transformers configuration_*.py).
_TIED: Final = frozenset(
    (
        *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "cohere", "cohere2", "starcoder2", "falcon", "bloom", "mpt"),
        *("gpt2", "gpt_bigcode", "opt", "whisper", "smollm3", "ernie4_5", "ernie4_5_moe", "mamba", "falcon_mamba", "lfm2", "lfm2_moe", "zamba2"),
    )
)
# No head that turns states into tokens.
_ENCODERS: Final = frozenset(("bert", "roberta", "xlm-roberta", "camembert", "electra", "nomic_bert", "modernbert"))
_LEARNED_POSITIONS: Final = frozenset(("bert", "roberta", "xlm-roberta", "camembert", "electra", "opt", "gpt2", "gpt_bigcode"))
# Their matrices are none of those that are reckoned here.
_FOREIGN: Final = frozenset(("deepseek_ref", "gemma3n", "gemma3n_text", "zamba2", "t5", "bart", "mbart", "rwkv", "dbrx"))
_FAMILIAR: Final = frozenset(
    (
        *("llama", "mistral", "mixtral", "qwen2", "qwen2_vl", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3", "qwen3_moe", "qwen3_vl_text"),
        *("qwen3_vl", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "dots_ocr", "minicpmv"),
        *("gemma", "gemma2", "gemma3_text", "gemma3", "gemma4", "gemma4_text", "phi3", "opt", "starcoder2", "bert", "gpt_oss", "llama4", "llama4_text"),
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "glm4_moe_lite", "kimi_linear", "minimax_m2", "nemotron_h"),
        *(
            "nemotron-nas",
            "jamba",
            "mimo",
            "mimo_v2_flash",
            "mllama",
            "mllama_text_model",
            "voxtral_realtime_text",
            "laguna",
            "llava",
            "whisper",
            "deepseek_v4",
        ),
    )
)
_LETTERS: Final = {"M": "mixer", "*": "mixer", "-": "mlp", "E": "moe"}
_WORDS: Final = {"mamba": "mixer", "attention": "mixer", "mlp": "mlp", "moe": "moe"}


def familiar_decoder(config: Mapping[str, Any]) -> bool:
    """Whether the layers of this model_type were held against published parameter counts; others are taken for what their keys look like."""
    return Fields(text_config(config)).kind in _FAMILIAR


def tied(config: Mapping[str, Any]) -> bool:
    """Whether embeddings and head are one tensor."""
    text = text_config(config)
    stated = text.get("tie_word_embeddings")
    return stated if isinstance(stated, bool) else Fields(text).kind in _TIED


def decoder(config: Mapping[str, Any]) -> tuple[Matrix, ...] | Unknown:
    """The matrices of the language model, named as a checkpoint names them, without what predicts further tokens; or why they are not known."""
    text = Fields(text_config(config))
    if text.kind in _FOREIGN or (config.get("is_encoder_decoder") is True and text.kind != "whisper"):
        return Unknown(f"the layers of a {text.kind or 'nameless'} model are not reckoned without weight files")
    kinds = layer_kinds(text.values)
    if isinstance(kinds, Unknown):
        return kinds
    try:
        return (*embeddings(text), *(matrix for layer, kind in enumerate(kinds) for matrix in decoder_layer(text, kind, layer)), *head(text))
    except LackingError as lacking:
        return Unknown(str(lacking))


def embeddings(text: Fields) -> Iterator[Matrix]:
    """Token, position and per-layer embeddings."""
    width = text.number("word_embed_proj_dim", default=hidden(text))
    yield Matrix("model.embed_tokens", width, text.need("vocab_size", "padded_vocab_size"), linear=False)
    if width != hidden(text):
        yield Matrix("model.project_in", width, 2 * hidden(text), linear=False)
    if text.kind in _LEARNED_POSITIONS:
        yield table("model.embed_positions", hidden(text) * text.number("max_position_embeddings", "n_positions", default=512))
    each = text.number("hidden_size_per_layer_input")
    if each:
        every = each * text.need("num_hidden_layers")
        yield Matrix("model.embed_tokens_per_layer", every, text.need("vocab_size_per_layer_input", "vocab_size"), linear=False)
        yield Matrix("model.per_layer_model_projection", hidden(text), every, linear=False)


def head(text: Fields) -> Iterator[Matrix]:
    """What turns states into tokens, whether it is tied or not; nothing for encoders."""
    if text.kind not in _ENCODERS:
        yield Matrix("lm_head", text.number("word_embed_proj_dim", default=hidden(text)), text.need("vocab_size", "padded_vocab_size"), linear=False)


def decoder_layer(text: Fields, kind: LayerKind, layer: int) -> Iterator[Matrix]:
    """One layer: its mixer and what stands behind it. In Nemotron-H a layer is only one of both."""
    if text.kind == "whisper":
        yield from _whisper_layer(text, f"{DECODER}.{layer}")
        return
    name, role = f"{DECODER}.{layer}", _role(text, layer)
    if role in {"mixer", "both"} and not _removed(text, layer):
        for each in _mixers(text, kind):
            yield from mixer(text, each, layer, f"{name}.self_attn")
    if role == "both":
        yield from _behind(text, layer, f"{name}.mlp")
    elif role == "moe":
        yield from experts(text, f"{name}.mlp")
    elif role == "mlp":
        yield from mlp(text, text.need("intermediate_size"), f"{name}.mlp")
    each_input = text.number("hidden_size_per_layer_input")
    if each_input:
        yield Matrix(f"{name}.per_layer_input_gate", hidden(text), 2 * each_input, linear=False)


def _whisper_layer(text: Fields, name: str) -> Iterator[Matrix]:
    """Attention to itself and to the encoder, and an MLP (models/whisper.py)."""
    width, inner = hidden(text), text.need("decoder_ffn_dim")
    for kind in ("self_attn", "encoder_attn"):
        yield Matrix(f"{name}.{kind}.q_proj", width, 4 * width)
    yield Matrix(f"{name}.fc1", width, inner)
    yield Matrix(f"{name}.fc2", inner, width)


def further_layer(config: Mapping[str, Any]) -> tuple[Matrix, ...] | Unknown:
    """The layer that predicts one token more (multi-token prediction), which vLLM loads for speculation only."""
    text = Fields(text_config(config))
    kinds = layer_kinds(text.values)
    if isinstance(kinds, Unknown):
        return kinds
    try:
        last = len(kinds) - 1
        joined = Matrix("mtp.eh_proj", 2 * hidden(text), hidden(text))
        return (joined, *(Matrix(f"mtp.{each.name}", each.inputs, each.outputs, each.copies, each.linear) for each in decoder_layer(text, "full", last)))
    except LackingError as lacking:
        return Unknown(str(lacking))


def _role(text: Fields, layer: int) -> str:
    pattern, words = text.values.get("hybrid_override_pattern"), text.values.get("layers_block_type")
    if isinstance(pattern, str) and layer < len(pattern):
        return _LETTERS.get(pattern[layer], "both")
    if text.kind.startswith("nemotron_h") and isinstance(words, list) and layer < len(words):
        return _WORDS.get(str(words[layer]), "both")
    return "both"


def _behind(text: Fields, layer: int, name: str) -> Iterator[Matrix]:
    """A pure Mamba layer has nothing behind its mixer."""
    if text.kind in {"mamba", "falcon_mamba", "mamba2"}:
        return iter(())
    if text.kind == "jamba" and expert_count(text) == 1:
        return mlp(text, text.need("intermediate_size"), name)
    return feed_forward(text, layer, name)


def _mixers(text: Fields, kind: LayerKind) -> tuple[str, ...]:
    """The mixers of mixers.py that this kind of layer has in this model."""
    if kind == "both":
        return ("full", "mamba2")
    if kind != "state":
        return () if kind == "none" else ("sliding" if kind == "sliding" else "full",)
    if text.number("linear_num_value_heads"):
        return ("delta",)
    if text.part("linear_attn_config"):
        return ("kimi",)
    if text.number("conv_L_cache"):
        return ("conv",)
    if text.kind in {"jamba", "mamba", "falcon_mamba"}:
        return ("mamba1",)
    if text.number("ssm_state_size", "mamba_d_state", "state_size"):
        return ("mamba2",)
    msg = f"the states of a {text.kind or 'nameless'} model are not known here"
    raise LackingError(msg)


def _removed(text: Fields, layer: int) -> bool:
    """Whether a searched model dropped this layer's attention (models/nemotron_nas.py)."""
    blocks = text.values.get("block_configs")
    block = blocks[layer] if isinstance(blocks, list) and layer < len(blocks) else None
    attention = block.get("attention") if isinstance(block, dict) else None
    return isinstance(attention, dict) and attention.get("no_op") is True
