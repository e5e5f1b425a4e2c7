"""Gates 2 and 3 from what the model needs: hand-computed. Sizes in MiB."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from builders import change, checkpoint, cpu_facts, facts, gate, gpu, judge, launched, refused
from model_files import stored

from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.files import read_model
from vllm_guard.model.tensors import Headers, Tensor
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan.decision import Decision, Launch, Refusal
from vllm_guard.plan.needs import Demand
from vllm_guard.plan.policy import Policy
from vllm_guard.render.document import decision_document
from vllm_guard.render.text import verdict_line
from vllm_guard.units import GIB, MIB, ExitCode, ceil_mib

# Llama 3.1 8B: 32 layers, 8 KV heads of 128, 128 KiB of KV a token.
LLAMA: dict[str, Any] = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False}
RTX_4090 = gpu(name="NVIDIA GeForce RTX 4090", total_mib=24_564, free_mib=24_100, reserved_mib=449)
QWEN_HALF: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def llama(weights_mib: int | None = 15_317, **more: Any) -> Checkpoint:
    """With the index of its weight files, which are not there."""
    return checkpoint(weights_mib, **{**LLAMA, **more})


def test_a_sequence_that_the_pool_surely_holds_passes() -> None:
    """4096 tokens take 512 MiB of the 5 GiB that are left on a 24 GiB card."""
    decision = judge(facts(RTX_4090), "--max-model-len", "4096", model=llama())

    assert (None, "pass", "pass") == (change(decision), gate(decision, "cache_blocks"), gate(decision, "one_sequence"))


def test_a_sequence_that_no_pool_can_hold_is_refused_with_the_longest_that_fits() -> None:
    """131072 tokens take 16 GiB beside 15 GiB of weights."""
    refusal = refused(judge(facts(RTX_4090), model=llama()))

    assert ("context_too_long", ExitCode.REFUSED_FOR_NOW, "fail") == (refusal.reason, refusal.exit_code, gate(refusal, "one_sequence"))
    assert "one sequence of 131072 tokens needs 16386 MiB" in verdict_line(refusal)
    flag, _, longest = refusal.assessment.fixes[0].partition(" ")
    assert flag == "--max-model-len"
    assert gate(judge(facts(RTX_4090), "--max-model-len", longest, model=llama()), "one_sequence") != "fail"


def test_what_is_left_for_the_cache_is_never_called_less_than_nothing() -> None:
    """The weights alone likely exceed a card of 16 GiB, while the length certainly does."""
    refusal = refused(judge(facts(gpu(total_mib=16_376, free_mib=16_000, reserved_mib=300)), model=llama(None)))

    assert "GPU 0 leaves about 0 MiB for the KV cache, one sequence of 131072 tokens needs 16386 MiB" in verdict_line(refusal)


def test_between_the_bounds_it_starts_with_a_warning() -> None:
    """Nobody knows the activations to the MiB."""
    decision = judge(facts(RTX_4090), "--max-model-len", "40000", model=llama())

    assert gate(decision, "one_sequence") == "uncertain"
    assert "one_sequence_uncertain" in [warning.code for warning in launched(decision).assessment.warnings]


def test_a_length_that_fits_itself_is_never_too_long() -> None:
    """--max-model-len auto fails only when not one token fits."""
    assert gate(judge(facts(RTX_4090), "--max-model-len", "auto", model=llama()), "one_sequence") == "pass"


def test_a_release_that_is_assumed_is_not_refused_for_its_cache() -> None:
    """A certain failure becomes uncertain."""
    assert gate(judge(facts(RTX_4090, version="0.99.0"), model=llama()), "one_sequence") == "uncertain"


def test_ranks_share_weights_and_cache() -> None:
    """Two cards hold what one cannot."""
    cards = [replace(RTX_4090, nvml_index=index, uuid=f"GPU-{index}") for index in range(2)]

    assert gate(judge(facts(*cards), "-tp", "2", model=llama()), "one_sequence") != "fail"


def test_weights_above_the_empty_card_are_refused_by_the_config_alone() -> None:
    """70 billion parameters of 16 bits on one card of 80 GiB; without the files that is not exact, so it may be asked again."""
    model = checkpoint(134_600, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8, hidden_size=8192, intermediate_size=28_672)
    refusal = refused(judge(facts(), model=model))

    assert (gate(refusal, "cache_blocks"), refusal.exit_code) == ("fail", ExitCode.REFUSED_FOR_NOW)


def test_without_any_weight_file_four_bits_are_possible() -> None:
    """The config of a quantized checkpoint may say nothing of it."""
    assert gate(judge(facts(RTX_4090), "--max-model-len", "4096", model=llama(None, num_hidden_layers=60)), "cache_blocks") != "fail"


@pytest.mark.parametrize(
    ("argv", "environment", "more"),
    [
        pytest.param(("--offload-group-size", "8"), {}, {}, id="prefetch offloading"),
        pytest.param(("--offload-backend", "prefetch"), {}, {}, id="an offload backend"),
        pytest.param(("--quantization-config", '{"linear":"fp8"}'), {}, {}, id="quantized while loading"),
        pytest.param(("--model-loader-extra-config", "{}"), {}, {}, id="a loader of its own"),
        pytest.param(("--hf-config-path", "/x"), {}, {}, id="another config"),
        pytest.param(("--cpu-offload-gb", "inf"), {}, {}, id="an offload that is no size"),
        pytest.param(("--cpu-offload-gb", "-5"), {}, {}, id="a negative offload"),
        pytest.param(("--disable-sliding-window", "--max-model-len", "131072"), {}, {}, id="a window taken away"),
        pytest.param((), {"VLLM_PP_LAYER_PARTITION": "²"}, {}, id="a partition that is none"),
        pytest.param(("-pp", "100000000", "--nnodes", "100000000"), {}, {}, id="more ranks than there are"),
        pytest.param(("--kv-cache-dtype", "nvfp4"), {}, {"head_dim": 1}, id="heads of nothing"),
    ],
)
def test_what_is_not_modelled_never_refuses(argv: tuple[str, ...], environment: dict[str, str], more: dict[str, Any]) -> None:
    """On a card of 12 GiB, where the model as it stands cannot be loaded."""
    card = gpu(name="NVIDIA GeForce RTX 3060", total_mib=12_288, free_mib=12_200, reserved_mib=60)
    decision = judge(facts(card, environment=environment), *argv, model=llama(None, max_position_embeddings=4096, **more))

    assert "fail" not in {gate(decision, "cache_blocks"), gate(decision, "one_sequence")}


def test_a_model_without_any_cache_is_not_held_against_a_pool() -> None:
    """Encoders keep none, and vLLM looks at no pool then."""
    bert = checkpoint(1300, architectures=["BertModel"], model_type="bert", num_hidden_layers=24, num_attention_heads=16, hidden_size=1024)

    assert gate(judge(facts(), "--gpu-memory-utilization", "0.005", model=bert), "cache_blocks") == "pass"
    assert gate(judge(facts(), "--gpu-memory-utilization", "0.005", model=replace(bert, sentence_transformers=True)), "cache_blocks") == "pass"


def test_the_document_of_a_model_without_any_cache_is_json() -> None:
    """No number of sequences is infinity there."""
    decision = judge(facts(), model=llama(None, architectures=["BertModel"], model_type="bert", max_position_embeddings=512))
    document = decision_document(decision, facts(), executable=None, given={}, masked_argv=(), warnings=(), elapsed_seconds=0)

    assert document["fits"] is None
    assert json.loads(json.dumps(document, allow_nan=False))


def test_a_length_that_fits_itself_needs_one_token_only() -> None:
    """A lowered launch of `auto` is not refused for the whole length."""
    decision = judge(facts(gpu(free_mib=20_000)), "--max-model-len", "auto", model=llama())

    assert change(decision) is not None


def test_unequal_cards_of_a_pipeline_prove_nothing_by_the_smallest() -> None:
    """The fullest stage may be on the larger one."""
    cards = (gpu(0, total_mib=24_564, free_mib=24_100, reserved_mib=449), gpu(1))
    model = llama(90_000, num_hidden_layers=80, hidden_size=6144)

    assert "fail" not in {gate(judge(facts(*cards), "-pp", "2", "--max-model-len", "4096", model=model), name) for name in ("cache_blocks", "one_sequence")}


@pytest.mark.parametrize("pool", [("--kv-cache-memory-bytes", "1G"), ("--num-gpu-blocks-override", "10")])
def test_a_given_pool_of_an_assumed_release_is_uncertain(pool: tuple[str, ...]) -> None:
    """As everything there."""
    assert gate(judge(facts(RTX_4090, version="0.99.0"), *pool, model=llama()), "one_sequence") == "uncertain"


def test_limits_of_items_may_stand_in_objects() -> None:
    """A tower that is not loaded is not held against the card."""
    vision = {"hidden_size": 1280, "num_hidden_layers": 32, "intermediate_size": 5120, "num_attention_heads": 16}
    limits = '{"image": {"count": 0}, "video": {"count": 0}}'
    decision = judge(facts(RTX_4090), "--limit-mm-per-prompt", limits, "--max-model-len", "2048", model=llama(17_000, vision_config=vision))

    assert gate(decision, "cache_blocks") != "fail"


def test_modelopts_own_file_says_how_a_checkpoint_is_quantized(tmp_path: Path) -> None:
    """As vLLM reads it where config.json does not."""
    (tmp_path / "config.json").write_text(json.dumps(dict(llama().config)))
    quantization = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantization))
    model = read_model(str(tmp_path), None, None, {})
    decision = judge(facts(RTX_4090), "--max-model-len", "4096", model=model)

    assert isinstance(model, Checkpoint)
    assert quantization == model.config["quantization_config"]
    assert next(g.need_bytes for g in launched(decision).assessment.gates if g.gate == "one_sequence") == 257 * MIB


def test_an_overridden_config_proves_nothing() -> None:
    """--hf-overrides and a speculative config without a method are not modelled: unknown, never a guess."""
    for argv in (("--hf-overrides", '{"num_hidden_layers": 2}'), ("--speculative-config", '{"num_speculative_tokens": 3}')):
        decision = judge(facts(RTX_4090), *argv, model=llama())

        assert ("unknown", "unknown") == (gate(decision, "cache_blocks"), gate(decision, "one_sequence"))


class TestSpeculation:
    """Draft models beside Llama 3.1 8B on a card of 24 GiB."""

    NGRAM = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
    EAGLE = ("--speculative-config", '{"method": "eagle3", "model": "e", "num_speculative_tokens": 4}')
    DRAFT = ("--speculative-config", '{"model": "d", "num_speculative_tokens": 4}')
    # A layer of EAGLE 3 keeps 4 KiB a token, one 32nd of the model's 128.
    LAYER: ClassVar[dict[str, Any]] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "vocab_size": 128_256,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    }

    def drafted(self, *, weigh: bool = True, **more: Any) -> Checkpoint:
        """The model and its draft, with headers or without."""
        config = {**self.LAYER, **more}
        return replace(llama(), draft=Checkpoint("/d", config, None, headers=stored(config) if weigh else None))

    @staticmethod
    def demand(decision: Decision) -> Demand:
        """What was weighed."""
        assert isinstance(decision, Launch | Refusal)
        assert decision.assessment.demand is not None
        return decision.assessment.demand

    @pytest.mark.parametrize("version", ["0.32.0", "0.33.0", "0.21.0"])
    def test_methods_without_a_model_change_neither_weights_nor_cache(self, version: str) -> None:
        """In any release; the activations are less certain."""
        world = facts(RTX_4090, version=version)
        plain, speculating = (self.demand(judge(world, "--max-model-len", "4096", *argv, model=llama())) for argv in ((), self.NGRAM))

        assert (plain.weights, plain.cuda_graphs.low) == (speculating.weights, speculating.cuda_graphs.low)
        assert not isinstance(plain.kv, Unknown)
        assert not isinstance(speculating.kv, Unknown)
        assert (plain.kv.bytes_per_token, plain.kv.tested_bytes, 4) == (
            speculating.kv.bytes_per_token,
            speculating.kv.tested_bytes,
            speculating.kv.setting.speculative_tokens,
        )
        assert not isinstance(plain.activation, Unknown)
        assert not isinstance(speculating.activation, Unknown)
        assert (plain.activation.low, 2 * plain.activation.high) == (speculating.activation.low, speculating.activation.high)

    def test_a_sequence_that_no_pool_can_hold_is_refused_with_speculation_too(self) -> None:
        """131072 tokens take 16 GiB, and half a GiB more with a draft layer."""
        for argv, need_mib in ((self.NGRAM, 16_384 + 2), (self.EAGLE, 16_896 + 2 + 1)):
            refusal = refused(judge(facts(RTX_4090), *argv, model=self.drafted()))

            assert "context_too_long" == refusal.reason
            assert need_mib == ceil_mib(refusal.need_bytes)

    def test_a_draft_layer_keeps_its_share_of_every_token(self) -> None:
        """132 KiB a token, and its weights count."""
        demand = self.demand(judge(facts(RTX_4090), "--max-model-len", "4096", *self.EAGLE, model=self.drafted()))
        plain = self.demand(judge(facts(RTX_4090), "--max-model-len", "4096", model=llama()))

        assert not isinstance(demand.kv, Unknown)
        assert 132 * 1024 == demand.kv.bytes_per_token
        assert not isinstance(demand.weights, Unknown)
        assert not isinstance(plain.weights, Unknown)
        layer_bytes = (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336 + 2 * 4096) * 2
        assert layer_bytes == demand.weights.low - plain.weights.low

    @pytest.mark.parametrize(
        ("argv", "model", "weights", "kv"),
        [
            pytest.param(EAGLE, replace(llama(), draft=UnknownCheckpoint("'e' is not on this disk yet")), "on this disk", "on this disk", id="not here"),
            pytest.param(DRAFT, llama(), "not read", "not read", id="not read"),
            pytest.param(("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'), llama(), "further", "further", id="no further layer"),
            pytest.param(NGRAM, llama(speculators_config={}), "names its model", "names its model", id="a draft in the place of the model"),
            pytest.param((*NGRAM, "--hf-config-path", "/x"), llama(), "hf-config-path", "hf-config-path", id="another config"),
        ],
    )
    def test_a_draft_that_is_not_known_is_said_and_refuses_nothing(self, argv: tuple[str, ...], model: Checkpoint, weights: str, kv: str) -> None:
        """Both are unknown, with the reason."""
        decision = judge(facts(gpu(total_mib=12_288, free_mib=12_200, reserved_mib=60)), *argv, model=replace(model, weight_files_bytes=None))
        demand = self.demand(decision)

        assert isinstance(demand.weights, Unknown)
        assert isinstance(demand.kv, Unknown)
        assert weights in demand.weights.because
        assert kv in demand.kv.because
        assert "fail" not in {gate(decision, "cache_blocks"), gate(decision, "one_sequence")}

    def test_a_draft_without_headers_leaves_the_cache_known(self) -> None:
        """Its config says what it keeps, not what it weighs."""
        demand = self.demand(judge(facts(RTX_4090), "--max-model-len", "4096", *self.EAGLE, model=self.drafted(weigh=False)))

        assert isinstance(demand.weights, Unknown)
        assert not isinstance(demand.kv, Unknown)

    @pytest.mark.parametrize(
        ("argv", "batches"),
        [
            pytest.param((), 2, id="without speculation"),
            pytest.param(NGRAM, 1, id="n-grams, which switch asynchronous scheduling off"),
            pytest.param(("--speculative-config", '{"method": "ngram_gpu", "num_speculative_tokens": 4}'), 2, id="n-grams on the GPU, which do not"),
            pytest.param(EAGLE, 2, id="EAGLE"),
            pytest.param(
                ("--speculative-config", '{"method": "eagle3", "model": "e", "num_speculative_tokens": 4, "disable_padded_drafter_batch": true}'),
                1,
                id="EAGLE with batches that are not padded",
            ),
        ],
    )
    def test_steps_overlap_as_with_this_method(self, argv: tuple[str, ...], batches: int) -> None:
        """What windows need follows from it; asking too much would refuse a start that works."""
        kv = self.demand(judge(facts(RTX_4090), "--max-model-len", "4096", *argv, model=self.drafted())).kv

        assert not isinstance(kv, Unknown)
        assert batches == kv.setting.concurrent_batches

    def test_the_further_layer_of_a_model_is_weighed_and_kept(self) -> None:
        """GLM: one layer more."""
        glm = {**self.LAYER, "model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "num_hidden_layers": 4, "num_nextn_predict_layers": 1}
        headers = Headers((*stored(glm).tensors, Tensor("model.layers.4.mlp.up_proj.weight", "BF16", (14_336, 4096), 14_336 * 8192)))
        argv = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}', "--max-model-len", "4096")
        plain, further = (self.demand(judge(facts(RTX_4090), *each, model=Checkpoint("/m", glm, None, headers=headers))) for each in (argv[2:], argv))

        assert not isinstance(plain.weights, Unknown)
        assert not isinstance(further.weights, Unknown)
        assert 14_336 * 8192 == further.weights.low - plain.weights.low
        assert not isinstance(further.kv, Unknown)
        assert 5 * 4096 == further.kv.bytes_per_token


@pytest.mark.parametrize(
    ("max_model_len", "outcome"),
    [
        pytest.param("512", "pass", id="a start that was measured"),
        pytest.param("1344", "pass", id="the estimate that vLLM printed fits"),
        pytest.param("1360", "fail", id="one block more does not: the null block is held back"),
        pytest.param("2048", "fail", id="a failure that was measured"),
    ],
)
def test_a_pool_given_in_bytes_is_judged_exactly(max_model_len: str, outcome: str) -> None:
    """Qwen2.5-0.5B-Instruct, 16 MiB: 12288 bytes a token, 1360 tokens, estimate 1344 (0.32.0 on a 2080 Ti)."""
    card = gpu(name="NVIDIA GeForce RTX 2080 Ti", total_mib=11_264, free_mib=11_200, reserved_mib=0)
    argv = ("--max-model-len", max_model_len, "--kv-cache-memory-bytes", "16777216", "--block-size", "16")

    assert gate(judge(facts(card), *argv, model=checkpoint(**QWEN_HALF)), "one_sequence") == outcome


def test_the_document_has_the_demand_and_what_fits() -> None:
    """In bytes, each with its source."""
    world = facts(RTX_4090)
    decision = judge(world, "--max-model-len", "4096", model=llama())
    document = decision_document(decision, world, executable=None, given={}, masked_argv=(), warnings=(), elapsed_seconds=0)

    assert {"low": 131_072, "likely": 131_072, "high": 131_072, "source": "computed"} == document["demand"]["kv_bytes_per_token"]
    assert 512 * MIB == document["demand"]["kv_one_sequence"]["likely"]
    assert document["demand"]["weights"]["likely"] == pytest.approx(15 * GIB, rel=0.02)
    assert document["fits"]["max_model_len"] == 4096
    assert document["fits"]["kv_pool_bytes"]["low"] < document["fits"]["kv_pool_bytes"]["high"]


def test_a_checkpoint_that_is_smaller_than_its_config_says_is_believed() -> None:
    """A quantized checkpoint may say nothing of it in its config."""
    decision = judge(facts(RTX_4090), "--max-model-len", "4096", model=replace(llama(), weight_files_bytes=5 * GIB))

    assert gate(decision, "one_sequence") == "pass"


def test_the_tokenizers_own_limit_is_read(tmp_path: Path) -> None:
    """From the file that vLLM reads too."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 4096}))
    model = read_model(str(tmp_path), None, None, {})

    assert isinstance(model, Checkpoint)
    assert model.tokenizer_max_length == 4096


def test_the_cpu_builds_blocks_are_of_128_tokens() -> None:
    """1 MiB is 16 blocks of 512 bytes a token, one of them held back: 1920 tokens."""
    tiny = checkpoint(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32, vocab_size=320)
    world = cpu_facts(total_mib=8192, free_mib=6144)

    outcomes = [gate(judge(world, "--max-model-len", str(length), "--kv-cache-memory-bytes", "1M", model=tiny), "one_sequence") for length in (1920, 1921)]
    assert outcomes == ["pass", "fail"]


@pytest.mark.parametrize("more", [pytest.param((), id="compiled"), pytest.param(("--enforce-eager",), id="eager, where nothing is run before the gate")])
def test_the_cpu_build_keeps_nothing_of_the_batch_until_its_gate(more: tuple[str, ...]) -> None:
    """Two starts of 0.32.0 that were seen: 0.085 and 0.125 of 15.6 GiB left a cache of 0.55 and 1.19 GiB, with runs of 65536 and 32768 tokens."""
    shape = {"hidden_size": 1024, "intermediate_size": 16_384, "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2}
    model = checkpoint(102, **shape, vocab_size=320, tie_word_embeddings=False)
    tokens, fraction = ("65536", "0.085") if more else ("32768", "0.125")
    argv = ("--max-model-len", "512", "--max-num-seqs", "8", "--max-num-batched-tokens", tokens, "--gpu-memory-utilization", fraction, *more)
    decision = launched(judge(cpu_facts(total_mib=15_964, free_mib=14_000), *argv, model=model))

    assert "uncertain" == gate(decision, "cache_blocks")
    assert decision.assessment.fits is not None
    assert decision.assessment.fits.kv_pool_bytes.likely == pytest.approx(0.55 * GIB if more else 1.19 * GIB, rel=0.1)


@pytest.mark.parametrize(
    ("model_type", "low"),
    [
        pytest.param("llama", 32_768 * 2 * (4096 + 2 * 12_288), id="a family of known widths"),
        pytest.param("molmo", 32_768 * 2 * 4096, id="one whose MLPs have half of intermediate_size"),
        pytest.param("lfm2", 32_768 * 2 * 4096, id="one whose MLPs have two thirds of it"),
        pytest.param("jais2", 32_768 * 2 * 4096, id="one without a gate, which is not known"),
    ],
)
def test_the_batch_surely_takes_what_is_known_of_the_mlps_only(model_type: str, low: int) -> None:
    """32768 tokens of 16 bits."""
    model = llama(None, model_type=model_type, intermediate_size=12_288, layer_types=["full_attention"] * 32)
    decision = judge(facts(), "--max-model-len", "4096", "--max-num-batched-tokens", "32768", model=model)
    demand = launched(decision).assessment.demand

    assert demand is not None
    assert not isinstance(demand.activation, Unknown)
    assert low == demand.activation.low


COMPRESSED: dict[str, Any] = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
FOUR_BITS: dict[str, Any] = {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 128}}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128}


@pytest.mark.parametrize(
    ("quantization", "is_certain"),
    [
        pytest.param({**GPTQ, "lm_head": False}, True, id="GPTQ"),
        pytest.param({**GPTQ, "lm_head": True}, False, id="GPTQ with its head"),
        pytest.param({**GPTQ, "bits": 8, "dynamic": {"+:.*mlp.*": {"bits": 4}}}, False, id="GPTQ with exceptions"),
        pytest.param({**GPTQ, "quant_method": "auto-round", "extra_config": {"lm_head": {"bits": 4}}}, False, id="AutoRound with exceptions"),
        pytest.param({**COMPRESSED, "config_groups": {"group_0": FOUR_BITS}, "ignore": ["lm_head"]}, True, id="compressed tensors but for the head"),
        pytest.param({**COMPRESSED, "config_groups": {"group_0": FOUR_BITS}, "ignore": []}, False, id="compressed tensors with the head"),
        pytest.param(
            {**COMPRESSED, "config_groups": {"group_0": FOUR_BITS, "group_1": FOUR_BITS}, "ignore": ["lm_head"]}, False, id="two groups, one may be embeddings"
        ),
        pytest.param({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, True, id="ModelOpt but for the head"),
        pytest.param({"quant_method": "modelopt", "quant_algo": "NVFP4"}, False, id="ModelOpt with the head"),
    ],
)
def test_a_quantized_checkpoint_without_files_is_certain_where_one_method_holds_for_all_of_it(quantization: dict[str, Any], *, is_certain: bool) -> None:
    """Within 3 % and the scales; else a head of 1 GiB may be one of 256 MiB, and layers smaller than the method's bits."""
    demand = launched(judge(facts(), "--max-model-len", "4096", model=llama(None, quantization_config=quantization))).assessment.demand

    assert demand is not None
    assert not isinstance(demand.weights, Unknown)
    assert is_certain == (2 * demand.weights.low > demand.weights.likely)


def test_towers_whose_config_was_kept_by_a_model_of_text_alone_may_not_be_loaded() -> None:
    """vLLM goes by the architecture."""
    sight = {"model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "patch_size": 14}
    text = {**LLAMA, "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14_336, "vocab_size": 131_072, "max_position_embeddings": 4096}
    lows = []
    for architecture in ("MistralForCausalLM", "Mistral3ForConditionalGeneration"):
        model = checkpoint(
            architectures=[architecture], model_type="mistral3", text_config=text, vision_config=sight, quantization_config={"quant_method": "fp8"}
        )
        demand = launched(judge(facts(), model=model)).assessment.demand
        assert demand is not None
        assert not isinstance(demand.weights, Unknown)
        lows.append(demand.weights.low)

    assert lows[1] - lows[0] > 600 * MIB


@pytest.mark.parametrize("replicas", ["1", "2", "4"])
def test_replicas_of_a_model_do_not_share_its_layers(replicas: str) -> None:
    """Each of them likely holds all of the 15317 MiB."""
    cards = [gpu(index, total_mib=24_564, free_mib=24_100, reserved_mib=449) for index in range(4)]
    demand = launched(judge(facts(*cards), "--max-model-len", "8192", "--data-parallel-size", replicas, model=llama())).assessment.demand

    assert demand is not None
    assert not isinstance(demand.weights, Unknown)
    assert demand.weights.likely == pytest.approx(15_317 * MIB, rel=0.01)


MAMBA2: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 64, "mamba_d_conv": 4}
NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M*",
    "mamba_num_heads": 8,
    "mamba_head_dim": 32,
    "n_groups": 1,
    "ssm_state_size": 64,
    "conv_kernel": 4,
}


@pytest.mark.parametrize(
    ("config", "on_a_cpu"),
    [
        pytest.param({**MAMBA2, "model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"]}, "unknown", id="Granite 4"),
        pytest.param({"model_type": "deepseek_v2", "kv_lora_rank": 512, "qk_rope_head_dim": 64}, "unknown", id="latent attention"),
        pytest.param({**NEMOTRON, "mamba_ssm_cache_dtype": "bfloat16"}, "unknown", id="Nemotron-H with states of 16 bits"),
        pytest.param(NEMOTRON, "pass", id="Nemotron-H, whose states are float32 everywhere"),
        pytest.param({"model_type": "lfm2", "layer_types": ["conv", "full_attention"], "conv_L_cache": 3}, "pass", id="convolutions alone"),
    ],
)
def test_what_the_cpu_build_leaves_to_the_processor_is_unknown(config: dict[str, Any], on_a_cpu: str) -> None:
    """On a card nothing of it is open.

    Seen with 0.32.0 on a CPU with AVX512-BF16 and without AMX, 16 MiB, tiny models: Granite 4 has 34816 tokens and not the 41943 of states in 16 bits,
    DeepSeek-V2 has 7280 and not the 7168 of blocks of 128 tokens.
    """
    argv = ("--max-model-len", "4096", "--kv-cache-memory-bytes", "64M")
    model = checkpoint(**{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, **config})
    worlds = cpu_facts(total_mib=8192, free_mib=6144), facts(RTX_4090)

    assert [on_a_cpu, "pass"] == [gate(judge(world, *argv, model=model), "one_sequence") for world in worlds]


def test_levers_that_are_fixed_do_not_change_what_the_model_needs() -> None:
    """The gates judge what stays."""
    decision = judge(facts(RTX_4090), "--max-model-len", "4096", policy=Policy(levers=frozenset()), model=llama())

    assert gate(decision, "one_sequence") == "pass"


class TestAboveTheDefault:
    """Where only a larger fraction gives the model its cache."""

    # 51 layers are 23220 MiB of weights, 3 % less at least: above 0.92 of the 24115 MiB that CUDA sees (22186), below 0.95 of them (22909).
    MODEL = llama(23_220, num_hidden_layers=51, max_position_embeddings=1024)

    def test_the_fraction_goes_up_to_what_the_idle_card_has(self) -> None:
        """At most to 0.95, and it is said like any change."""
        low = judge(facts(RTX_4090), "--gpu-memory-utilization", "0.88", model=self.MODEL)
        raised = judge(facts(RTX_4090), model=self.MODEL)

        assert gate(refused(low), "cache_blocks") == "fail"
        assert 0.92 < float(change(raised) or 0) <= 0.95

    @pytest.mark.parametrize("policy", [Policy(max_utilization=0.92), Policy(levers=frozenset())], ids=["a ceiling", "no levers"])
    def test_not_above_what_the_operator_allows(self, policy: Policy) -> None:
        """Then it is refused."""
        refused(judge(facts(RTX_4090), policy=policy, model=self.MODEL))


def test_the_smallest_pool_is_one_full_sequence_where_the_model_is_known() -> None:
    """A lowered launch whose pool surely misses it is refused, and says what it needs."""
    refusal = refused(judge(facts(gpu(free_mib=20_000)), "--max-model-len", "65536", model=llama()))

    assert refusal.reason == "below_min_kv_cache"
    assert [need.name for need in refusal.needs][:3] == ["weights at least", "activations at least", "one sequence of 65536 tokens"]


GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 3840,
    "intermediate_size": 15_360,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
FEW = ("--max-num-seqs", "8", "--max-model-len", "16384")


def gemma() -> Checkpoint:
    """12 billion parameters, 40 of 48 layers with a window: what they keep follows the batch budget, twice with two steps in flight."""
    return Checkpoint("/models/m", GEMMA, 22_500 * MIB)


class TestABatchThatLeavesNoFullSequence:
    """Case d: vLLM's own batch budget, and the largest power of two with which one full sequence likely fits."""

    def test_it_is_capped_where_that_makes_the_sequence_fit(self) -> None:
        """8192 tokens a batch ask for 6149 MiB, 2048 for 2629."""
        decision = judge(facts(gpu(free_mib=28_000)), *FEW, model=gemma())

        assert change(decision, "max_num_batched_tokens") == "2048"
        assert "would likely miss one full sequence" in verdict_line(decision)
        assert launched(decision).assessment.settings["max_num_batched_tokens"].value == 2048

    def test_it_stays_where_the_sequence_likely_fits(self) -> None:
        """An acceptable choice is not touched."""
        assert change(judge(facts(gpu(free_mib=40_000)), *FEW, model=gemma()), "max_num_batched_tokens") is None

    @pytest.mark.parametrize("policy", [Policy(batched_tokens="off"), Policy(levers=frozenset({"utilization"}))])
    def test_it_is_left_alone_where_the_operator_says_so(self, policy: Policy) -> None:
        """Then it is a fix."""
        decision = refused(judge(facts(gpu(free_mib=28_000)), *FEW, model=gemma(), policy=policy))

        assert "--max-model-len" in decision.assessment.fixes[1]

    def test_a_given_value_is_a_fix_and_never_a_change(self) -> None:
        """Least harmful first."""
        decision = refused(judge(facts(gpu(free_mib=28_000)), *FEW, "--max-num-batched-tokens", "8192", model=gemma()))

        assert decision.assessment.fixes[1] == "--max-num-batched-tokens 2048"

    def test_it_is_never_below_the_sequences(self) -> None:
        """1024 sequences by default, so at most two powers may be tried."""
        decision = judge(facts(gpu(free_mib=30_500)), "--max-model-len", "16384", model=gemma())

        assert change(decision, "max_num_batched_tokens") in {"1024", "2048", None}


class TestFixes:
    """Each was tried with its number."""

    def test_an_inherited_length_is_the_first_to_go(self) -> None:
        """It starts with it, and a longer one would likely miss."""
        refusal = refused(judge(facts(RTX_4090), model=llama()))
        flag, value = refusal.assessment.fixes[0].split()
        longer = str(int(value) + 2048)

        assert flag == "--max-model-len"
        assert judge(facts(RTX_4090), flag, value, model=llama()).assessment.fixes == ()  # type: ignore[union-attr]  # measured
        assert judge(facts(RTX_4090), flag, longer, model=llama()).assessment.fixes != ()  # type: ignore[union-attr]

    def test_more_of_the_card_where_less_was_asked_than_is_safe(self) -> None:
        """A given fraction is never raised by the guard, but it is the least harm."""
        refusal = refused(judge(facts(gpu(free_mib=60_000)), "--gpu-memory-utilization", "0.3", model=llama()))
        flag, value = refusal.assessment.fixes[0].split()

        assert flag == "--gpu-memory-utilization"
        assert gate(judge(facts(gpu(free_mib=60_000)), flag, value, model=llama()), "one_sequence") == "pass"

    def test_fewer_sequences_where_the_sampler_is_what_takes_the_memory(self) -> None:
        """256 sequences times 151936 words take more than a gigabyte of a 4 GiB card; one length of 32768 takes 384 MiB."""
        card = gpu(name="NVIDIA GeForce RTX 3050", total_mib=4096, free_mib=3000, reserved_mib=60)
        decision = judge(facts(card), "--max-model-len", "32768", model=Checkpoint("/models/m", QWEN_HALF, 943 * MIB))
        flag, value = launched(decision).assessment.fixes[0].split()

        assert "one_sequence_uncertain" in [warning.code for warning in launched(decision).assessment.warnings]
        assert (flag, int(value) < 256) == ("--max-num-seqs", True)

    @pytest.mark.parametrize(
        ("capability", "is_offered"),
        [pytest.param((8, 9), True, id="Ada"), pytest.param((8, 6), False, id="Ampere"), pytest.param(None, True, id="a card that does not say")],
    )
    def test_a_cache_of_eight_bits_where_the_card_has_them(self, capability: tuple[int, int] | None, *, is_offered: bool) -> None:
        """56000 tokens take 6.8 GiB, and half of it in eight bits; a shorter length comes first."""
        card = replace(RTX_4090, compute_capability=capability)
        argv = ("--max-model-len", "56000", "--max-num-seqs", "1", "--max-num-batched-tokens", "64")
        fixes = launched(judge(facts(card), *argv, model=llama())).assessment.fixes

        assert is_offered == ("--kv-cache-dtype fp8" in fixes)

    def test_a_cache_that_is_larger_than_the_card_is_to_be_smaller_and_nobody_to_end(self) -> None:
        """24 GiB cannot be made 100."""
        fixes = refused(judge(facts(RTX_4090), "--kv-cache-memory-bytes", "100G", "--max-model-len", "4096", model=llama())).assessment.fixes
        flag, value, *_ = fixes[0].split()

        assert 1 == len(fixes)
        assert isinstance(judge(facts(RTX_4090), flag, value, "--max-model-len", "4096", model=llama()), Launch)

    @pytest.mark.parametrize(
        ("argv", "reason"),
        [
            pytest.param((), "context_too_long", id="a long length on a small card"),
            pytest.param(("--max-num-batched-tokens", "32768"), "model_too_large", id="and a large batch"),
            pytest.param(("--max-model-len", "8192", "--max-num-batched-tokens", "32768"), None, id="a batch that was given back already"),
        ],
    )
    def test_where_no_flag_alone_is_enough_three_are(self, argv: tuple[str, ...], reason: str | None) -> None:
        """18000 MiB for the 15317 of an 8B model: it takes fewer sequences for the sampler, and a shorter one."""
        world = facts(gpu(total_mib=18_000, free_mib=17_500, reserved_mib=200))
        decision = judge(world, *argv, model=llama())
        assert isinstance(decision, Launch | Refusal)
        words = decision.assessment.fixes[0].split()

        assert reason == (decision.reason if isinstance(decision, Refusal) else None)
        assert {"--max-model-len", "--max-num-seqs"} <= set(words)
        assert () == launched(judge(world, *words, model=llama())).assessment.fixes

    def test_the_cpu_build_may_be_asked_for_less_too(self) -> None:
        """Who has 30000 of 32000 MiB free has little to free: 131072 tokens take 16 GiB."""
        refusal = refused(judge(cpu_facts(total_mib=32_000, free_mib=30_000), "--max-model-len", "131072", model=llama()))

        assert any(fix.startswith("--max-model-len ") for fix in refusal.assessment.fixes)

    def test_the_batch_is_not_called_weights(self) -> None:
        """131072 tokens of activations beside 15 GiB of weights."""
        refusal = refused(judge(facts(RTX_4090), "--max-model-len", "131072", "--max-num-batched-tokens", "131072", model=llama()))

        assert "weights, activations and CUDA graphs likely need" in verdict_line(refusal)

    def test_a_start_that_likely_works_has_none(self) -> None:
        """Nothing to mend."""
        assert launched(judge(facts(RTX_4090), "--max-model-len", "4096", model=llama())).assessment.fixes == ()
