"""Bytes of the weights on each GPU, from headers and from the config alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import stored

from vllm_guard.model.parallel import Parallel, layer_stages
from vllm_guard.model.parameters import decoder
from vllm_guard.model.tensors import Headers, Tensor
from vllm_guard.model.towers import towers
from vllm_guard.model.unknown import Unknown
from vllm_guard.model.weights import Loading, WeightBytes, weigh
from vllm_guard.release import Release
from vllm_guard.units import GIB, MIB

# A busy machine is no failure.
UNHURRIED = settings(deadline=None)

SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 128,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}
MOE = {**SMALL, "model_type": "qwen3_moe", "num_experts": 12, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
EXPERTS = 4 * 12 * 3 * 64 * 32 * 2
MLA = {**SMALL, "model_type": "deepseek_v3", "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
ONE = Parallel()
NEWEST = Release(0, 33)


def weighed(config: dict[str, Any], parallel: Parallel = ONE, headers: Headers | None = None, **loading: Any) -> WeightBytes:
    """The weights of a model that can be weighed."""
    found = weigh(config, headers, parallel, Loading(**loading))
    assert isinstance(found, WeightBytes), found
    return found


def parts(config: dict[str, Any], parallel: Parallel = ONE, **loading: Any) -> dict[str, int]:
    """Bytes by part."""
    return dict(weighed(config, parallel, **loading).parts)


def values(config: dict[str, Any]) -> int:
    """Weights of the decoder and the towers, those of a tied head not counted twice."""
    matrices, seen = decoder(config), towers(config)
    assert not isinstance(matrices, Unknown), matrices
    assert not isinstance(seen, Unknown), seen
    tied = config.get("tie_word_embeddings", (config.get("text_config") or {}).get("tie_word_embeddings"))
    return sum(matrix.values for matrix in (*matrices, *seen) if not (tied and matrix.name == "lm_head"))


# The published parameter counts of checkpoints, and the keys of their configs that decide them.
PUBLISHED = json.loads((Path(__file__).parent / "data" / "published_parameters.json").read_text())


@pytest.mark.parametrize(("config", "published"), [pytest.param(each["config"], each["parameters"], id=each["id"]) for each in PUBLISHED])
def test_the_config_alone_gives_the_published_number_of_parameters(config: dict[str, Any], published: int) -> None:
    """Within half a percent: norms, biases and a dropped layer of a tower are all that may differ."""
    tolerance = 0.005

    assert published == pytest.approx(values(config), rel=tolerance)


RARE = [
    pytest.param(
        {**MLA, "index_n_heads": 2, "index_head_dim": 4},
        64 * 24 + 24 * 8 * 12 + 64 * 20 + 16 * 8 * 16 + 64 * 64 + 24 * 8 + 64 * 4 + 64 * 2,
        id="an indexer of sparse attention",
    ),
    pytest.param({**MLA, "q_lora_rank": None}, 64 * 8 * 12 + 64 * 20 + 16 * 8 * 16 + 64 * 64, id="latents for keys only"),
    pytest.param({**SMALL, "model_type": "falcon", "multi_query": True}, 64 * 64 + 2 * 64 * 8 + 64 * 64, id="one KV head for all"),
    pytest.param({**SMALL, "model_type": "qwen3_next", "full_attention_interval": 1}, 2 * 64 * 64 + 2 * 64 * 16 + 64 * 64, id="a gate beside the queries"),
    pytest.param(
        {**SMALL, "model_type": "falcon_h1", "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8},
        10240 + 64 * (128 + 16 + 4) + 80 * 4 + 64 * 64,
        id="attention and Mamba 2 side by side",
    ),
    pytest.param({**SMALL, "model_type": "lfm2", "layer_types": ["conv"] * 4, "conv_L_cache": 3}, 64 * 3 * 64 + 64 * 3 + 64 * 64, id="short convolutions"),
    pytest.param(
        {**SMALL, "model_type": "mamba", "state_size": 16, "expand": 2}, 64 * 256 + 128 * 4 + 128 * 36 + 4 * 128 + 2 * 128 * 16 + 128 * 64, id="Mamba 1 alone"
    ),
    pytest.param(
        {**SMALL, "model_type": "deepseek_v4", "q_lora_rank": 24, "o_lora_rank": 4, "o_groups": 2, "sliding_window": 128},
        64 * 24 + 24 * 64 + 64 * 8 + 64 * 4 + 8 * 64,
        id="one KV head and a low-rank output in groups",
    ),
]


@pytest.mark.parametrize(("config", "layer_values"), RARE)
def test_a_rarer_mixer_is_reckoned_by_hand(config: dict[str, Any], layer_values: int) -> None:
    """Four layers of it, two bytes each."""
    assert 4 * layer_values * 2 == parts(config)["attention"]


def test_a_searched_model_has_the_blocks_that_its_config_lists() -> None:
    """Attention with other groups, none, a linear layer or nothing in the place of an MLP; widths are multiples of 256."""
    blocks = [
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.625}},
        {"attention": {"n_heads_in_group": 8}, "ffn": {"no_op": True}},
        {"attention": {"no_op": True}, "ffn": {"replace_with_linear": True}},
        {"attention": {"no_op": True}, "ffn": {"intermediate_size": 512}},
    ]
    found = parts({**SMALL, "model_type": "nemotron-nas", "block_configs": blocks})

    assert (10240 + 9216) * 2 == found["attention"]
    assert (3 * 64 * 256 + 64 * 64 + 3 * 64 * 512) * 2 == found["mlp"]


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        pytest.param({}, 4, id="all of them"),
        pytest.param({"first_k_dense_replace": 1}, 3, id="but the first"),
        pytest.param({"mlp_only_layers": [0, 2]}, 2, id="but those that are listed"),
        pytest.param({"decoder_sparse_step": 2}, 2, id="every second"),
        pytest.param({"moe_layer_freq": [0, 1, 0, 0]}, 1, id="those that are marked"),
        pytest.param({"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}, 3, id="those that are called sparse"),
        pytest.param({"expert_layer_period": 4, "expert_layer_offset": 1}, 1, id="by period and offset"),
        pytest.param({"model_type": "llama4", "interleave_moe_layer_step": 2}, 2, id="by a step"),
        pytest.param({"model_type": "llama4", "moe_layers": [3]}, 1, id="by number"),
    ],
)
def test_experts_are_in_the_layers_that_the_config_says(keys: dict[str, Any], layers: int) -> None:
    """Every family has its own key."""
    assert EXPERTS // 4 * layers == parts({**MOE, **keys})["experts"]


@pytest.mark.parametrize(
    ("config", "part", "expected"),
    [
        pytest.param({**SMALL, "hidden_size_per_layer_input": 8}, "embeddings", 128 * 64 + 128 * 32 + 64 * 32, id="embeddings of every layer"),
        pytest.param({**SMALL, "hidden_size_per_layer_input": 8}, "mlp", 4 * (3 * 64 * 128 + 2 * 64 * 8), id="and what leads them in"),
        pytest.param({**SMALL, "model_type": "opt", "word_embed_proj_dim": 32}, "embeddings", 128 * 32 + 2 * 32 * 64 + 512 * 64, id="narrow words"),
        pytest.param({**SMALL, "model_type": "gpt2", "intermediate_size": None}, "mlp", 4 * 2 * 64 * 256, id="an MLP four times as wide by default"),
        pytest.param({**MOE, "moe_latent_size": 16}, "experts", 4 * 12 * 3 * 16 * 32, id="experts of latents"),
        pytest.param({**MOE, "model_type": "gemma4"}, "mlp", 4 * (64 * 12 + 3 * 64 * 128 + 3 * 64 * 48), id="an MLP beside the experts"),
        pytest.param(
            {**MOE, "model_type": "nemotron_h", "layers_block_type": ["attention", "moe", "mlp", "attention"]},
            "mlp",
            64 * 12 + 2 * 64 * 48 + 2 * 64 * 128,
            id="layers of one kind each",
        ),
        pytest.param(
            {**MOE, "num_experts": 1, "model_type": "jamba", "attn_layer_period": 1, "attn_layer_offset": 0}, "mlp", 4 * 3 * 64 * 128, id="one expert is an MLP"
        ),
        pytest.param(
            {**SMALL, "model_type": "glm4v", "vision_config": {"depth": 2, "hidden_size": 32, "intermediate_size": 96, "out_hidden_size": 64, "patch_size": 2}},
            "vision",
            2 * (4 * 32 * 32 + 3 * 32 * 64) + 3 * 4 * 32 + 128 * 64 + 64 * 64 + 3 * 64 * 96,
            id="a tower with a gated merger",
        ),
        pytest.param(
            {**SMALL, "model_type": "gemma4", "audio_config": {"hidden_size": 32, "num_hidden_layers": 2}},
            "audio",
            2 * 24 * 32 * 32,
            id="a tower of conformers",
        ),
    ],
)
def test_rarer_parts_are_reckoned_by_hand(config: dict[str, Any], part: str, expected: int) -> None:
    """Two bytes each."""
    assert expected * 2 == parts(config)[part]


def test_four_bit_experts_of_an_eight_bit_checkpoint() -> None:
    """DeepSeek V4 names them apart."""
    config = {**MOE, "quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 16]}, "expert_dtype": "fp4"}

    assert EXPERTS // 2 * 4 // 8 + EXPERTS // 2 // 32 == parts(config)["experts"]


def test_every_part_is_reckoned_by_hand() -> None:
    """A small llama: 64 wide, 4 layers, 8 heads of 8 that share 2 keys, MLP 128, 128 words; two bytes each."""
    expected = {
        "embeddings": 128 * 64 * 2,
        "attention": 4 * (64 * 64 + 2 * 64 * 16 + 64 * 64) * 2,
        "mlp": 4 * 3 * 64 * 128 * 2,
        "lm_head": 128 * 64 * 2,
    }

    assert expected == parts(SMALL)


SHARDED = [
    pytest.param(SMALL, Parallel(tensor_parallel_size=2), "attention", 4 * (64 * 64 + 2 * 64 * 16 + 64 * 64) * 2 // 2, id="two ranks halve attention"),
    pytest.param(
        SMALL,
        Parallel(tensor_parallel_size=4),
        "attention",
        4 * (2 * 64 * 16 + 2 * 64 * 8) * 2,
        id="a KV head is held twice when there are more ranks than heads",
    ),
    pytest.param(SMALL, Parallel(tensor_parallel_size=4), "mlp", 4 * 3 * 64 * 32 * 2, id="the MLP is always dealt"),
    pytest.param(SMALL, Parallel(tensor_parallel_size=2), "lm_head", 64 * 64 * 2, id="the words are dealt"),
    pytest.param({**SMALL, "vocab_size": 130}, ONE, "embeddings", 192 * 64 * 2, id="the words are filled up to a multiple of 64"),
    pytest.param({**SMALL, "vocab_size": 130}, Parallel(tensor_parallel_size=2), "embeddings", 96 * 64 * 2, id="filled up before they are dealt"),
    pytest.param(SMALL, Parallel(pipeline_parallel_size=2), "mlp", 2 * 3 * 64 * 128 * 2, id="a stage has half of the layers"),
    pytest.param(SMALL, Parallel(pipeline_parallel_size=2, stage=0), "lm_head", 0, id="the first stage has no head"),
    pytest.param(SMALL, Parallel(pipeline_parallel_size=2, stage=1), "embeddings", 0, id="the last stage has no embeddings"),
    pytest.param(
        {**SMALL, "tie_word_embeddings": True}, Parallel(pipeline_parallel_size=2, stage=1), "embeddings", 128 * 64 * 2, id="but a tied table is on both ends"
    ),
    pytest.param({**SMALL, "tie_word_embeddings": True}, ONE, "lm_head", 0, id="and only once on one stage"),
    pytest.param(SMALL, Parallel(data_parallel_size=4), "mlp", 4 * 3 * 64 * 128 * 2, id="replicas are whole"),
]


@pytest.mark.parametrize(("config", "parallel", "part", "expected"), SHARDED)
def test_parts_are_dealt_as_vllm_deals_them(config: dict[str, Any], parallel: Parallel, part: str, expected: int) -> None:
    """Column and row parallel layers, KV heads, words, stages, replicas."""
    assert expected == parts(config, parallel).get(part, 0)


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        pytest.param(ONE, EXPERTS, id="all on one GPU"),
        pytest.param(Parallel(tensor_parallel_size=4), EXPERTS // 4, id="each expert dealt to four ranks"),
        pytest.param(Parallel(tensor_parallel_size=4, enable_expert_parallel=True), EXPERTS // 4, id="or each rank with three of them"),
        pytest.param(Parallel(tensor_parallel_size=2, data_parallel_size=2), EXPERTS // 4, id="shared by replicas too"),
        pytest.param(Parallel(data_parallel_size=8, enable_expert_parallel=True), EXPERTS // 6, id="eight ranks and twelve experts: the fullest has two"),
    ],
)
def test_experts_are_dealt_to_all_ranks_of_all_replicas(parallel: Parallel, expected: int) -> None:
    """With and without expert parallelism."""
    assert expected == parts(MOE, parallel)["experts"]


def test_router_is_whole_and_shared_expert_is_dealt() -> None:
    """Of the MLP part only the shared expert gets smaller with more ranks."""
    router, shared = 64 * 12, 3 * 64 * 48

    assert 4 * (router + shared // 2) * 2 == parts(MOE, Parallel(tensor_parallel_size=2))["mlp"]


def test_latent_attention_is_dealt_by_heads_only() -> None:
    """The projections down to the latents are on every rank."""
    down, up = 64 * 24 + 64 * 20, 24 * 8 * 12 + 16 * 8 * 16 + 64 * 64

    assert 4 * (down + up // 4) * 2 == parts(MLA, Parallel(tensor_parallel_size=4))["attention"]


def test_quantized_latent_attention_is_held_once_more_in_16_bits() -> None:
    """vLLM keeps kv_b_proj unpacked for decoding."""
    plain = parts(MLA)["attention"] // 2
    fp8 = {**MLA, "quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]}}
    unpacked = 4 * 16 * 8 * 16 * 2

    assert plain + plain // 16 * 4 + unpacked == parts(fp8)["attention"]


LINEAR = 4 * (64 * 64 + 2 * 64 * 16 + 64 * 64 + 3 * 64 * 128)
ROWS = 4 * (64 + 16 + 16 + 64 + 128 + 128 + 64)
HEADS = 2 * 128 * 64 * 2


@pytest.mark.parametrize(
    ("quantization_config", "expected"),
    [
        pytest.param(
            {"quant_method": "awq", "bits": 4, "group_size": 64},
            LINEAR * 4 // 8 + LINEAR // 64 * 20 // 8,
            id="awq: four bits, 16 of scale and 4 of zero a group",
        ),
        pytest.param({"quant_method": "gptq", "bits": 8, "group_size": 64}, LINEAR + LINEAR // 64 * 24 // 8, id="gptq of eight bits"),
        pytest.param({"quant_method": "fp8", "weight_block_size": [64, 16]}, LINEAR + LINEAR // 1024 * 4, id="fp8 in blocks"),
        pytest.param({"quant_method": "modelopt", "quant_algo": "NVFP4"}, LINEAR // 2 + LINEAR // 16, id="nvfp4: a byte for sixteen values"),
        pytest.param(
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}}},
            LINEAR // 2 + LINEAR // 32 * 2,
            id="compressed-tensors by its group",
        ),
        pytest.param({"quant_method": "compressed-tensors", "format": "float-quantized"}, LINEAR + ROWS * 4, id="compressed-tensors by its format"),
        pytest.param(
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 16}}}},
            LINEAR // 2 + LINEAR // 16,
            id="compressed-tensors of four bit floats",
        ),
        pytest.param({"quant_method": "bitsandbytes", "load_in_8bit": True}, LINEAR + ROWS * 4, id="bitsandbytes of eight bits"),
        pytest.param({"quant_method": "bitsandbytes", "load_in_4bit": True}, LINEAR // 2 + LINEAR // 64 * 4, id="bitsandbytes"),
        pytest.param({"quant_method": "mxfp4"}, LINEAR * 2, id="mxfp4 touches experts only"),
        pytest.param(
            {"quant_method": "awq", "bits": 4, "group_size": 64, "modules_to_not_convert": ["self_attn", "mlp"]},
            LINEAR * 2,
            id="modules that are kept stay as they are",
        ),
        pytest.param(
            {"quant_method": "fp8", "weight_block_size": [64, 16], "ignore": ["re:model\\.layers\\..*"]},
            LINEAR * 2,
            id="also by an expression, which is never run",
        ),
    ],
)
def test_quantized_weights_take_what_their_method_stores(quantization_config: dict[str, Any], expected: int) -> None:
    """Embeddings and head stay in 16 bits."""
    assert expected + HEADS == weighed({**SMALL, "quantization_config": quantization_config}).likely


def test_a_kept_gate_does_not_keep_the_gate_projection() -> None:
    """Names are compared word by word."""
    config = {**SMALL, "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["gate"]}}

    assert 4 * 3 * 64 * 128 <= parts(config)["mlp"] < 4 * 3 * 64 * 128 * 1.1


def test_online_fp8_halves_the_layers_and_not_the_embeddings() -> None:
    """--quantization fp8 on a checkpoint of 16 bits."""
    assert LINEAR + ROWS * 4 + HEADS == weighed(SMALL, release=NEWEST, quantization="fp8").likely


def test_online_fp8_of_an_old_release_may_peak_at_16_bits() -> None:
    """Up to 0.12 the whole model was loaded first."""
    large = {**SMALL, "hidden_size": 8192, "intermediate_size": 8192}
    old, new = (weighed(large, release=release, quantization="fp8") for release in (Release(0, 12), NEWEST))

    assert (old.likely, True) == (new.likely, old.high > weighed(large).likely > new.high)


def test_float32_takes_four_bytes() -> None:
    """--dtype float32; everything else is 16 bits."""
    sizes = [weighed(SMALL, dtype=dtype).likely for dtype in (None, "auto", "half", "bfloat16", "float32", "float")]

    assert [1, 1, 1, 1, 2, 2] == [size // sizes[0] for size in sizes]


def test_a_pooling_model_has_no_head() -> None:
    """Embedding models are loaded without it."""
    assert weighed(SMALL).likely - 128 * 64 * 2 == weighed(SMALL, pooling=True).likely


VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": 14, "out_hidden_size": 64, "spatial_merge_size": 2}
SEEING = {**SMALL, "model_type": "qwen2_5_vl", "vision_config": VISION}
TOWER = (2 * (4 * 32 * 32 + 3 * 32 * 64) + 3 * 14 * 14 * 32 + 128 * 128 + 128 * 64) * 2


@pytest.mark.parametrize(
    ("loading", "expected"),
    [
        pytest.param({}, TOWER, id="loaded"),
        pytest.param({"limit_mm_per_prompt": {"image": 0}}, TOWER, id="loaded while videos are allowed"),
        pytest.param({"limit_mm_per_prompt": {"image": 0, "video": 0}}, 0, id="not loaded without images and videos"),
        pytest.param({"language_model_only": True}, 0, id="not loaded for language only"),
        pytest.param({"language_model_only": True, "release": Release(0, 10)}, TOWER, id="loaded by releases that cannot leave it out"),
    ],
)
def test_a_tower_is_left_out_when_nothing_of_its_kind_is_allowed(loading: dict[str, Any], expected: int) -> None:
    """Limits of zero for all its kinds of items."""
    assert expected == parts(SEEING, **loading).get("vision", 0)


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        pytest.param(Parallel(tensor_parallel_size=2), (TOWER - 2 * 3 * 14 * 14 * 32) // 2 + 2 * 3 * 14 * 14 * 32, id="dealt, but for the patches"),
        pytest.param(Parallel(tensor_parallel_size=2, mm_encoder_tp_mode="data"), TOWER, id="whole on every rank in data mode"),
        pytest.param(Parallel(pipeline_parallel_size=2, stage=1), TOWER, id="on every stage where the release is not known"),
    ],
)
def test_a_tower_is_dealt_or_whole(parallel: Parallel, expected: int) -> None:
    """--mm-encoder-tp-mode."""
    assert expected == parts(SEEING, parallel)["vision"]


def test_the_newest_runner_has_towers_on_the_first_stage_only() -> None:
    """From 0.30 on."""
    later = Parallel(pipeline_parallel_size=2, stage=1)

    assert (TOWER, 0) == tuple(parts(SEEING, each, release=NEWEST).get("vision", 0) for each in (Parallel(pipeline_parallel_size=2, stage=0), later))


QWEN_AWQ = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "intermediate_size": 11008,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128000,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 2048,
    },
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["visual"]},
}


def test_offloading_moves_no_more_than_the_decoder_layers_hold() -> None:
    """Qwen2.5-VL-3B-AWQ on a card of 4 GiB: 3.32 GiB loaded, of which the layers hold 1.34, so that 2 GiB of offload bring no more than that."""
    plain, one, two = (weighed(QWEN_AWQ, release=Release(0, 28), cpu_offload_bytes=gib * GIB) for gib in (0, 1, 2))

    assert 1.34 == round(plain.offloadable_bytes / GIB, 2)
    assert 3.32 == pytest.approx(plain.likely / GIB, rel=0.02)
    assert (GIB, plain.offloadable_bytes) == (plain.likely - one.likely, plain.likely - two.likely)
    assert two.low <= one.low <= plain.low


def test_towers_can_be_offloaded_in_the_newest_release() -> None:
    """0.33 wraps them too."""
    assert TOWER == weighed(SEEING, release=NEWEST).offloadable_bytes - weighed(SEEING, release=Release(0, 32)).offloadable_bytes


def test_the_layer_that_predicts_further_tokens_is_loaded_for_speculation_only() -> None:
    """One more layer and what joins its inputs."""
    plain, predicting = weighed(MOE), weighed(MOE, predicts_further=True)

    assert plain.likely + (EXPERTS // 4 + 64 * 12 * 2 + 3 * 64 * 48 * 2 + 10240 * 2 + 2 * 64 * 64 * 2) == predicting.likely


def test_experts_of_mxfp4_are_rounded_up_by_the_kernels() -> None:
    """gpt-oss 120B on four ranks: 17.22 GiB were seen, a ninth more than its tensors."""
    config = {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 2880,
        "num_local_experts": 128,
        "sliding_window": 128,
        "vocab_size": 201088,
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    }
    found = weighed(config, Parallel(tensor_parallel_size=4))

    assert 17.22 == pytest.approx(found.likely / GIB, rel=0.01)
    assert found.low < 15.2 * GIB


# From headers


def test_headers_are_exact_where_nothing_is_open() -> None:
    """One GPU, 16 bits: what the files hold is what is loaded."""
    headers = stored(SMALL)
    found = weighed(SMALL, headers=headers)

    assert ("computed", True, headers.size_bytes, headers.size_bytes) == (found.source, found.exact, found.low, found.likely)


def test_a_float32_checkpoint_is_cast() -> None:
    """Half of its bytes, unless float32 is asked for."""
    headers = stored(SMALL, "F32", 4)

    assert (headers.size_bytes // 2, headers.size_bytes) == (weighed(SMALL, headers=headers).likely, weighed(SMALL, headers=headers, dtype="float32").likely)


@pytest.mark.parametrize("parallel", [ONE, Parallel(tensor_parallel_size=2), Parallel(tensor_parallel_size=4), Parallel(pipeline_parallel_size=2)])
@pytest.mark.parametrize("tied", [True, False])
def test_headers_and_config_agree_but_for_the_norms(parallel: Parallel, *, tied: bool) -> None:
    """Both ways lead to the same weights, however they are dealt."""
    config = {**SMALL, "tie_word_embeddings": tied}
    by_headers, by_config = weighed(config, parallel, stored(config)), weighed(config, parallel)

    assert by_config.likely == by_headers.likely - dict(by_headers.parts)["norms"]


def test_a_stored_head_of_a_tied_model_is_not_loaded() -> None:
    """Some checkpoints carry the copy."""
    tied = {**SMALL, "tie_word_embeddings": True}

    assert weighed(tied, headers=stored(tied)).likely == weighed(tied, headers=stored(SMALL)).likely


def test_a_head_that_is_not_stored_is_made_all_the_same() -> None:
    """As large as the embeddings; it is no certain part, and the figure is not exact."""
    found = weighed(SMALL, headers=stored({**SMALL, "tie_word_embeddings": True}))

    assert (128 * 64 * 2, False) == (found.likely - found.low, found.exact)


def with_tensors(*tensors: Tensor) -> Headers:
    """The small checkpoint and these."""
    return Headers((*stored(SMALL).tensors, *tensors))


PLAIN_BYTES = stored(SMALL).size_bytes


@pytest.mark.parametrize(
    ("tensor", "low", "likely", "exact"),
    [
        pytest.param(Tensor("model.layers.4.mlp.up_proj.weight", "BF16", (100,), 200), 0, 0, True, id="a layer beyond the last is for speculation"),
        pytest.param(Tensor("mtp.layers.0.mlp.up_proj.weight", "BF16", (100,), 200), 0, 0, True, id="so is one by its name"),
        pytest.param(Tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", (8,), 32), 0, 0, True, id="rotary tables are made, not loaded"),
        pytest.param(Tensor("model.layers.0.surprise.weight", "BF16", (100,), 200), 0, 200, False, id="an unknown name may not be loaded"),
        pytest.param(Tensor("visual.blocks.0.mlp.fc1.weight", "BF16", (10, 10), 200), 0, 200, False, id="nor a tower that the config does not describe"),
        pytest.param(Tensor("model.layers.0.mlp.up_proj.weight_scale_inv", "F32", (50,), 200), 200, 200, True, id="scales stay as they are"),
        pytest.param(Tensor("model.layers.0.mlp.up_proj.qzeros", "I32", (500,), 2000), 0, 2000, False, id="zero points may go"),
        pytest.param(Tensor("model.layers.0.mlp.up_proj.bias", "F32", (50,), 200), 100, 100, True, id="a bias is cast"),
    ],
)
def test_a_stored_tensor_counts_by_its_name(tensor: Tensor, low: int, likely: int, *, exact: bool) -> None:
    """What is loaded, what certainly, and whether that settles it."""
    found = weighed(SMALL, headers=with_tensors(tensor))

    assert (PLAIN_BYTES + low, PLAIN_BYTES + likely) == (found.low, found.likely)
    assert exact is found.exact


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        pytest.param("self_attn.qkv_proj.weight", 96, 64 * 2 * (16 + 8 + 8), id="fused attention: a quarter of the queries, whole KV heads"),
        pytest.param("mlp.experts.3.up_proj.weight", 64, 64 * 64 * 2 // 4, id="an expert"),
        pytest.param("mlp.gate.weight", 16, 16 * 64 * 2, id="a router"),
        pytest.param("self_attn.kv_a_proj_with_mqa.weight", 16, 16 * 64 * 2, id="a projection to the latents"),
    ],
)
def test_stored_tensors_are_dealt_by_name(name: str, rows: int, expected: int) -> None:
    """Four ranks, two KV heads."""
    four = Parallel(tensor_parallel_size=4)
    headers = with_tensors(Tensor(f"model.layers.0.{name}", "BF16", (rows, 64), rows * 64 * 2))

    assert expected == weighed(SMALL, four, headers).likely - weighed(SMALL, four, stored(SMALL)).likely


def test_a_quantized_checkpoint_counts_as_it_is_stored_whatever_its_method() -> None:
    """The tensors say it; only without files the method must be known."""
    config = {**SMALL, "quantization_config": {"quant_method": "quark"}}
    headers = stored(SMALL, "U8", 1)

    assert headers.size_bytes == weighed(config, headers=headers).likely
    assert isinstance(weigh(config, None, ONE, Loading()), Unknown)


def test_online_quantization_makes_stored_layers_smaller() -> None:
    """The same figure as from the config, and norms."""
    found = weighed(SMALL, headers=stored(SMALL), quantization="fp8", release=NEWEST)

    assert weighed(SMALL, quantization="fp8", release=NEWEST).likely + 5 * 64 * 2 == found.likely
    assert not found.exact


@pytest.mark.parametrize(
    ("config", "parallel", "loading", "why"),
    [
        pytest.param({}, ONE, {}, "layers", id="an empty config"),
        pytest.param({**SMALL, "vocab_size": None}, ONE, {}, "vocab_size", id="no vocabulary"),
        pytest.param({**SMALL, "hidden_size": "64"}, ONE, {}, "hidden_size", id="a width that is text"),
        pytest.param({**SMALL, "num_hidden_layers": 10**9}, ONE, {}, "layers", id="a thousand million layers"),
        pytest.param({**SMALL, "model_type": "t5"}, ONE, {}, "t5", id="a family that is not reckoned"),
        pytest.param({**SMALL, "is_encoder_decoder": True}, ONE, {}, "not reckoned", id="an encoder and a decoder"),
        pytest.param({**SMALL, "vision_config": {"a": 1}}, ONE, {}, "tower", id="a tower that the config does not describe"),
        pytest.param({**SMALL, "layer_types": ["linear_attention"] * 4}, ONE, {}, "states", id="states of a kind that is not known"),
        pytest.param({**SMALL, "model_type": "nemotron-nas", "block_configs": [{}]}, ONE, {}, "layer 0", id="blocks that say nothing"),
        pytest.param(
            {**SMALL, "model_type": "kimi_linear", "layer_types": ["linear_attention"] * 4}, ONE, {}, "states", id="delta attention without its sizes"
        ),
        pytest.param(
            {
                **SMALL,
                "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {str(bits): {"weights": {"num_bits": bits}} for bits in (4, 8)}},
            },
            ONE,
            {},
            "compressed-tensors",
            id="a mixture of methods",
        ),
        pytest.param({**SEEING, "vision_config": {"depth": 10**9, "hidden_size": 32}}, ONE, {}, "tower", id="a tower of a thousand million layers"),
        pytest.param(SMALL, Parallel(pipeline_parallel_size=5), {}, "5 stages", id="more stages than layers"),
        pytest.param(SMALL, Parallel(tensor_parallel_size=0), {}, "cannot be dealt", id="no rank"),
        pytest.param(SMALL, Parallel(tensor_parallel_size=1 << 40), {}, "cannot be dealt", id="too many ranks"),
        pytest.param(SMALL, ONE, {"quantization": "torchao"}, "torchao", id="a method that is not reckoned"),
        pytest.param(SMALL, ONE, {"load_format": "gguf"}, "GGUF", id="a GGUF file"),
        pytest.param(SMALL, ONE, {"load_format": "ipc_cache"}, "another process", id="the weights of another process"),
    ],
)
def test_what_cannot_be_known_is_unknown_with_its_reason(config: dict[str, Any], parallel: Parallel, loading: dict[str, Any], why: str) -> None:
    """Never a guess."""
    found = weigh(config, None, parallel, Loading(**loading))

    assert isinstance(found, Unknown)
    assert why in found.because


def test_a_strange_family_has_wide_bounds() -> None:
    """Its keys look like a llama's; it is reckoned like one, and not trusted."""
    known, strange = weighed(SMALL), weighed({**SMALL, "model_type": "brand_new"})

    assert known.likely == strange.likely
    assert strange.low < known.low <= known.likely < known.high < strange.high + MIB * 1024


@pytest.mark.parametrize(
    ("layers", "stages", "partition", "expected"),
    [
        pytest.param(4, 2, (), [0, 0, 1, 1], id="evenly"),
        pytest.param(5, 2, (), [0, 0, 0, 1, 1], id="one more for the stage before the last"),
        pytest.param(10, 4, (), [0, 0, 1, 1, 1, 2, 2, 2, 3, 3], id="two more for the middle"),
        pytest.param(4, 2, (1, 3), [0, 1, 1, 1], id="as VLLM_PP_LAYER_PARTITION says"),
        pytest.param(4, 2, (1, 4), [0, 0, 1, 1], id="unless it does not add up"),
    ],
)
def test_layers_are_dealt_to_stages(layers: int, stages: int, partition: tuple[int, ...], expected: list[int]) -> None:
    """distributed/utils.py get_pp_indices."""
    assert expected == layer_stages(layers, Parallel(pipeline_parallel_size=stages, stage_layers=partition))


# Properties

CONFIGS = st.sampled_from([SMALL, MOE, MLA, SEEING, {**SMALL, "tie_word_embeddings": True}, {**SMALL, "quantization_config": {"quant_method": "awq"}}])
SIZES = st.sampled_from([1, 2, 4, 8])


@UNHURRIED
@given(CONFIGS, SIZES, st.sampled_from([1, 2, 3, 4]))
def test_the_shares_add_up_to_at_least_the_whole(config: dict[str, Any], ranks: int, stages: int) -> None:
    """Nothing gets lost between ranks and stages."""
    shares = [weighed(config, Parallel(tensor_parallel_size=ranks, pipeline_parallel_size=stages, stage=stage)) for stage in range(stages)]
    whole = weighed(config)

    assert ranks * sum(share.likely for share in shares) >= whole.likely


@UNHURRIED
@given(CONFIGS, SIZES, st.sampled_from([1, 2, 4]), st.integers(0, 1))
def test_more_ranks_never_hold_more_each(config: dict[str, Any], ranks: int, replicas: int, expert_parallel: int) -> None:
    """Doubling the ranks may leave the weights of each as they are, no worse."""
    fewer, more = (
        weighed(config, Parallel(tensor_parallel_size=size, data_parallel_size=replicas, enable_expert_parallel=bool(expert_parallel)))
        for size in (ranks, 2 * ranks)
    )

    assert (True, True, True) == (more.low <= fewer.low, more.likely <= fewer.likely, more.high <= fewer.high)


@UNHURRIED
@given(CONFIGS, SIZES, st.integers(0, 1 << 20))
def test_figures_are_in_order_and_parts_add_up(config: dict[str, Any], ranks: int, offload_bytes: int) -> None:
    """low <= likely <= high, and the parts are what is loaded."""
    found = weighed(config, Parallel(tensor_parallel_size=ranks), cpu_offload_bytes=offload_bytes)

    assert 0 <= found.low <= found.likely <= found.high
    assert found.likely + found.offloaded_bytes == sum(size for _, size in found.parts)


ODD = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=4)
    | st.lists(st.integers(-1, 3) | st.text(max_size=2), max_size=5)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
KEYS = st.sampled_from(
    [
        *MOE,
        *MLA,
        "layer_types",
        "block_configs",
        "vision_config",
        "audio_config",
        "quantization_config",
        "text_config",
        "first_k_dense_replace",
        "moe_layer_freq",
        "mlp_only_layers",
        "hybrid_override_pattern",
        "rope_parameters",
        "max_position_embeddings",
        "linear_attn_config",
        "mamba_d_state",
        "attn_layer_period",
        "attn_layer_offset",
        "hidden_size_per_layer_input",
        "index_n_heads",
        "num_attention_heads_per_layer",
    ]
)
KINDS = st.sampled_from(["llama", "nemotron-nas", "jamba", "gemma4", "qwen2_5_vl", "whisper", "kimi_linear", "nemotron_h", "deepseek_v4", "mamba", "llama4"])


@UNHURRIED
@given(st.sampled_from([MOE, MLA, SEEING]), KINDS, st.dictionaries(KEYS, ODD, max_size=4), st.sampled_from([None, "fp8", "bitsandbytes", "x"]))
def test_no_config_is_too_odd(config: dict[str, Any], kind: str, odd: dict[str, Any], quantization: str | None) -> None:
    """A figure or a reason, with headers and without."""
    strange = {**config, "model_type": kind, **odd}
    loading = Loading(quantization=quantization, predicts_further=True)
    found = [weigh(strange, headers, Parallel(tensor_parallel_size=2), loading) for headers in (None, stored(SMALL))]

    assert all(isinstance(each, WeightBytes | Unknown) for each in found)


NAMES = st.text(alphabet="abcdefghijklmnopqrstuvwxyz.0123456789_", max_size=30) | st.sampled_from([tensor.name for tensor in stored(SMALL).tensors])
TENSORS = st.builds(
    Tensor, NAMES, st.sampled_from(["BF16", "F32", "U8", "F8_E4M3"]), st.lists(st.integers(0, 99), max_size=4).map(tuple), st.integers(0, 1 << 40)
)


@UNHURRIED
@given(st.lists(TENSORS, max_size=5), st.sampled_from([None, "fp8"]))
def test_no_tensor_is_too_odd(tensors: list[Tensor], quantization: str | None) -> None:
    """Names, shapes and sizes are whatever a file says."""
    found = weighed(SMALL, Parallel(tensor_parallel_size=2), Headers(tuple(tensors)), quantization=quantization)

    assert 0 <= found.low <= found.high
