"""The batch budget: vLLM's own choice by release and card, and when it is capped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import change, checkpoint, cpu_facts, facts, gpu, judge, launched

from vllm_guard.plan.policy import Policy

SMALL = gpu(name="NVIDIA GeForce RTX 3050 Ti Laptop GPU", total_mib=4096, free_mib=4030, reserved_mib=40)
B200 = gpu(name="NVIDIA B200", total_mib=183_000, free_mib=182_000)
A100 = gpu(name="NVIDIA A100-SXM4-80GB", total_mib=81_920, free_mib=80_900)
RTX_4090 = gpu(name="NVIDIA GeForce RTX 4090", total_mib=24_564, free_mib=24_100, reserved_mib=400)


@pytest.mark.parametrize(
    ("card", "version", "argv", "tokens", "seqs"),
    [
        pytest.param(gpu(), "0.32.0", (), 8192, 1024, id="70 GiB and more"),
        pytest.param(B200, "0.32.0", (), 16_384, 1024, id="160 GiB and more from 0.28"),
        pytest.param(B200, "0.24.0", (), 8192, 1024, id="160 GiB before 0.28"),
        pytest.param(A100, "0.32.0", (), 2048, 256, id="an A100 counts as small"),
        pytest.param(RTX_4090, "0.32.0", (), 2048, 256, id="a small card"),
        pytest.param(RTX_4090, "0.32.0", ("--max-num-seqs", "2", "--max-model-len", "512"), 1024, 2, id="at most R * L"),
        pytest.param(RTX_4090, "0.10.2", ("--max-num-seqs", "2", "--max-model-len", "512"), 2048, 2, id="R * L does not count before 0.11"),
        pytest.param(RTX_4090, "0.32.0", ("--no-enable-chunked-prefill", "--max-model-len", "32k"), 32_000, 256, id="unchunked follows the length"),
        pytest.param(RTX_4090, "0.32.0", ("--performance-mode", "throughput"), 4096, 512, id="throughput mode doubles"),
        pytest.param(RTX_4090, "0.32.0", ("--max-num-batched-tokens", "100"), 100, 100, id="default R is clipped to a given batch"),
        pytest.param(RTX_4090, "0.9.2", ("--max-num-batched-tokens", "300"), 300, 256, id="0.9.2 does not clip"),
    ],
)
def test_vllms_own_choice_is_worked_out(card: Any, version: str, argv: tuple[str, ...], tokens: int, seqs: int) -> None:
    """Effective values are in the settings, and nothing is emitted."""
    decision = judge(facts(card, version=version), *argv, model=checkpoint())
    settings = launched(decision).assessment.settings

    assert (tokens, seqs) == (settings["max_num_batched_tokens"].value, settings["max_num_seqs"].value)
    assert change(decision, "max_num_batched_tokens") is None


def test_a_small_card_gets_1024() -> None:
    """Below 8 GiB the profile run of 2048 tokens takes too much."""
    assert change(judge(facts(SMALL), model=checkpoint()), "max_num_batched_tokens") == "1024"


def test_a_small_card_is_left_alone_without_a_config() -> None:
    """With no readable config nothing is known."""
    assert change(judge(facts(SMALL)), "max_num_batched_tokens") is None


def test_the_operators_ceiling_caps_without_a_config_too() -> None:
    """A number is a ceiling."""
    assert change(judge(facts(), policy=Policy(batched_tokens=4096)), "max_num_batched_tokens") == "4096"


def test_a_ceiling_above_vllms_choice_changes_nothing() -> None:
    """Nothing is emitted when vLLM's choice is acceptable."""
    assert change(judge(facts(RTX_4090), policy=Policy(batched_tokens=4096)), "max_num_batched_tokens") is None


def test_the_cap_stays_above_max_num_seqs() -> None:
    """A batch below R is an error or lowers R."""
    assert change(judge(facts(), policy=Policy(batched_tokens=64)), "max_num_batched_tokens") == "1024"
    assert change(judge(facts(SMALL), "--max-num-seqs", "1500", model=checkpoint()), "max_num_batched_tokens") == "1500"


def test_a_given_value_stays() -> None:
    """What the user gave is not the guard's, whatever the ceiling."""
    assert change(judge(facts(), "--max-num-batched-tokens", "131072", policy=Policy(batched_tokens=2048)), "max_num_batched_tokens") is None


@pytest.mark.parametrize(
    ("argv", "config"),
    [
        pytest.param(("--no-enable-chunked-prefill", "--max-model-len", "4096"), {}, id="chunked prefill off"),
        pytest.param((), {"architectures": ["BertModel"]}, id="a pooling model"),
        pytest.param(("--runner", "pooling"), {}, id="asked to pool"),
        pytest.param(("--max-model-len", "4096"), {"is_encoder_decoder": True}, id="encoder and decoder"),
        pytest.param((), {"model_type": "gemma3"}, id="images that cannot be split"),
        pytest.param(("--disable-chunked-mm-input",), {}, id="splitting of images off"),
        pytest.param(("--speculative-config", '{"num_speculative_tokens": 3}'), {}, id="speculative decoding"),
    ],
)
def test_it_is_never_capped_where_that_is_unsafe(argv: tuple[str, ...], config: dict[str, Any]) -> None:
    """An explicit value switches off the raises that vLLM makes itself."""
    decision = judge(facts(SMALL), *argv, model=checkpoint(**config))

    assert change(decision, "max_num_batched_tokens") is None


def test_hybrid_models_with_prefix_caching_are_left_alone_where_the_block_size_binds() -> None:
    """0.18.1 to 0.24.0."""
    model = checkpoint(mamba_d_state=128)

    assert change(judge(facts(SMALL, version="0.24.0"), model=model), "max_num_batched_tokens") is None
    assert change(judge(facts(SMALL, version="0.32.0"), model=model), "max_num_batched_tokens") == "1024"


@pytest.mark.parametrize("policy", [Policy(batched_tokens="off"), Policy(levers=frozenset({"utilization"}))])
def test_it_can_be_switched_off(policy: Policy) -> None:
    """By the setting, and by the levers."""
    assert change(judge(facts(SMALL), policy=policy, model=checkpoint()), "max_num_batched_tokens") is None


def test_the_cpu_build_is_left_alone() -> None:
    """2048 tokens and 128 sequences a rank."""
    settings = launched(judge(cpu_facts(total_mib=6000, free_mib=5900), model=checkpoint())).assessment.settings

    assert (2048, 128) == (settings["max_num_batched_tokens"].value, settings["max_num_seqs"].value)


def test_a_batch_that_the_cpu_build_overrules_is_not_reported_as_given() -> None:
    """For models with latent attention it takes a whole sequence and at least 2048, or not, by the kind of CPU."""
    world = cpu_facts(total_mib=65_536, free_mib=65_000)
    setting = launched(judge(world, "--max-num-batched-tokens", "4096", model=checkpoint(kv_lora_rank=512))).assessment.settings["max_num_batched_tokens"]

    assert (None, 4096) == (setting.value, setting.given)


BERT = {"architectures": ["BertModel"], "max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("argv", "config", "tokens"),
    [
        pytest.param((), {}, 2048, id="the default"),
        pytest.param(("--max-num-seqs", "1"), {"max_position_embeddings": 512}, 512, id="one short sequence"),
        pytest.param(("--max-num-seqs", "1", "--hf-overrides", '{"a": 1}'), {}, None, id="one sequence of unknown length"),
        pytest.param(("--hf-overrides", '{"a": 1}'), {}, 2048, id="many sequences of unknown length"),
        pytest.param(("--no-enable-chunked-prefill", "--hf-overrides", '{"a": 1}'), {}, None, id="unchunked, of unknown length"),
        pytest.param((), BERT, None, id="a long pooling model may be chunked or not"),
        pytest.param((), {**BERT, "max_position_embeddings": 512}, 2048, id="a short one is the same either way"),
        pytest.param(("--enable-chunked-prefill",), BERT, 2048, id="a pooling model that is told to"),
        pytest.param(("--no-enable-chunked-prefill",), BERT, 8192, id="a pooling model that is told not to"),
        pytest.param((), {"is_encoder_decoder": True, "max_position_embeddings": 4096}, 4096, id="encoder and decoder"),
        pytest.param((), {"model_type": "gemma3"}, 2048, id="small items that cannot be split"),
        pytest.param((), {"model_type": "gemma4"}, None, id="large ones"),
    ],
)
def test_the_batch_follows_the_length(argv: tuple[str, ...], config: dict[str, Any], tokens: int | None) -> None:
    """As far as the length and the chunking are known."""
    assert tokens == launched(judge(facts(RTX_4090), *argv, model=checkpoint(**config))).assessment.settings["max_num_batched_tokens"].value


@pytest.mark.parametrize(
    ("version", "argv", "config", "length"),
    [
        pytest.param("0.32.0", (), {}, 131_072, id="a model that generates is not bound by its tokenizer"),
        pytest.param("0.10.2", (), {}, 131_072, id="since 0.10.2"),
        pytest.param("0.9.2", (), {}, None, id="in 0.9.2 it may be"),
        pytest.param("0.32.0", (), {"max_position_embeddings": 256}, 256, id="a limit above the length"),
        pytest.param("0.32.0", (), {**BERT, "position_embedding_type": "absolute"}, 512, id="an encoder with absolute positions"),
        pytest.param("0.32.0", (), {**BERT, "position_embedding_type": "rope"}, 8192, id="one with others"),
        pytest.param("0.32.0", (), BERT, None, id="one that does not say"),
        pytest.param("0.32.0", (), {"architectures": ["LlamaModel"], "position_embedding_type": "absolute"}, None, id="that may generate after all"),
        pytest.param("0.32.0", ("--max-model-len", "1k"), BERT, 1000, id="a given length"),
        pytest.param("0.32.0", ("--disable-sliding-window",), {"max_position_embeddings": 256}, None, id="a window that the class may have"),
        pytest.param("0.32.0", ("--disable-sliding-window",), {"sliding_window": None}, 131_072, id="no window"),
    ],
)
def test_the_length_is_bound_by_the_tokenizer_where_vllm_looks_at_it(version: str, argv: tuple[str, ...], config: dict[str, Any], length: int | None) -> None:
    """config/model.py get_and_verify_max_len; this tokenizer's limit is 512."""
    model = replace(checkpoint(**config), tokenizer_max_length=512)

    assert length == launched(judge(facts(version=version), *argv, model=model)).assessment.settings["max_model_len"].value


def test_a_choice_that_differs_between_two_releases_is_not_emitted() -> None:
    """0.26 takes 8192 like 0.24, or 16384 like 0.28: both are above a ceiling of 4096, and not both above one of 10000."""
    world = facts(B200, version="0.26.0")

    assert change(judge(world, policy=Policy(batched_tokens=4096)), "max_num_batched_tokens") == "4096"
    assert change(judge(world, policy=Policy(batched_tokens=10_000)), "max_num_batched_tokens") is None


class TestABatchThatFollowsALongContext:
    """A given batch of the whole context is put back only where it cannot work."""

    def test_it_goes_back_to_vllms_own_choice_where_activations_alone_exceed_the_budget(self) -> None:
        """131072 tokens of a 4096 x 14336 model take 8 GiB at the very least."""
        card = gpu(total_mib=81_559, free_mib=9000)
        decision = judge(facts(card), "--max-model-len", "131072", "--max-num-batched-tokens", "131072", model=checkpoint())

        assert change(decision, "max_num_batched_tokens") == "8192"

    @pytest.mark.parametrize(
        ("argv", "free_mib"),
        [
            pytest.param(("--max-model-len", "131072", "--max-num-batched-tokens", "131072"), 40_000, id="it may work"),
            pytest.param(("--max-model-len", "262144", "--max-num-batched-tokens", "131072"), 12_000, id="it is below the length"),
            pytest.param(("--max-model-len", "4096", "--max-num-batched-tokens", "4096"), 1400, id="it is not above vLLM's own choice"),
        ],
    )
    def test_else_it_stays(self, argv: tuple[str, ...], free_mib: int) -> None:
        """A value that may work is never changed."""
        decision = judge(facts(gpu(free_mib=free_mib)), *argv, policy=Policy(min_kv_cache_bytes=0), model=checkpoint())

        assert change(decision, "max_num_batched_tokens") is None

    @pytest.mark.parametrize("pool", [("--kv-cache-memory-bytes", "4G"), ("--num-gpu-blocks-override", "100")])
    def test_it_stays_beside_a_pool_that_the_fraction_does_not_size(self, pool: tuple[str, ...]) -> None:
        """The budget is not what the activations must fit into then."""
        argv = ("--gpu-memory-utilization", "0.1", "--max-num-batched-tokens", "131072", "--max-model-len", "131072", *pool)

        assert change(judge(facts(), *argv, model=checkpoint(8000)), "max_num_batched_tokens") is None


@pytest.mark.parametrize("order", [(24_564, 6144), (6144, 24_564)])
def test_the_smallest_card_counts_in_any_order(order: tuple[int, ...]) -> None:
    """One batch budget for all ranks."""
    cards = [gpu(index, name="card", total_mib=total, free_mib=total - 100, reserved_mib=60) for index, total in enumerate(order)]

    assert change(judge(facts(*cards), "-tp", "2", model=checkpoint()), "max_num_batched_tokens") == "1024"


def test_layers_that_are_not_causal_are_left_alone() -> None:
    """They switch chunked prefill off after vLLM's own checks, and a long prompt would wait forever."""
    assert change(judge(facts(SMALL), model=checkpoint(is_causal=False)), "max_num_batched_tokens") is None
