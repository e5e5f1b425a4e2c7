"""The weights of one layer's MLP or experts: pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_guard.model.fields import Fields, LackingError
from vllm_guard.model.matrix import Matrix
from vllm_guard.model.mixers import hidden

_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# Two matrices, up and down, where others have a gate beside (transformers modeling_*.py).
_UNGATED: Final = frozenset(
    (
        "bert",
        "roberta",
        "xlm-roberta",
        "camembert",
        "distilbert",
        "electra",
        "opt",
        "gpt2",
        "gptj",
        "gpt_neo",
        "gpt_neox",
        "gpt_bigcode",
        "bloom",
        "falcon",
        "mpt",
        "phi",
        "phi-msft",
        "starcoder2",
        "persimmon",
        "nemotron",
        "nemotron_h",
        "arcee",
        "apertus",
    )
)
_LARGEST_FACTOR: Final = 16
_LLAMA4: Final = frozenset(("llama4", "llama4_text"))


def is_gated(text: Fields) -> bool:
    """Whether a gate stands beside the up projection of this model's MLPs."""
    return text.kind not in _UNGATED


def expert_count(text: Fields) -> int:
    """Experts of a layer, 0 for a dense model."""
    return text.number(*_EXPERTS)


def has_experts(text: Fields, layer: int) -> bool:
    """Whether this layer has experts, by whichever of the usual keys the config uses."""
    if not expert_count(text) or text.values.get("enable_moe_block") is False:
        return False
    if layer < text.number("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index") or layer in text.numbers("mlp_only_layers"):
        return False
    for key, routed in (("moe_layer_freq", 1), ("mlp_layer_types", "sparse")):
        each = text.values.get(key)
        if isinstance(each, list):
            return layer < len(each) and each[layer] == routed
    layers = text.numbers("moe_layers")
    if layers and text.kind in _LLAMA4:
        return layer in layers
    period = text.number("expert_layer_period")
    if period:
        return layer % period == text.number("expert_layer_offset")
    step = text.number("interleave_moe_layer_step", "decoder_sparse_step", default=1)
    return (layer + 1) % step == 0 and layer % text.number("moe_layer_freq", "moe_layer_interval", default=1) == 0


def feed_forward(text: Fields, layer: int, name: str) -> Iterator[Matrix]:
    """What stands behind the mixer of this layer."""
    blocks = text.values.get("block_configs")
    if isinstance(blocks, list):
        yield from pruned(text, blocks, layer, name)
        return
    routed = has_experts(text, layer)
    if routed:
        yield from experts(text, name)
    # Gemma 4 has an MLP beside its experts (models/gemma4.py).
    if not routed or text.kind.startswith("gemma4"):
        dense_layers = text.number("intermediate_size_mlp", "moe_dense_ffn_hidden_size")
        width = dense_layers or text.number("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_ff")
        yield from mlp(text, _adjusted(text, width) or default_width(text), name)


def _adjusted(text: Fields, width: int) -> int:
    """LFM2 takes two thirds of its config's width, times a factor, rounded up (models/lfm2.py Lfm2MLP)."""
    factor, multiple = text.values.get("block_ffn_dim_multiplier"), text.number("block_multiple_of", default=256)
    if not text.says("block_auto_adjust_ff_dim"):
        return width
    inner = int(2 * width / 3)
    inner = int(factor * inner) if isinstance(factor, int | float) and 0 < factor <= _LARGEST_FACTOR else inner
    return -(-inner // multiple) * multiple


def default_width(text: Fields) -> int:
    """Four times the hidden size, the rule of the classes whose configs leave it out; LackingError for others."""
    if not is_gated(text):
        return 4 * hidden(text)
    return text.need("intermediate_size")


def mlp(text: Fields, width: int, name: str, copies: int = 1, inputs: int = 0) -> Iterator[Matrix]:
    """Gate, up and down projections of this inner width."""
    inputs = inputs or hidden(text)
    if is_gated(text):
        yield Matrix(f"{name}.gate_proj", inputs, width, copies)
    yield Matrix(f"{name}.up_proj", inputs, width, copies)
    yield Matrix(f"{name}.down_proj", width, inputs, copies)


def experts(text: Fields, name: str) -> Iterator[Matrix]:
    """The router, the routed and the shared experts."""
    width, count, latent = hidden(text), expert_count(text), text.number("moe_latent_size")
    inner = text.number("moe_intermediate_size", "expert_ffn_hidden_size") or text.need("intermediate_size")
    yield Matrix(f"{name}.gate", width, count, linear=False)
    if latent:
        yield Matrix(f"{name}.fc1_latent_proj", width, latent)
        yield Matrix(f"{name}.fc2_latent_proj", latent, width)
    yield from mlp(text, inner, f"{name}.experts", count, latent)
    shared = shared_width(text, inner)
    if shared:
        yield from mlp(text, shared, f"{name}.shared_expert")


def shared_width(text: Fields, inner: int) -> int:
    """The inner width of all shared experts of a layer together."""
    if text.kind in _LLAMA4:
        return inner
    stated = text.number("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim")
    # Some configs give a size and a count of zero for "none".
    return stated or inner * text.number("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")


def pruned(text: Fields, blocks: list[object], layer: int, name: str) -> Iterator[Matrix]:
    """A block of a model whose layers were searched one by one (models/nemotron_nas.py)."""
    block = blocks[layer] if layer < len(blocks) else None
    ffn = block.get("ffn") if isinstance(block, dict) else None
    if not isinstance(ffn, dict):
        msg = f"block_configs does not describe layer {layer}"
        raise LackingError(msg)
    width, multiple = hidden(text), ffn.get("ffn_mult")
    if ffn.get("replace_with_linear") is True:
        yield Matrix(f"{name}.linear_mlp", width, width)
    elif ffn.get("no_op") is not True:
        inner = Fields(ffn).number("intermediate_size")
        if not inner and isinstance(multiple, int | float) and 0 < multiple < 1 << 20:
            inner = -(-int(2 * multiple * width / 3) // 256) * 256
        if not inner:
            msg = f"block_configs does not say ffn_mult of layer {layer}"
            raise LackingError(msg)
        yield from mlp(text, inner, name)
