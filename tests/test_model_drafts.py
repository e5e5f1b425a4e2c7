"""What a draft adds to a model: hand-computed, and as the real vLLM 0.32.0 planned it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_files import stored

from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.drafts import Draft, draft_of, layers_with_draft, with_draft, with_further_layer
from vllm_guard.model.kv_cache import KvCache, kv_cache
from vllm_guard.model.kv_layers import KvLayers, read_layers
from vllm_guard.model.kv_setting import KvSetting
from vllm_guard.model.parallel import Parallel
from vllm_guard.model.tensors import Headers, Tensor
from vllm_guard.model.unknown import Unknown
from vllm_guard.model.weights import Loading, WeightBytes, weigh
from vllm_guard.release import Release
from vllm_guard.units import MIB

READ: Final = Release(0, 32)
POOL_BYTES: Final = 16 * MIB
ATTENTION: Final = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
LLAMA: Final[dict[str, Any]] = {**ATTENTION, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4}
EAGLE3: Final = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
GPT_OSS: Final = {
    **ATTENTION,
    "model_type": "gpt_oss",
    "num_hidden_layers": 12,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 6,
}
QWEN3_NEXT: Final = {
    **ATTENTION,
    "model_type": "qwen3_next",
    "num_hidden_layers": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
DEEPSEEK: Final = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "num_nextn_predict_layers": 1,
}
GLM: Final = {**ATTENTION, "model_type": "glm4_moe", "num_hidden_layers": 3, "num_nextn_predict_layers": 1}
GEMMA3: Final = {**ATTENTION, "model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 64, "sliding_window_pattern": 3}
GRANITE: Final = {
    **ATTENTION,
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
}


def folder(config: dict[str, Any], draft: dict[str, Any] | None = None) -> Checkpoint:
    """A model, and its draft where there is one."""
    return Checkpoint("/m", config, None, draft=None if draft is None else Checkpoint("/d", draft, None))


def drafted(config: dict[str, Any], method: str, draft: dict[str, Any] | None = None, tokens: int = 2) -> Draft:
    """A draft that is known."""
    found = draft_of(method, None if draft is None else "/d", tokens, folder(config, draft))
    assert isinstance(found, Draft), found
    return found


def joined(config: dict[str, Any], draft: Draft, release: Release | None = READ, stages: int = 1) -> KvLayers | Unknown:
    """The layers of both."""
    layers = read_layers(config, release)
    assert isinstance(layers, KvLayers), layers
    return layers_with_draft(layers, draft, release, stages)


# In process, with weights of no value: --kv-cache-memory-bytes 16777216 --max-model-len 512 --max-num-batched-tokens 512 --enforce-eager. The CPU build takes
# blocks of 128 tokens, 16 of latent attention, and keeps recurrent states in float32.
@pytest.mark.parametrize(
    ("config", "method", "draft", "changes", "blocks", "tokens", "need_bytes"),
    [
        pytest.param(
            LLAMA,
            "draft_model",
            {**LLAMA, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
            {"max_model_len": 256, "speculative_tokens": 3},
            102,
            13_056,
            327_680,
            id="a draft model with narrower layers",
        ),
        pytest.param(LLAMA, "eagle", {**LLAMA, "num_hidden_layers": 1}, {}, 102, 13_056, 655_360, id="EAGLE: one layer more"),
        pytest.param(LLAMA, "eagle3", EAGLE3, {}, 102, 13_056, 655_360, id="EAGLE 3"),
        pytest.param(LLAMA, "eagle3", {**EAGLE3, "num_key_value_heads": 1}, {}, 113, 14_464, 589_824, id="EAGLE 3 with fewer heads"),
        pytest.param(GPT_OSS, "eagle3", EAGLE3, {}, 73, 4_152, 2_064_384, id="EAGLE 3 upon gpt-oss: seven full layers beside six sliding ones"),
        pytest.param(QWEN3_NEXT, "mtp", None, {}, 170, 7_253, 1_179_648, id="Qwen3-Next's further layer, a third full one"),
        pytest.param({**QWEN3_NEXT, "model_type": "qwen3_5_text"}, "mtp", None, {}, 170, 7_253, 1_179_648, id="Qwen3.5's further layer"),
        pytest.param(DEEPSEEK, "mtp", None, {"block_size": 16}, 227, 3_632, 2_359_296, id="DeepSeek's further layer, latent as the others"),
        pytest.param(GLM, "mtp", None, {}, 128, 16_384, 524_288, id="GLM's further layer"),
        pytest.param(QWEN3_NEXT, "ngram", None, {}, 256, 8_192, 1_048_576, id="n-grams: a state for each token, no layer"),
        pytest.param(GRANITE, "ngram", None, {}, 170, 5_120, 1_671_168, id="n-grams upon Mamba 2: larger states and blocks"),
        pytest.param(GEMMA3, "ngram", None, {}, 256, 6_898, 1_245_184, id="n-grams upon Gemma 3 change nothing"),
    ],
)
def test_the_plan_is_the_one_that_vllm_made(
    config: dict[str, Any], method: str, draft: dict[str, Any] | None, changes: dict[str, Any], blocks: int, tokens: int, need_bytes: int
) -> None:
    """Blocks of the pool, printed tokens and the bytes of one sequence are equal to the last digit."""
    layers = joined(config, drafted(config, method, draft))
    assert isinstance(layers, KvLayers), layers
    setting = {"max_model_len": 512, "speculative_tokens": 2, "block_size": 128, "concurrent_batches": 1, "recurrent_bytes": 4, **changes}
    cache = kv_cache(layers, KvSetting(READ, max_num_batched_tokens=512, **setting))
    assert isinstance(cache, KvCache), cache
    assert (blocks, tokens, need_bytes) == (cache.blocks_in(POOL_BYTES), cache.printed_tokens(POOL_BYTES), cache.one_sequence_bytes)


@pytest.mark.parametrize(
    ("method", "name", "config", "draft", "named"),
    [
        pytest.param("mtp", None, {**LLAMA}, None, "llama", id="a model without further layers"),
        pytest.param("mtp", None, {**GLM, "num_nextn_predict_layers": 2}, None, "one further layer", id="two further layers"),
        pytest.param("mtp", None, {**DEEPSEEK, "num_nextn_predict_layers": None}, None, "one further layer", id="a count that is not there"),
        pytest.param("mtp", None, {**DEEPSEEK, "model_type": "deepseek_v32"}, None, "deepseek_v32", id="sparse attention"),
        pytest.param("draft_model", "/d", LLAMA, {**QWEN3_NEXT, "architectures": ["Qwen3NextForCausalLM"]}, "Qwen3Next", id="a draft that vLLM takes for mtp"),
        pytest.param("draft_model", "/d", LLAMA, EAGLE3, "Eagle3", id="a layer upon states under the name of a model"),
        pytest.param("draft_model", "/dflash-x", LLAMA, LLAMA, "dflash", id="a name that vLLM takes for another method"),
        pytest.param("eagle", "/d", LLAMA, EAGLE3, "eagle", id="a layer of the other EAGLE"),
        pytest.param("eagle3", "/d", LLAMA, {**EAGLE3, "architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "Deepseek", id="EAGLE upon another family"),
        pytest.param("draft_model", "/d", LLAMA, None, "not read", id="a draft that nobody read"),
    ],
)
def test_a_draft_that_is_not_modelled_is_named(method: str, name: str | None, config: dict[str, Any], draft: dict[str, Any] | None, named: str) -> None:
    """Unknown, with what it is."""
    found = draft_of(method, name, 2, folder(config, draft))

    assert isinstance(found, Unknown)
    assert named in found.because


def test_a_draft_that_is_not_on_this_disk_says_so() -> None:
    """With the reason of the reader."""
    found = draft_of("draft_model", "d", 2, replace(folder(LLAMA), draft=UnknownCheckpoint("'d' is not on this disk yet")))

    assert found == Unknown("the draft model: 'd' is not on this disk yet")


@pytest.mark.parametrize(
    ("name", "draft", "kind"),
    [
        pytest.param("/EAGLE3-LLaMA3.1", EAGLE3, "eagle", id="a name with eagle3"),
        pytest.param("/EAGLE-LLaMA3", LLAMA, "eagle", id="a name with eagle-"),
        pytest.param(
            "/x-speculator.eagle3",
            {"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"], "transformer_layer_config": {**ATTENTION, "num_hidden_layers": 1}},
            "eagle",
            id="a layer that the speculators library wrote",
        ),
        pytest.param("/d", {**LLAMA, "model_type": "medusa"}, "heads", id="a config of Medusa"),
        pytest.param("/d", LLAMA, "model", id="any other model"),
    ],
)
def test_names_and_configs_decide_as_in_vllm(name: str, draft: dict[str, Any], kind: str) -> None:
    """Where the method is a draft model or not said."""
    found = draft_of("draft_model", name, 2, folder(LLAMA, draft))

    assert isinstance(found, Draft)
    assert kind == found.kind


@pytest.mark.parametrize(
    ("config", "draft", "release", "stages"),
    [
        pytest.param(LLAMA, EAGLE3, Release(0, 30), 1, id="a release that was not read"),
        pytest.param(LLAMA, EAGLE3, None, 1, id="no release"),
        pytest.param(LLAMA, EAGLE3, READ, 2, id="stages of a pipeline"),
        pytest.param(GPT_OSS, {**EAGLE3, "num_key_value_heads": 1}, READ, 1, id="pages of two sizes beside windows"),
        pytest.param(QWEN3_NEXT, {**EAGLE3, "head_dim": 64}, READ, 1, id="pages of two sizes beside states"),
        pytest.param(DEEPSEEK, EAGLE3, READ, 1, id="heads beside latent attention"),
        pytest.param({**LLAMA, "model_type": "llama4_text"}, EAGLE3, READ, 1, id="chunks, which switch the hybrid manager off"),
    ],
)
def test_how_unlike_layers_share_a_cache_is_unknown(config: dict[str, Any], draft: dict[str, Any], release: Release | None, stages: int) -> None:
    """The layout of the kernels decides, or it was not read."""
    assert isinstance(joined(config, drafted(config, "eagle3", draft), release, stages), Unknown)


def test_without_a_model_any_release_keeps_what_it_kept() -> None:
    """N-grams have no layers, Medusa's heads no attention."""
    layers = read_layers(GPT_OSS, None)
    assert isinstance(layers, KvLayers)
    for kind in ("nothing", "heads"):
        assert layers == layers_with_draft(layers, Draft(kind, 2), None, 4)


# Weights: 64 wide, 128 words, so that a table is 16384 bytes.
SMALL: Final[dict[str, Any]] = {
    **LLAMA,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "head_dim": 8,
    "intermediate_size": 128,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}
TABLE: Final = 128 * 64 * 2
LAYER: Final = (2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 128 + 64) * 2
NORM: Final = 64 * 2


def weighed(config: dict[str, Any], headers: Headers, parallel: Parallel = Parallel(), **loading: Any) -> WeightBytes:  # noqa: B008 - frozen
    """The weights of a model that can be weighed."""
    found = weigh(config, headers, parallel, Loading(**{"release": READ, **loading}))
    assert isinstance(found, WeightBytes), found
    return found


def both(draft: Draft, parallel: Parallel = Parallel(), **loading: Any) -> WeightBytes | Unknown:  # noqa: B008 - frozen
    """The small model and a draft."""
    options = {"release": READ, **loading}
    return with_draft(weighed(SMALL, stored(SMALL), parallel, **options), draft, parallel, Loading(**options))


def small_draft(kind: str, headers: Headers | None = None, **changes: Any) -> Draft:
    """A draft of one layer."""
    config = {**SMALL, "num_hidden_layers": 1, **changes}
    return Draft(kind, 2, Checkpoint("/d", config, None, headers=headers or stored(config)))  # type: ignore[arg-type]


def added(draft: Draft, parallel: Parallel = Parallel(), **loading: Any) -> tuple[int, int]:  # noqa: B008 - frozen
    """What the draft adds at the lower bound and likely."""
    found, alone = both(draft, parallel, **loading), weighed(SMALL, stored(SMALL), parallel, **loading)
    assert isinstance(found, WeightBytes), found
    assert found.high >= alone.high + found.likely - alone.likely
    return found.low - alone.low, found.likely - alone.likely


def test_a_draft_model_is_loaded_whole_beside_the_model() -> None:
    """With tables of its own: a layer, a norm, embeddings and head."""
    whole = LAYER + NORM + 2 * TABLE

    assert (whole, whole) == added(small_draft("model"))
    assert both(small_draft("model")).exact  # type: ignore[union-attr]


def test_eagle_takes_the_models_embeddings_and_head() -> None:
    """They may be its own, and are made in any case, which the upper bound allows for."""
    draft = small_draft("eagle")
    alone = weighed(SMALL, stored(SMALL))
    found = both(draft)

    assert (LAYER + NORM, LAYER + NORM) == added(draft)
    assert isinstance(found, WeightBytes)
    assert found.high - alone.high >= LAYER + NORM + 2 * TABLE
    assert not found.exact


def test_eagle_keeps_a_head_of_fewer_words() -> None:
    """A draft vocabulary of its own has a head of its own."""
    headers = Headers(tuple(t for t in stored({**SMALL, "num_hidden_layers": 1}).tensors if t.name != "lm_head.weight"))
    headers = Headers((*headers.tensors, Tensor("lm_head.weight", "BF16", (64, 64), TABLE // 2)))

    assert (LAYER + NORM, LAYER + NORM + TABLE // 2) == added(small_draft("eagle", headers, draft_vocab_size=64))


@pytest.mark.parametrize(
    ("draft", "parallel", "loading", "expected"),
    [
        pytest.param(
            small_draft("model"),
            Parallel(tensor_parallel_size=2),
            {},
            (2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 128) + 2 * NORM + TABLE,
            id="two ranks share all but the norms",
        ),
        pytest.param(small_draft("model"), Parallel(pipeline_parallel_size=2), {}, 0, id="one stage of two holds it, and which is fullest is open"),
        pytest.param(small_draft("model"), Parallel(), {"release": Release(0, 21)}, 0, id="a release that was not read"),
    ],
)
def test_the_lower_bound_counts_only_what_is_certain(draft: Draft, parallel: Parallel, loading: dict[str, Any], expected: int) -> None:
    """The model's own bound is one in any case."""
    assert expected == added(draft, parallel, **loading)[0]


@pytest.mark.parametrize(
    ("draft", "parallel", "loading"),
    [
        pytest.param(Draft("heads", 2), Parallel(), {}, id="Medusa"),
        pytest.param(replace(small_draft("model"), tensor_parallel_size=1), Parallel(tensor_parallel_size=2), {}, id="a draft on one rank of two"),
        pytest.param(small_draft("model"), Parallel(), {"cpu_offload_bytes": 1}, id="offloading"),
        pytest.param(Draft("model", 2, Checkpoint("/d", SMALL, 1000)), Parallel(), {}, id="files whose headers are not there"),
        pytest.param(small_draft("model", stored(SMALL), num_hidden_layers=None), Parallel(), {}, id="no layers"),
    ],
)
def test_a_draft_that_cannot_be_weighed_is_unknown(draft: Draft, parallel: Parallel, loading: dict[str, Any]) -> None:
    """And with it the weights of both."""
    assert isinstance(both(draft, parallel, **loading), Unknown)


def further(*names: tuple[str, tuple[int, ...]]) -> Headers:
    """The small model with these tensors in the layer behind its last."""
    tensors = tuple(Tensor(f"model.layers.4.{name}", "BF16", shape, 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)) for name, shape in names)
    return Headers((*stored(SMALL).tensors, *tensors))


OWN = further(("embed_tokens.weight", (128, 64)), ("shared_head.head.weight", (128, 64)), ("eh_proj.weight", (64, 128)), ("mlp.up_proj.weight", (128, 64)))


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param(1, 2 * 64 * 128 + 2 * 128 * 64, id="the tables are the model's own"),
        pytest.param(2, 2 * 64 * 128 + 128 * 64, id="every rank holds what joins the inputs"),
    ],
)
def test_a_further_layer_is_dealt_as_its_parts_are(ranks: int, expected: int) -> None:
    """Embeddings and head are freed for the model's own."""
    parallel = Parallel(tensor_parallel_size=ranks)
    without, found = weighed(SMALL, OWN, parallel), weighed(SMALL, OWN, parallel, predicts_further=True)

    assert (expected, expected) == (found.low - without.low, found.likely - without.likely)
    assert found.high - without.high >= expected + 2 * TABLE // ranks
    assert ("further tokens", expected) in found.parts


def test_keys_of_a_further_layer_are_shared_as_those_of_the_others() -> None:
    """Two KV heads on two ranks are dealt, on four they are there twice."""
    headers = further(("self_attn.k_proj.weight", (16, 64)))
    sizes = []
    for ranks in (1, 2, 4):
        parallel = Parallel(tensor_parallel_size=ranks)
        sizes.append(weighed(SMALL, headers, parallel, predicts_further=True).low - weighed(SMALL, headers, parallel).low)

    assert [2048, 1024, 1024] == sizes


def test_a_further_layer_counts_for_sure_only_where_that_was_read() -> None:
    """And not at all where the files have none."""
    without, found = weighed(SMALL, OWN), weighed(SMALL, OWN, predicts_further=True)
    old = with_further_layer(found, without, Release(0, 24))

    assert isinstance(old, WeightBytes)
    assert (found, without.low) == (with_further_layer(found, without, READ), old.low)
    assert isinstance(with_further_layer(without, without, READ), Unknown)


@pytest.mark.parametrize("name", ["mtp.layers.0.mlp.experts.0.up_proj.weight", "model.mtp_layers.0.mlp.experts.0.up_proj.weight"])
def test_experts_of_a_further_layer_are_dealt_to_all_replicas(name: str) -> None:
    """As those of the model: to two ranks of two replicas."""
    config, parallel = {**SMALL, "model_type": "qwen3_moe", "num_experts": 4}, Parallel(tensor_parallel_size=2, data_parallel_size=2)
    headers = Headers((*stored(SMALL).tensors, Tensor(name, "BF16", (32, 64), 4096)))

    assert 1024 == weighed(config, headers, parallel, predicts_further=True).low - weighed(config, headers, parallel).low


@given(
    st.sampled_from(["model", "eagle"]),
    st.integers(1, 8),
    st.integers(1, 4),
    st.sampled_from([READ, Release(0, 21), None]),
    st.sampled_from([64, 128, 256]),
)
def test_bounds_stay_in_order_and_a_draft_lowers_none(kind: str, ranks: int, stages: int, release: Release | None, words: int) -> None:
    """Whatever is drafted, on however many ranks."""
    parallel = Parallel(tensor_parallel_size=ranks, pipeline_parallel_size=stages)
    found = both(small_draft(kind, draft_vocab_size=words), parallel, release=release)
    alone = weighed(SMALL, stored(SMALL), parallel, release=release)

    assert isinstance(found, WeightBytes)
    assert found.low <= found.likely <= found.high
    assert alone.low <= found.low
    assert alone.high <= found.high
    assert found.likely == sum(size for _, size in found.parts)


@given(st.integers(1, 4), st.integers(1, 8), st.sampled_from([16, 32, 64]), st.integers(1, 4))
def test_where_all_see_everything_a_token_costs_what_both_models_keep(layers: int, heads: int, size: int, ranks: int) -> None:
    """Two bytes of a key and of a value for every head of this rank."""
    draft = {**LLAMA, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": size}
    held = joined(LLAMA, drafted(LLAMA, "draft_model", draft))
    assert isinstance(held, KvLayers)
    cache = kv_cache(held, KvSetting(READ, max_model_len=64, max_num_batched_tokens=64, tensor_parallel_size=ranks))

    assert isinstance(cache, KvCache)
    assert 4 * 4 * 32 * max(1, 2 // ranks) + layers * 4 * size * max(1, heads // ranks) == cache.bytes_per_token
