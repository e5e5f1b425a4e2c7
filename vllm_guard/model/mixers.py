"""The weights of one layer's attention, or of what stands in its place: pure. Biases and norms are left out: they are below a thousandth."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_guard.model.fields import Fields, LackingError
from vllm_guard.model.matrix import Matrix, table

_GATED_QUERY = frozenset(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe"))


def hidden(text: Fields) -> int:
    """The width of the model."""
    return text.need("hidden_size", "n_embd", "d_model")


def query_heads(text: Fields, layer: int = 0) -> int:
    """Heads of a layer."""
    every = text.number("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
    return text.at("num_attention_heads_per_layer", layer, every) or text.need("num_attention_heads")


def key_heads(text: Fields, mixer: str, layer: int) -> int:
    """KV heads of a layer: the units in which tensor parallelism deals keys and values."""
    blocks = text.values.get("block_configs")
    if isinstance(blocks, list) and layer < len(blocks):
        return max(1, query_heads(text) // Fields(_attention_block(blocks[layer])).number("n_heads_in_group", default=1))
    if text.says("multi_query") and not text.says("new_decoder_architecture"):
        return 1
    every = text.number("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv", default=query_heads(text))
    if mixer == "full":
        return text.number("num_global_key_value_heads", default=every) if text.says("attention_k_eq_v") else every
    return text.number("swa_num_key_value_heads", default=every) if mixer == "sliding" else every


def _attention_block(block: object) -> dict[str, object]:
    attention = block.get("attention") if isinstance(block, dict) else None
    return attention if isinstance(attention, dict) else {}


def mixer(text: Fields, kind: str, layer: int, name: str) -> Iterator[Matrix]:
    """The matrices of a layer's mixer of this kind; LackingError where the config does not say enough."""
    if kind in {"full", "sliding"}:
        if text.kind == "deepseek_v4":
            return grouped(text, name)
        return latent(text, name) if text.number("kv_lora_rank") else attention(text, kind, layer, name)
    if kind == "delta":
        return gated_delta(text, name)
    if kind == "kimi":
        return kimi_delta(text, name)
    if kind == "mamba2":
        return mamba2(text, name)
    if kind == "mamba1":
        return mamba1(text, name)
    if kind == "conv":
        return short_conv(text, name)
    return iter(())


def attention(text: Fields, kind: str, layer: int, name: str) -> Iterator[Matrix]:
    """Query, key, value and output projections; vLLM keeps a value projection where the checkpoint uses the keys for both (models/gemma4.py)."""
    width, heads, groups = hidden(text), query_heads(text, layer), key_heads(text, kind, layer)
    if kind == "sliding":
        heads = text.number("swa_num_attention_heads", default=heads)
    head = text.number("head_dim", "attention_head_dim", "kv_channels", default=width // heads)
    if kind == "sliding":
        head = text.number("swa_head_dim", default=head)
    elif kind == "full":
        head = text.number("global_head_dim", default=head)
    value = text.number("v_head_dim", default=head)
    yield Matrix(f"{name}.q_proj", width, heads * head * (2 if text.says("attn_output_gate") or text.kind in _GATED_QUERY else 1))
    yield Matrix(f"{name}.k_proj", width, groups * head)
    yield Matrix(f"{name}.v_proj", width, groups * value)
    yield Matrix(f"{name}.o_proj", heads * value, width)


def latent(text: Fields, name: str) -> Iterator[Matrix]:
    """Multi-head latent attention, with the indexer of sparse attention where there is one. What leads down to the latents is on every rank."""
    width, heads = hidden(text), query_heads(text)
    rank, rope = text.need("kv_lora_rank"), text.need("qk_rope_head_dim")
    plain, value = text.need("qk_nope_head_dim"), text.need("v_head_dim")
    low = text.number("q_lora_rank")
    if low:
        yield Matrix(f"{name}.q_a_proj", width, low)
    yield Matrix(f"{name}.q_b_proj" if low else f"{name}.q_proj", low or width, heads * (plain + rope))
    yield Matrix(f"{name}.kv_a_proj_with_mqa", width, rank + rope)
    yield Matrix(f"{name}.kv_b_proj", rank, heads * (plain + value))
    yield Matrix(f"{name}.o_proj", heads * value, width)
    index = text.number("index_n_heads")
    if index:
        size = text.need("index_head_dim")
        yield Matrix(f"{name}.indexer.wq_b", low or width, index * size)
        yield Matrix(f"{name}.indexer.wk", width, size)
        yield table(f"{name}.indexer.weights_proj", width * index)


def grouped(text: Fields, name: str) -> Iterator[Matrix]:
    """Attention with one KV head and a low-rank output in groups (DeepSeek V4), without the compressors, which are a hundredth of it."""
    width, inner, low = hidden(text), query_heads(text) * text.need("head_dim"), text.need("q_lora_rank")
    yield Matrix(f"{name}.wq_a", width, low)
    yield Matrix(f"{name}.wq_b", low, inner)
    yield Matrix(f"{name}.wkv", width, text.need("head_dim"))
    yield Matrix(f"{name}.wo_a", inner, text.need("o_lora_rank"))
    yield Matrix(f"{name}.wo_b", text.need("o_groups") * text.need("o_lora_rank"), width)


def gated_delta(text: Fields, name: str) -> Iterator[Matrix]:
    """Gated delta net (models/qwen3_next.py)."""
    width = hidden(text)
    keys = text.need("linear_num_key_heads") * text.need("linear_key_head_dim")
    values = text.need("linear_num_value_heads") * text.need("linear_value_head_dim")
    yield Matrix(f"{name}.in_proj_qkvz", width, 2 * keys + 2 * values)
    yield Matrix(f"{name}.in_proj_ba", width, 2 * text.need("linear_num_value_heads"))
    yield table(f"{name}.conv1d", (2 * keys + values) * text.number("linear_conv_kernel_dim", default=4))
    yield Matrix(f"{name}.out_proj", values, width)


def kimi_delta(text: Fields, name: str) -> Iterator[Matrix]:
    """Kimi delta attention (models/kimi_linear.py)."""
    linear = text.part("linear_attn_config")
    if linear is None:
        msg = "the config does not say linear_attn_config"
        raise LackingError(msg)
    width, head = hidden(text), linear.need("head_dim")
    inner = linear.need("num_heads") * head
    for part in ("q_proj", "k_proj_linear", "v_proj_linear"):
        yield Matrix(f"{name}.{part}", width, inner)
        yield table(f"{name}.{part}_conv1d", inner * linear.number("short_conv_kernel_size", default=4))
    for gate in ("f", "g"):
        yield Matrix(f"{name}.{gate}_a_proj", width, head)
        yield Matrix(f"{name}.{gate}_b_proj", head, inner)
    yield Matrix(f"{name}.o_proj", inner, width)


def mamba2(text: Fields, name: str) -> Iterator[Matrix]:
    """Mamba 2 (layers/mamba/mamba_mixer2.py)."""
    width = hidden(text)
    heads = text.need("mamba_num_heads", "mamba_n_heads", "num_heads")
    inner = heads * text.number("mamba_head_dim", "mamba_d_head", "head_dim", default=text.number("mamba_expand", "expand", default=2) * width // heads)
    groups = text.number("n_groups", "mamba_n_groups", default=1) * text.need("ssm_state_size", "mamba_d_state", "state_size")
    yield Matrix(f"{name}.in_proj", width, 2 * inner + 2 * groups + heads)
    yield table(f"{name}.conv1d", (inner + 2 * groups) * text.number("conv_kernel", "mamba_d_conv", default=4))
    yield Matrix(f"{name}.out_proj", inner, width)


def mamba1(text: Fields, name: str) -> Iterator[Matrix]:
    """Mamba 1 (layers/mamba/mamba_mixer.py)."""
    width = hidden(text)
    inner = text.number("mamba_expand", "expand", default=2) * width
    inner = inner if text.number("mamba_expand") else text.number("intermediate_size", "d_inner", default=inner)
    state = text.need("mamba_d_state", "state_size")
    rank = text.number("mamba_dt_rank", "time_step_rank", default=-(-width // 16))
    yield Matrix(f"{name}.in_proj", width, 2 * inner)
    yield table(f"{name}.conv1d", inner * text.number("mamba_d_conv", "conv_kernel", default=4))
    yield Matrix(f"{name}.x_proj", inner, rank + 2 * state)
    yield Matrix(f"{name}.dt_proj", rank, inner)
    yield table(f"{name}.A_log", 2 * inner * state)  # kept in 32 bits
    yield Matrix(f"{name}.out_proj", inner, width)


def short_conv(text: Fields, name: str) -> Iterator[Matrix]:
    """A short convolution in the place of attention (models/lfm2.py)."""
    width = hidden(text)
    yield Matrix(f"{name}.in_proj", width, 3 * width)
    yield table(f"{name}.conv1d", width * text.number("conv_L_cache", default=3))
    yield Matrix(f"{name}.out_proj", width, width)
