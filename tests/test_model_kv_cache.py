"""The key-value cache of a model: bytes per token, what one sequence needs, and what vLLM prints of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_guard.model.kv_cache import KvCache, kv_cache
from vllm_guard.model.kv_dtype import stored_kv_cache_dtype
from vllm_guard.model.kv_layers import KvLayers, read_layers
from vllm_guard.model.kv_pages import content_bytes, state_size_bytes
from vllm_guard.model.kv_setting import KvSetting
from vllm_guard.model.kv_shapes import Attention
from vllm_guard.model.kv_states import State
from vllm_guard.model.unknown import Unknown
from vllm_guard.release import Release
from vllm_guard.units import GIB, MIB

LATEST: Final = Release(0, 32)
SETTING: Final = KvSetting(LATEST, max_model_len=32768, max_num_batched_tokens=2048)

QWEN_25_HALF_B: Final = {"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2}
QWEN_25_VL_3B: Final = {
    "model_type": "qwen2_5_vl",
    "num_hidden_layers": 36,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "use_sliding_window": False,
    "sliding_window": 32768,
}
QWEN3_CODER_30B: Final = {"model_type": "qwen3_moe", "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
DEEPSEEK_V3: Final = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
GEMMA3_27B: Final = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
    },
}
GEMMA4_31B: Final = {
    "model_type": "gemma4",
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 4,
    "sliding_window": 1024,
}
GPT_OSS_20B: Final = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
}
GPT_OSS_120B: Final = {**GPT_OSS_20B, "num_hidden_layers": 36}
QWEN36_27B: Final = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
    },
}
QWEN35_9B: Final = {
    "model_type": "qwen3_5",
    "text_config": {**QWEN36_27B["text_config"], "num_hidden_layers": 32, "num_attention_heads": 16, "linear_num_value_heads": 32},  # type: ignore[dict-item]
}
LLAMA4_SCOUT: Final = {"model_type": "llama4_text", "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128}
WHISPER_TURBO: Final = {
    "model_type": "whisper",
    "is_encoder_decoder": True,
    "decoder_layers": 4,
    "decoder_attention_heads": 20,
    "d_model": 1280,
    "max_source_positions": 1500,
}


def layers_of(config: Mapping[str, Any], release: Release | None = LATEST) -> KvLayers:
    """The layers of a config that says enough."""
    held = read_layers(config, release)
    assert isinstance(held, KvLayers), held
    return held


def cache_of(config: Mapping[str, Any], setting: KvSetting = SETTING) -> KvCache:
    """The cache of a config that says enough."""
    cache = kv_cache(layers_of(config, setting.release), setting)
    assert isinstance(cache, KvCache), cache
    return cache


def attention(heads: int = 2, size: int = 64, kind: str = "full", span: int = 0, size_v: int | None = None) -> Attention:
    """One layer."""
    return Attention(0, kind, heads, size, size if size_v is None else size_v, span)  # type: ignore[arg-type]


# Two times layers times heads times size times bytes; recorded: facts of real starts on GPUs.
@pytest.mark.parametrize(
    ("config", "changes", "expected_bytes"),
    [
        pytest.param(QWEN_25_VL_3B, {}, 36_864, id="grouped-query attention counts key-value heads, and a window that is switched off is none"),
        pytest.param(QWEN_25_HALF_B, {}, 12_288, id="the head size is hidden size over heads where the config does not say it"),
        pytest.param(QWEN_25_HALF_B, {"tensor_parallel_size": 2}, 6_144, id="two ranks split two heads"),
        pytest.param(QWEN_25_HALF_B, {"tensor_parallel_size": 8}, 6_144, id="more ranks than heads keep one head each"),
        pytest.param(QWEN_25_HALF_B, {"model_bytes": 4}, 24_576, id="a float32 model keeps four bytes a value"),
        pytest.param(QWEN_25_HALF_B, {"kv_cache_dtype": "fp8"}, 6_144, id="fp8 keeps one byte a value"),
        pytest.param(QWEN_25_HALF_B, {"pipeline_parallel_size": 2}, 6_144, id="two stages split the layers"),
        pytest.param(QWEN_25_HALF_B, {"pipeline_parallel_size": 5}, 2_560, id="of 24 layers on five stages the fullest has five"),
        pytest.param(QWEN_25_HALF_B, {"pipeline_parallel_size": 2, "layer_partition": (8, 16)}, 8_192, id="a stated partition is taken"),
        pytest.param(QWEN3_CODER_30B, {}, 98_304, id="head_dim is taken before hidden size over heads"),
        pytest.param(DEEPSEEK_V3, {}, 61 * 1152, id="latent attention keeps 576 values of a token"),
        pytest.param(DEEPSEEK_V3, {"tensor_parallel_size": 8}, 61 * 1152, id="every rank keeps the whole latent vector"),
        pytest.param(
            {**DEEPSEEK_V3, "model_type": "deepseek_v32", "index_topk": 2048, "index_head_dim": 128},
            {},
            61 * (1152 + 132),
            id="sparse attention keeps an index key of 132 bytes beside it",
        ),
        pytest.param(
            {**DEEPSEEK_V3, "model_type": "deepseek_v32", "index_topk": 2048, "index_head_dim": 128},
            {"kv_cache_dtype": "fp8_ds_mla"},
            61 * (656 + 132),
            id="the packed fp8 layout is 656 bytes",
        ),
        pytest.param(
            {"model_type": "falcon", "num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "multi_query": True}, {}, 512, id="multi-query"
        ),
        pytest.param({"model_type": "opt", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12}, {}, 36_864, id="without grouping"),
        pytest.param({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}, {}, 36_864, id="the older spelling"),
        pytest.param(
            {
                "model_type": "nemotron-nas",
                "hidden_size": 1024,
                "num_attention_heads": 8,
                "block_configs": [{"attention": {"n_heads_in_group": 4, "no_op": False}}, {"attention": {"n_heads_in_group": None, "no_op": True}}],
            },
            {},
            1_024,
            id="a block without attention keeps nothing",
        ),
        pytest.param({"model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12}, {}, 0, id="an encoder keeps nothing"),
    ],
)
def test_bytes_per_token_are_those_that_vllm_allocates(config: dict[str, Any], changes: dict[str, Any], expected_bytes: int) -> None:
    """A token costs what the layers of the fullest rank keep of it."""
    assert expected_bytes == cache_of(config, replace(SETTING, **changes)).bytes_per_token


@pytest.mark.parametrize(
    ("dtype", "layer", "expected_bytes"),
    [
        pytest.param("auto", attention(2, 128), 1024, id="16 bits"),
        pytest.param("fp8_e5m2", attention(2, 128), 512, id="8 bits"),
        pytest.param("fp8_per_token_head", attention(2, 128), 2 * (256 + 8), id="a scale for each key and value head"),
        pytest.param("int8_per_token_head", attention(2, 128), 2 * (256 + 8), id="the same in int8"),
        pytest.param("int4_per_token_head", attention(2, 128), 2 * (128 + 8), id="half of it in int4"),
        pytest.param("nvfp4", attention(2, 128), 2 * 2 * (64 + 8), id="four bits and a scale for every sixteen values"),
        pytest.param("auto", attention(4, 192, size_v=128), 4 * 320 * 2, id="values narrower than keys"),
        pytest.param("auto", attention(1, 576, "mla", size_v=0), 1152, id="a latent vector"),
        pytest.param("nvfp4_ds_mla", attention(1, 576, "mla", size_v=0), 352, id="a packed latent vector"),
    ],
)
def test_cache_dtypes_size_a_token(dtype: str, layer: Attention, expected_bytes: int) -> None:
    """One token of one layer, by the formulas of v1/kv_cache_interface.py and the backends' packing."""
    assert expected_bytes == content_bytes(layer, replace(SETTING, kv_cache_dtype=dtype))


@pytest.mark.parametrize("dtype", ["turboquant_k8v4", "octave_k3v4", "ultraquant_4bit", "no such", "fp8_ds_mla"])
def test_a_cache_dtype_of_unknown_layout_is_unknown(dtype: str) -> None:
    """What is not modelled is not guessed."""
    assert isinstance(kv_cache(layers_of(QWEN_25_HALF_B), replace(SETTING, kv_cache_dtype=dtype)), Unknown)


def test_context_parallelism_and_old_releases_are_unknown() -> None:
    """Neither is planned in the way that is modelled here."""
    held = layers_of(QWEN_25_HALF_B)
    assert isinstance(kv_cache(held, replace(SETTING, context_parallel=True)), Unknown)
    assert isinstance(kv_cache(held, replace(SETTING, release=Release(0, 8, 5))), Unknown)
    assert isinstance(kv_cache(held, replace(SETTING, release=Release(0, 9, 2))), KvCache)


# RTX 2080 Ti, 0.32.0, Qwen2.5-0.5B-Instruct, --kv-cache-memory-bytes 16777216, block size 16.
def test_a_pool_of_16_mib_holds_1360_tokens_and_serves_1344() -> None:
    """The pool prints all its blocks; the check leaves out the null block from 0.30."""
    short = cache_of(QWEN_25_HALF_B, replace(SETTING, max_model_len=512))
    long = cache_of(QWEN_25_HALF_B, replace(SETTING, max_model_len=2048))
    assert short.fits(16 * MIB, 512)
    assert 1360 == short.printed_tokens(16 * MIB)
    assert not long.fits(16 * MIB, 2048)
    assert 1344 == long.largest_max_model_len(16 * MIB)


def test_before_0_30_the_null_block_is_not_held_back() -> None:
    """The estimate is one block larger."""
    before = cache_of(QWEN_25_HALF_B, replace(SETTING, release=Release(0, 28)))
    assert (0, 1360) == (before.null_block_bytes, before.largest_max_model_len(16 * MIB))


# The CPU build 0.32.0 with a model of 512 bytes a token and blocks of 128 tokens.
@pytest.mark.parametrize(("pool_bytes", "estimate"), [(MIB, 1920), (16 * MIB, 32640)])
def test_estimates_of_the_cpu_build(pool_bytes: int, estimate: int) -> None:
    """One block of 64 KiB is held back."""
    cache = kv_cache(KvLayers(2, (attention(1, 64), replace(attention(1, 64), index=1))), replace(SETTING, max_model_len=262_144, block_size=128))
    assert isinstance(cache, KvCache)
    assert (512, estimate) == (cache.bytes_per_token, cache.largest_max_model_len(pool_bytes))
    assert 131_072 == cache.printed_tokens(64 * MIB)


# Printed by real starts: release, flags, pool and concurrency as logged. Bytes of a sequence = pool / printed concurrency.
@pytest.mark.parametrize(
    ("config", "setting", "blocks", "need_gib"),
    [
        pytest.param(GPT_OSS_120B, KvSetting(Release(0, 10, 1), 16384, 2048, tensor_parallel_size=4), 1024 + 137, 0.1594, id="gpt-oss-120b, 0.10.1, tp 4"),
        pytest.param(GPT_OSS_20B, KvSetting(Release(0, 13), 8192, 2048), 512 + 137, 0.2377, id="gpt-oss-20b, 0.13.0"),
        pytest.param(QWEN35_9B, KvSetting(Release(0, 18), 8192, 2048), 16 + 3, 0.3063, id="Qwen3.5-9B, 0.18.0: one state for each linear group"),
        pytest.param(QWEN36_27B, KvSetting(Release(0, 19), 32768, 2048, tensor_parallel_size=4), 42 + 3, 0.5386, id="Qwen3.5-27B, 0.19.0, tp 4"),
        pytest.param(QWEN36_27B, KvSetting(Release(0, 27, 1), 4096, 4096), 6 + 6, 0.5745, id="Qwen3.6-27B, 0.27.1: prefix caching keeps a second state"),
    ],
)
def test_models_of_several_kinds_need_what_real_starts_printed(config: dict[str, Any], setting: KvSetting, blocks: int, need_gib: float) -> None:
    """Every group takes its own blocks of the one pool."""
    cache = cache_of(config, setting)
    assert blocks == cache.blocks_of_one_sequence
    assert pytest.approx(need_gib, rel=0.003) == cache.one_sequence_bytes / GIB


# Qwen3.8-27B, 0.23.1, tp 2: 3.86 GiB, 161 blocks, 123,399 tokens at a length of 122,633 (vLLM issue 49064).
def test_a_pool_holds_the_blocks_and_tokens_that_a_real_start_printed() -> None:
    """Recurrent layers and attention share the blocks."""
    cache = cache_of(QWEN36_27B, KvSetting(Release(0, 23, 1), 122_633, 2048, tensor_parallel_size=2))
    pool_bytes = 161 * cache.bytes_per_block + MIB
    assert (784, 160, 161) == (cache.block_size, cache.blocks_of_one_sequence, cache.blocks_in(pool_bytes))
    assert 123_399 == cache.printed_tokens(pool_bytes)
    assert pytest.approx(3.86, abs=0.01) == pool_bytes / GIB


HEADS: Final = {"num_attention_heads": 4, "head_dim": 32, "sliding_window": 64}
QWEN_SLIDES: Final = {"use_sliding_window": True, "max_window_layers": 2}


# f full, s sliding, c chunked: transformers configuration_*.py and vLLM's models/*.py.
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param({"model_type": "llama"}, "ssssss", id="a window alone slides in every layer"),
        pytest.param({"model_type": "llama", "sliding_window": None}, "ffffff", id="null is no window"),
        pytest.param({"model_type": "llama", "sliding_window": 0}, "ffffff", id="nor is 0"),
        pytest.param({"model_type": "qwen2", "use_sliding_window": False}, "ffffff", id="Qwen's is switched off"),
        pytest.param({"model_type": "qwen2", **QWEN_SLIDES}, "ffssss", id="or counts from a layer on"),
        pytest.param({"model_type": "gemma2"}, "sfsfsf", id="Gemma 2"),
        pytest.param({"model_type": "gemma3_text"}, "sssssf", id="Gemma 3"),
        pytest.param({"model_type": "gemma3_text", "sliding_window_pattern": 3}, "ssfssf", id="Gemma 3 with a pattern"),
        pytest.param({"model_type": "gemma3n_text", "num_kv_shared_layers": 2}, "ssss", id="Gemma 3n shares its last layers"),
        pytest.param({"model_type": "gpt_oss"}, "sfsfsf", id="gpt-oss"),
        pytest.param({"model_type": "cohere2"}, "sssfss", id="Command"),
        pytest.param({"model_type": "llama4_text"}, "cccfcc", id="Llama 4"),
        pytest.param({"model_type": "llama4_text", "no_rope_layers": [1, 0, 1, 0, 1, 0]}, "cfcfcf", id="Llama 4 with its list"),
        pytest.param({"model_type": "llama4_text", "attention_chunk_size": None}, "ffffff", id="Llama 4 without chunks"),
        pytest.param({"model_type": "laguna", "layer_types": ["full_attention", *["sliding_attention"] * 5]}, "fsssss", id="a list of types counts most"),
        pytest.param({"model_type": "minimax_m2", "sliding_window": None, "attn_type_list": ["1 x6"]}, "ffffff", id="MiniMax-M2 ignores its list"),
    ],
)
def test_which_layers_keep_everything_and_which_do_not(config: dict[str, Any], expected: str) -> None:
    """One letter for every layer that keeps something."""
    held = layers_of({**HEADS, "num_hidden_layers": 6, **config})
    assert expected == "".join(layer.kind[0] for layer in held.layers if isinstance(layer, Attention))


def test_gemma3_groups_its_sliding_layers_by_the_number_of_full_ones() -> None:
    """62 layers, every sixth full: ten a group, six sliding groups of which the last are padded, one full (the window's 1023 and two batches in flight)."""
    cache = cache_of(GEMMA3_27B)
    page_bytes = 16 * 16 * 256 * 2
    sliding_blocks = -(-(1023 + 2 * 2048) // 16) + 1
    assert 10 * page_bytes == cache.bytes_per_block
    assert 6 * sliding_blocks + 2048 == cache.blocks_of_one_sequence
    assert cache.bytes_per_token is None


def test_before_0_28_one_batch_is_in_flight() -> None:
    """The batch budget sets what a sliding window needs, twice from 0.28 with asynchronous scheduling."""
    cache = cache_of(GEMMA3_27B, replace(SETTING, release=Release(0, 24)))
    assert 6 * (-(-(1023 + 2048) // 16) + 1) + 2048 == cache.blocks_of_one_sequence


def test_layers_of_unlike_heads_share_pages_of_one_size() -> None:
    """Gemma 4: a full layer has half the bytes a token of a sliding one, so its block takes 32 tokens."""
    cache = cache_of(GEMMA4_31B)
    assert 10 * 16 * 16384 == cache.bytes_per_block
    assert 1024 + 5 * (-(-(1023 + 4096) // 16) + 1) == cache.blocks_of_one_sequence


def test_layers_that_share_a_cache_keep_nothing() -> None:
    """The last layers of Gemma 4 E4B read the cache of earlier ones."""
    held = layers_of({**GEMMA4_31B, "num_hidden_layers": 42, "num_kv_shared_layers": 18})
    assert (42, 24) == (held.decoder_layers, len(held.layers))


def test_mimo_keeps_narrower_values_and_more_heads_in_sliding_layers() -> None:
    """MiMo-V2: keys of 192 and values of 128, four heads where attention is full and eight where it slides."""
    config = {
        "model_type": "mimo_v2_flash",
        "num_hidden_layers": 3,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "sliding_window": 128,
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 192,
        "swa_v_head_dim": 128,
        "hybrid_layer_pattern": [0, 1, 1],
    }
    shapes = [(layer.kind, layer.kv_heads, layer.head_size, layer.head_size_v) for layer in layers_of(config).layers if isinstance(layer, Attention)]
    assert [("full", 4, 192, 128), ("sliding", 8, 192, 128), ("sliding", 8, 192, 128)] == shapes


def planned(layers: Sequence[Attention | State], setting: KvSetting) -> KvCache:
    """The cache of layers that no config describes, one decoder layer each."""
    cache = kv_cache(KvLayers(len(layers), tuple(replace(layer, index=index) for index, layer in enumerate(layers))), setting)
    assert isinstance(cache, KvCache), cache
    return cache


def test_a_window_keeps_one_token_less_than_its_width_and_one_block_more() -> None:
    """1024 tokens and 4096 in flight are 320 blocks, and the window may start within one."""
    assert 321 == planned([attention(kind="sliding", span=1025)], SETTING).blocks_of_one_sequence
    assert 322 == planned([attention(kind="sliding", span=1026)], SETTING).blocks_of_one_sequence


@pytest.mark.parametrize(("release", "groups"), [(Release(0, 10, 2), 3), (Release(0, 11, 2), 2)])
def test_nearly_equal_kinds_are_padded_to_the_larger_from_0_11(release: Release, groups: int) -> None:
    """12 sliding layers and 13 full ones: two groups of 13 since then, three of 12 before."""
    layers = [attention(kind="sliding", span=128)] * 12 + [attention()] * 13
    assert groups == len(planned(layers, replace(SETTING, release=release)).plan.groups)


def test_pipeline_stages_hold_their_part_of_every_group() -> None:
    """Groups take every other layer of their kind, so each stage holds as many of each: one full and two sliding layers a stage, pages of 4 KiB."""
    layers = [attention(2, 32), attention(2, 32, "sliding", 64), attention(2, 32, "sliding", 64)] * 2
    cache = planned(layers, replace(SETTING, pipeline_parallel_size=2))
    assert [(4096, 4096)] * 3 == [group.stage_bytes for group in cache.plan.groups]


@pytest.mark.parametrize(("layers", "stages", "expected"), [(61, 2, (31, 30)), (26, 4, (6, 7, 7, 6)), (24, 2, (12, 12)), (7, 4, (2, 2, 2, 1))])
def test_what_does_not_divide_goes_to_the_stages_before_the_last(layers: int, stages: int, expected: tuple[int, ...]) -> None:
    """distributed/utils.py get_pp_indices."""
    assert expected == replace(SETTING, pipeline_parallel_size=stages).stage_sizes(layers)


def test_pages_that_do_not_divide_are_padded() -> None:
    """A sliding layer with five heads and a full one with two: both take the larger page, of 16 tokens."""
    cache = planned([attention(5, kind="sliding", span=64), attention(2)], SETTING)
    assert [(16, 20480), (16, 20480)] == [(group.page.block_size, group.page.size_bytes) for group in cache.plan.groups]


def test_gemma3n_shares_its_last_fifteen_layers_by_default() -> None:
    """What the Hugging Face class fills in."""
    assert len(layers_of({**HEADS, "model_type": "gemma3n_text", "num_hidden_layers": 35}).layers) == 35 - 15


def test_latent_attention_beside_states_takes_blocks_of_128_tokens() -> None:
    """A state of 3 MiB is 2731 tokens of 1152 bytes, so 22 times 128."""
    state = State(0, 0, 0, 3 * MIB, recurrent_bytes=1)
    assert 22 * 128 == planned([attention(1, 576, "mla", size_v=0), state], SETTING).plan.groups[0].page.block_size


def test_mamba1_keeps_no_speculated_positions() -> None:
    """Its convolution stays as it is; the others grow by the speculative tokens."""
    sizes = [State(0, 100, 3, 0, family=family).size_bytes(1, 2, 2) for family in ("mamba1", "mamba2", "linear")]
    assert [600, 1000, 1000] == sizes


@pytest.mark.parametrize(("release", "family", "blocks"), [(Release(0, 30), "mamba2", 2), (LATEST, "mamba2", 3), (LATEST, "linear", 2)])
def test_mamba2_keeps_a_checkpoint_for_prefix_caching(release: Release, family: str, blocks: int) -> None:
    """One block more than other states, in 0.32."""
    cache = planned([attention(), State(0, 8, 3, 8, family=family)], replace(SETTING, release=release))  # type: ignore[arg-type]
    assert blocks == cache.plan.groups[1].page.bound


def test_chunked_layers_keep_a_chunk_and_what_is_in_flight() -> None:
    """Llama 4: three of four layers keep 8192 tokens and two batches."""
    cache = cache_of(LLAMA4_SCOUT, replace(SETTING, max_model_len=131_072))
    assert 3 * (8192 + 4096) // 16 + 8192 == cache.blocks_of_one_sequence


@pytest.mark.parametrize(
    ("release", "hybrid_kv_cache_manager", "groups"),
    [
        pytest.param(Release(0, 9, 2), None, 4, id="0.9.2 shares blocks"),
        pytest.param(Release(0, 11, 2), None, 1, id="0.10.1 to 0.12 keep everything for chunked models"),
        pytest.param(Release(0, 15, 1), None, 4, id="0.13 and later share blocks again"),
        pytest.param(LATEST, False, 1, id="--disable-hybrid-kv-cache-manager keeps everything"),
        pytest.param(Release(0, 11, 2), True, 4, id="it can be asked for"),
    ],
)
def test_local_layers_keep_everything_without_the_hybrid_manager(release: Release, hybrid_kv_cache_manager: bool | None, groups: int) -> None:  # noqa: FBT001 - a row of the table
    """Then there is one group, and it needs what full attention needs."""
    setting = replace(SETTING, release=release, hybrid_kv_cache_manager=hybrid_kv_cache_manager, max_model_len=131_072)
    cache = cache_of(LLAMA4_SCOUT, setting)
    assert groups == len(cache.plan.groups)
    assert (cache.blocks_of_one_sequence == 8192) is (groups == 1)


def test_whisper_keeps_the_text_and_what_its_encoder_gives() -> None:
    """Two groups of four layers: 448 tokens of text; of the audio 1500 positions, and from 0.30 as many as a batch has tokens."""
    before = cache_of(WHISPER_TURBO, replace(SETTING, release=Release(0, 24), max_model_len=448))
    after = cache_of(WHISPER_TURBO, replace(SETTING, max_model_len=448))
    assert (4 * 16 * 5120, 28 + 94) == (before.bytes_per_block, before.blocks_of_one_sequence)
    assert 28 + 128 == after.blocks_of_one_sequence


# model_executor/layers/mamba/mamba_utils.py, by hand.
@pytest.mark.parametrize(
    ("config", "tensor_parallel_size", "expected_bytes"),
    [
        pytest.param(QWEN36_27B, 1, 10240 * 3 * 2 + 48 * 128 * 128 * 4, id="gated delta net, the state in float32"),
        pytest.param(QWEN36_27B, 4, 2560 * 3 * 2 + 12 * 128 * 128 * 4, id="split by four"),
        pytest.param(
            {
                "model_type": "nemotron_h",
                "hybrid_override_pattern": "M*-",
                "mamba_num_heads": 128,
                "mamba_head_dim": 80,
                "ssm_state_size": 128,
                "conv_kernel": 4,
                "n_groups": 8,
                "num_attention_heads": 40,
                "num_key_value_heads": 8,
                "head_dim": 128,
            },
            1,
            (10240 + 2 * 8 * 128) * 3 * 2 + 128 * 80 * 128 * 4,
            id="mamba 2 with groups, float32 unless the config says otherwise",
        ),
        pytest.param(
            {
                "model_type": "granitemoehybrid",
                "num_hidden_layers": 2,
                "layer_types": ["mamba", "attention"],
                "mamba_n_heads": 8,
                "mamba_d_head": 64,
                "mamba_d_state": 128,
                "mamba_d_conv": 4,
                "mamba_n_groups": 1,
                "num_attention_heads": 4,
                "head_dim": 64,
            },
            4,
            (128 + 2 * 128) * 3 * 2 + 2 * 64 * 128 * 2,
            id="one group is copied to every rank",
        ),
        pytest.param(
            {
                "model_type": "jamba",
                "num_hidden_layers": 8,
                "hidden_size": 4096,
                "attn_layer_period": 8,
                "attn_layer_offset": 4,
                "mamba_expand": 2,
                "mamba_d_state": 16,
                "mamba_d_conv": 4,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
            },
            1,
            8192 * 3 * 2 + 8192 * 16 * 2,
            id="mamba 1",
        ),
        pytest.param(
            {
                "model_type": "kimi_linear",
                "num_hidden_layers": 4,
                "linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4},
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
            },
            1,
            3 * 4096 * 3 * 2 + 32 * 128 * 128 * 4,
            id="Kimi's delta attention",
        ),
        pytest.param(
            {
                "model_type": "lfm2",
                "num_hidden_layers": 2,
                "layer_types": ["conv", "full_attention"],
                "hidden_size": 1024,
                "conv_L_cache": 3,
                "num_attention_heads": 16,
            },
            2,
            512 * 2 * 2,
            id="short convolutions",
        ),
        pytest.param(
            {"model_type": "minimax_text_01", "num_hidden_layers": 2, "attn_type_list": [0, 1], "num_attention_heads": 64, "head_dim": 128},
            8,
            8 * 128 * 128 * 2,
            id="lightning attention",
        ),
    ],
)
def test_states_of_recurrent_layers(config: dict[str, Any], tensor_parallel_size: int, expected_bytes: int) -> None:
    """A state has the same size however long the sequence is."""
    state = next(layer for layer in layers_of(config).layers if isinstance(layer, State))
    assert expected_bytes == state_size_bytes(state, replace(SETTING, tensor_parallel_size=tensor_parallel_size))


def test_attention_blocks_are_raised_until_a_page_holds_a_state() -> None:
    """Qwen3.6-27B: a state of 3,207,168 bytes needs 783 tokens of 4096 bytes, so the block takes 784."""
    cache = cache_of(QWEN36_27B)
    assert (784, 16 * 784 * 4096) == (cache.block_size, cache.bytes_per_block)


def test_speculation_and_prefix_caching_keep_more_states() -> None:
    """One state, a second one with prefix caching, and one for every speculative token."""
    plain = replace(SETTING, enable_prefix_caching=False)
    blocks = [
        cache_of(QWEN36_27B, setting).plan.groups[0].page.blocks(32768, setting)
        for setting in (plain, SETTING, replace(plain, speculative_tokens=2), replace(SETTING, speculative_tokens=2))
    ]
    assert [1, 2, 3, 4] == blocks


def test_a_purely_recurrent_model_needs_one_block() -> None:
    """Mamba keeps its state alone: the length does not count."""
    config = {"model_type": "mamba", "num_hidden_layers": 24, "hidden_size": 768, "intermediate_size": 1536, "state_size": 16, "conv_kernel": 4}
    cache = cache_of(config, replace(SETTING, enable_prefix_caching=False))
    assert 24 * (1536 * 3 * 2 + 1536 * 16 * 2) == cache.bytes_per_block == cache.one_sequence_bytes
    assert cache.bytes_per_token is None


@pytest.mark.parametrize(
    ("config", "release", "stages", "tested_blocks"),
    [
        pytest.param(GPT_OSS_20B, Release(0, 12), 1, 512 + 137, id="up to 0.12 every layer is counted"),
        pytest.param(GPT_OSS_20B, Release(0, 15, 1), 1, 137, id="0.15.1 counts the first group only"),
        pytest.param(GPT_OSS_20B, Release(0, 18, 1), 1, 137, id="and so does 0.18.1"),
        pytest.param(GPT_OSS_20B, Release(0, 21), 1, 512 + 137, id="from 0.21 all groups are counted"),
        pytest.param(QWEN3_CODER_30B, Release(0, 15, 1), 2, 2 * 512, id="0.15.1 asks one stage for the layers of all"),
        pytest.param(QWEN3_CODER_30B, Release(0, 18, 1), 2, 512, id="0.18.1 asks for its own"),
    ],
)
def test_what_the_check_asks_for_follows_the_release(config: dict[str, Any], release: Release, stages: int, tested_blocks: int) -> None:
    """The check of some releases is laxer than what a sequence takes, or stricter."""
    cache = cache_of(config, KvSetting(release, 8192, 2048, pipeline_parallel_size=stages))
    assert tested_blocks * cache.bytes_per_block == cache.tested_bytes


# Qwen3-Coder-30B, pp 2 as 16 and 32 layers, 0.15.2: "24.0 GiB KV cache is needed" at 262144.
def test_an_uneven_pipeline_is_asked_for_the_whole_model_in_0_15() -> None:
    """What that start printed."""
    cache = cache_of(QWEN3_CODER_30B, KvSetting(Release(0, 15, 2), 262_144, 2048, pipeline_parallel_size=2, layer_partition=(16, 32)))
    assert (24 * GIB, 16 * GIB) == (cache.tested_bytes, cache.one_sequence_bytes)


def test_hybrids_without_padding_are_checked_by_their_layers_up_to_0_12() -> None:
    """Gemma 3: 52 sliding and 10 full layers, not six padded groups."""
    cache = cache_of(GEMMA3_27B, replace(SETTING, release=Release(0, 11, 2)))
    page_bytes = 16 * 16 * 256 * 2
    assert page_bytes * (52 * 193 + 10 * 2048) == cache.tested_bytes
    assert page_bytes * 10 * (6 * 193 + 2048) == cache.one_sequence_bytes


# Qwen3.5-9B, 0.18.0: 15.85 GiB, 129,360 tokens. Qwen3.5-27B, 0.19.0, tp 4: 7.0 GiB, 114,464 tokens.
def test_printed_tokens_before_0_21_divide_the_blocks_among_the_groups() -> None:
    """Then the printed tokens are proportional to the pool, and so is the figure per token."""
    nine = cache_of(QWEN35_9B, KvSetting(Release(0, 18), 8192, 2048))
    assert 129_360 == nine.printed_tokens(int(15.85 * GIB))
    assert 4 * 8 * 4096 == nine.bytes_per_token
    large = cache_of(QWEN36_27B, KvSetting(Release(0, 19), 32768, 2048, tensor_parallel_size=4))
    assert 114_464 == large.printed_tokens(int(7.0 * GIB))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        pytest.param({}, "how many layers", id="an empty config"),
        pytest.param({"num_hidden_layers": 10**9}, "more than", id="a billion layers"),
        pytest.param({"num_hidden_layers": 2, "num_attention_heads": 2}, "key-value heads", id="no sizes"),
        pytest.param({**DEEPSEEK_V3, "model_type": "who knows"}, "latent attention", id="latent attention of an unknown model"),
        pytest.param({**DEEPSEEK_V3, "index_topk": 2048, "index_head_dim": 128, "index_topk_freq": 4}, "index cache", id="some layers share an index"),
        pytest.param({**GEMMA3_27B["text_config"], "layer_types": ["sliding_attention"]}, "every layer", id="too few layer types"),  # type: ignore[dict-item]
        pytest.param({**QWEN_25_HALF_B, "layer_types": ["hyperbolic"] * 24}, "kind of layer", id="a layer type from the future"),
        pytest.param({"model_type": "nemotron_h", "num_hidden_layers": 52}, "hybrid_override_pattern", id="a hybrid without its pattern"),
        pytest.param({"model_type": "deepseek_v4", "num_hidden_layers": 61}, "compressed", id="compressed caches"),
        pytest.param({"model_type": "bart", "is_encoder_decoder": True, "decoder_layers": 6}, "Whisper", id="other encoder-decoder models"),
    ],
)
def test_a_config_that_does_not_say_enough_is_unknown_with_its_reason(config: dict[str, Any], reason: str) -> None:
    """No guess."""
    held = read_layers(config, LATEST)
    assert isinstance(held, Unknown)
    assert reason in held.because


@pytest.mark.parametrize(
    ("quantization", "release", "expected"),
    [
        pytest.param({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, LATEST, "fp8_e4m3", id="ModelOpt names an algorithm"),
        pytest.param(
            {"quant_method": "modelopt_fp4", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, LATEST, "fp8_e4m3", id="or a scheme"
        ),
        pytest.param({"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "NVFP4"}}, LATEST, "nvfp4", id="in the nested form"),
        pytest.param({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}, LATEST, "fp8", id="compressed-tensors has a scheme"),
        pytest.param({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, Release(0, 12), "auto", id="releases before 0.15.1 do not look"),
        pytest.param({"quant_method": "awq"}, LATEST, "auto", id="weights only"),
        pytest.param("broken", LATEST, "auto", id="not an object"),
    ],
)
def test_the_checkpoint_says_what_auto_becomes(quantization: Any, release: Release, expected: str) -> None:
    """From 0.15.1 the checkpoint's own cache format counts."""
    assert expected == stored_kv_cache_dtype({"quantization_config": quantization}, release)


KNOWN_CONFIGS: Final = (QWEN_25_HALF_B, DEEPSEEK_V3, GEMMA3_27B, GEMMA4_31B, GPT_OSS_20B, QWEN36_27B, LLAMA4_SCOUT, WHISPER_TURBO)
RELEASES: Final = (Release(0, 9, 2), Release(0, 12), Release(0, 15, 1), Release(0, 18, 1), Release(0, 21), Release(0, 28), LATEST, None)


@st.composite
def launches(draw: st.DrawFn, configs: Sequence[Mapping[str, Any]] = KNOWN_CONFIGS) -> tuple[Mapping[str, Any], KvSetting]:
    """A known model and a setting that vLLM could be given."""
    release = draw(st.sampled_from(RELEASES))
    setting = KvSetting(
        release,
        max_model_len=draw(st.integers(1, 300_000)),
        max_num_batched_tokens=draw(st.sampled_from((512, 2048, 8192))),
        tensor_parallel_size=draw(st.sampled_from((1, 2, 4, 8))),
        pipeline_parallel_size=draw(st.integers(1, 4)),
        block_size=draw(st.sampled_from((None, 16, 32, 128))),
        speculative_tokens=draw(st.sampled_from((0, 3))),
        hybrid_kv_cache_manager=draw(st.sampled_from((None, True))),
    )
    return draw(st.sampled_from(configs)), setting


@given(launches(), st.integers(1, 10_000))
def test_a_longer_sequence_never_needs_less(launch: tuple[Mapping[str, Any], KvSetting], more: int) -> None:
    """Neither of the pool nor in the check."""
    cache = cache_of(*launch)
    length = cache.setting.max_model_len
    assert cache.blocks_of(length) <= cache.blocks_of(length + more)
    assert cache.tested_bytes_of(length) <= cache.tested_bytes_of(length + more)


@given(launches(), st.integers(0, 64 * GIB))
def test_the_largest_length_is_the_last_that_fits(launch: tuple[Mapping[str, Any], KvSetting], pool_bytes: int) -> None:
    """It passes the check, and the next length does not."""
    cache = cache_of(*launch)
    largest = cache.largest_max_model_len(pool_bytes)
    assert 0 <= largest <= cache.setting.max_model_len
    assert largest == 0 or cache.fits(pool_bytes, largest)
    assert largest == cache.setting.max_model_len or not cache.fits(pool_bytes, largest + 1)


@given(launches())
def test_a_pool_of_one_sequence_starts_and_a_block_less_does_not(launch: tuple[Mapping[str, Any], KvSetting]) -> None:
    """The need that is computed is the edge of the check, from the release on that counts every group."""
    config, setting = launch
    cache = cache_of(config, replace(setting, release=LATEST))
    enough_bytes = cache.one_sequence_bytes + cache.null_block_bytes
    assert cache.fits(enough_bytes, cache.setting.max_model_len)
    assert not cache.fits(enough_bytes - 1, cache.setting.max_model_len)
    assert cache.printed_tokens(enough_bytes) >= cache.setting.max_model_len


@given(launches([config for config in KNOWN_CONFIGS if config is not QWEN36_27B]), st.sampled_from((2, 4, 8)))
def test_more_ranks_never_keep_more_each(launch: tuple[Mapping[str, Any], KvSetting], factor: int) -> None:
    """Of attention a rank keeps a share, or a whole head at least. (Beside recurrent layers the block size changes too, and rounds.)"""
    config, setting = launch
    wider = replace(setting, tensor_parallel_size=setting.tensor_parallel_size * factor)
    assert cache_of(config, wider).one_sequence_bytes <= cache_of(config, setting).one_sequence_bytes


KEYS: Final = st.sampled_from(
    (
        "model_type",
        "text_config",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "hidden_size",
        "head_dim",
        "sliding_window",
        "layer_types",
        "hybrid_override_pattern",
        "attn_type_list",
        "hybrid_layer_pattern",
        "linear_attn_config",
        "linear_num_value_heads",
        "kda_layers",
        "block_configs",
        "attention",
        "n_heads_in_group",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "index_topk",
        "attn_layer_period",
        "attn_layer_offset",
        "attn_config",
        "attention_other_setting",
        "num_kv_shared_layers",
        "no_rope_layers",
        "is_encoder_decoder",
        "quantization_config",
        "kv_cache_scheme",
        "quant_method",
    )
)
WORDS: Final = st.sampled_from(("gemma3", "llama4", "jamba", "nemotron_h", "kimi_linear", "whisper", "mimo_v2_flash", "M*-", "full_attention", "modelopt", ""))
HOSTILE: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 9), st.sampled_from((10**30, -(10**30), float("nan"), float("inf"), 0.5)), WORDS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=30,
)


@st.composite
def hostile_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Anything under the keys that are read, or a known config with some of its values replaced."""
    broken = draw(st.dictionaries(KEYS, HOSTILE, max_size=6))
    known: Mapping[str, Any] = draw(st.sampled_from(({}, *KNOWN_CONFIGS)))
    inner = known.get("text_config")
    return {**known, "text_config": {**inner, **broken}} if isinstance(inner, dict) and draw(st.booleans()) else {**known, **broken}


@settings(max_examples=300)
@given(hostile_configs(), st.sampled_from(RELEASES), st.integers(1, 8))
def test_hostile_configs_give_a_figure_or_a_reason(config: dict[str, Any], release: Release | None, ranks: int) -> None:
    """Whatever a config holds, nothing is raised, and no figure is negative."""
    assert isinstance(stored_kv_cache_dtype(config, release), str)
    held = read_layers(config, release)
    if isinstance(held, Unknown):
        assert held.because
        return
    cache = kv_cache(held, KvSetting(release, 4096, 2048, tensor_parallel_size=ranks, pipeline_parallel_size=ranks))
    if isinstance(cache, KvCache):
        assert cache.one_sequence_bytes >= 0
        assert cache.printed_tokens(GIB) >= 0
        assert cache.largest_max_model_len(GIB) >= 0
