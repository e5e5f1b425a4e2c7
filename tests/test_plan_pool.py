"""Gates 2 and 3 from what the model needs: hand-computed. Sizes in MiB."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import change, checkpoint, cpu_facts, facts, gate, gpu, judge, launched, refused

from vllm_guard.model.checkpoint import Checkpoint
from vllm_guard.model.files import read_model
from vllm_guard.plan.policy import Policy
from vllm_guard.render.document import decision_document
from vllm_guard.render.text import verdict_line
from vllm_guard.units import GIB, MIB, ExitCode

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
    """--hf-overrides and a draft model are not modelled: unknown, never a guess."""
    for argv in (("--hf-overrides", '{"num_hidden_layers": 2}'), ("--speculative-config", '{"num_speculative_tokens": 3}')):
        decision = judge(facts(RTX_4090), *argv, model=llama())

        assert ("unknown", "unknown") == (gate(decision, "cache_blocks"), gate(decision, "one_sequence"))


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
