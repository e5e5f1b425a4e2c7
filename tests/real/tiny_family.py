"""Configs of tiny models of several families that the real vLLM 0.32.0 for CPUs loads with dummy weights, serves and answers with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from real.tiny_model import CONFIG

_SHAPE: Final[Mapping[str, object]] = {**CONFIG, "max_position_embeddings": 8192}

LLAMA: Final = {**_SHAPE, "num_hidden_layers": 3}

QWEN2: Final = {**_SHAPE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 3, "tie_word_embeddings": True}

QWEN3_MOE: Final = {
    **_SHAPE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_key_value_heads": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}

GEMMA3: Final = {
    **_SHAPE,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 7,
    "sliding_window": 64,
    "sliding_window_pattern": 3,
    "query_pre_attn_scalar": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}

NEMOTRON_H: Final = {
    **_SHAPE,
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "num_hidden_layers": 6,
    "hybrid_override_pattern": "M-M*M-",
    "mamba_num_heads": 8,
    "mamba_head_dim": 32,
    "n_groups": 1,
    "ssm_state_size": 64,
    "conv_kernel": 4,
    "chunk_size": 256,
    "mlp_hidden_act": "relu2",
    "layer_norm_epsilon": 1e-5,
}

LFM2: Final = {
    **_SHAPE,
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 128,
    "norm_eps": 1e-5,
    "block_dim": 128,
    "block_ff_dim": 256,
    "block_multiple_of": 32,
    "block_auto_adjust_ff_dim": False,
    "tie_word_embeddings": True,
}
