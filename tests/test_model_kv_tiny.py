"""Tiny models of every kind against what the real vLLM 0.32.0 for CPUs planned for them: blocks, printed tokens and the need of one sequence."""

from __future__ import annotations

from typing import Any, Final

import pytest

from vllm_guard.model.kv_cache import KvCache, kv_cache
from vllm_guard.model.kv_layers import KvLayers, read_layers
from vllm_guard.model.kv_setting import KvSetting
from vllm_guard.release import Release
from vllm_guard.units import MIB

# --kv-cache-memory-bytes 16777216 --max-model-len 2048 --max-num-batched-tokens 512 --enforce-eager, one step in flight. The CPU build takes blocks of
# 128 tokens and keeps recurrent states in float32.
POOL_BYTES: Final = 16 * MIB
ATTENTION: Final = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
MAMBA2: Final = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 64, "mamba_d_conv": 4}


@pytest.mark.parametrize(
    ("config", "changes", "blocks", "tokens", "need_bytes"),
    [
        pytest.param(
            {**ATTENTION, "model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 64, "sliding_window_pattern": 3},
            {},
            256,
            15_420,
            2_228_224,
            id="Gemma 3, every third layer full",
        ),
        pytest.param({**ATTENTION, "model_type": "gemma2", "num_hidden_layers": 5, "sliding_window": 64}, {}, 256, 18_724, 1_835_008, id="Gemma 2"),
        pytest.param(
            {**ATTENTION, "model_type": "gemma4_text", "num_hidden_layers": 12, "global_head_dim": 64, "sliding_window": 64, "num_kv_shared_layers": 4},
            {},
            256,
            11_915,
            2_883_584,
            id="Gemma 4, unlike heads and shared layers",
        ),
        pytest.param(
            {**ATTENTION, "model_type": "mistral", "num_hidden_layers": 3, "sliding_window": 64}, {}, 170, 58_026, 589_824, id="Mistral, sliding only"
        ),
        pytest.param(
            {"model_type": "deepseek_v2", "num_hidden_layers": 3, "num_attention_heads": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
            {"block_size": 16},
            303,
            4_848,
            7_077_888,
            id="DeepSeek, latent attention",
        ),
        pytest.param(
            {
                **ATTENTION,
                **MAMBA2,
                "model_type": "granitemoehybrid",
                "num_hidden_layers": 4,
                "layer_types": ["mamba", "attention", "mamba", "mamba"],
            },
            {},
            170,
            23_210,
            1_474_560,
            id="Granite 4, Mamba 2 beside attention",
        ),
        pytest.param(
            {
                **ATTENTION,
                "model_type": "nemotron_h",
                "hybrid_override_pattern": "M-M*M-",
                "mamba_num_heads": 8,
                "mamba_head_dim": 32,
                "n_groups": 1,
                "ssm_state_size": 64,
                "conv_kernel": 4,
            },
            {},
            170,
            23_210,
            1_474_560,
            id="Nemotron-H",
        ),
        pytest.param(
            {**ATTENTION, **MAMBA2, "model_type": "falcon_h1", "num_hidden_layers": 3}, {}, 56, 12_743, 2_654_208, id="Falcon-H1, both in every layer"
        ),
        pytest.param(
            {**ATTENTION, "model_type": "llama4_text", "num_hidden_layers": 8, "attention_chunk_size": 256}, {}, 256, 15_420, 2_228_224, id="Llama 4, chunks"
        ),
        pytest.param(
            {
                **ATTENTION,
                "model_type": "qwen3_next",
                "num_hidden_layers": 8,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 32,
                "linear_value_head_dim": 32,
                "linear_conv_kernel_dim": 4,
            },
            {},
            256,
            23_831,
            1_441_792,
            id="Qwen3-Next, gated delta net beside attention",
        ),
        pytest.param(
            {
                **ATTENTION,
                "model_type": "jamba",
                "num_hidden_layers": 8,
                "attn_layer_period": 4,
                "attn_layer_offset": 2,
                "mamba_d_state": 16,
                "mamba_d_conv": 4,
                "mamba_expand": 2,
            },
            {},
            256,
            23_831,
            1_441_792,
            id="Jamba, Mamba 1 beside attention",
        ),
        pytest.param(
            {"model_type": "mamba2", "num_hidden_layers": 3, "num_heads": 8, "head_dim": 32, "state_size": 16, "n_groups": 1, "conv_kernel": 4},
            {},
            308,
            630_784,
            54_336,
            id="Mamba 2 alone",
        ),
    ],
)
def test_the_plan_is_the_one_that_vllm_made(config: dict[str, Any], changes: dict[str, Any], blocks: int, tokens: int, need_bytes: int) -> None:
    """Blocks of the pool, printed tokens and the bytes of one sequence are equal to the last digit."""
    held = read_layers(config, Release(0, 32))
    assert isinstance(held, KvLayers), held
    settings: dict[str, Any] = {"block_size": 128, "concurrent_batches": 1, "recurrent_bytes": 4, **changes}
    cache = kv_cache(held, KvSetting(Release(0, 32), max_model_len=2048, max_num_batched_tokens=512, **settings))
    assert isinstance(cache, KvCache), cache
    assert (blocks, tokens, need_bytes) == (cache.blocks_in(POOL_BYTES), cache.printed_tokens(POOL_BYTES), cache.one_sequence_bytes)
