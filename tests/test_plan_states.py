"""A state block for each request: vLLM's check of models with recurrent layers, hand-computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from builders import checkpoint, codes, cpu_facts, facts, gate, gpu, judge, launched, refused
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard.facts import Facts
from vllm_guard.model.checkpoint import Checkpoint
from vllm_guard.plan.decision import Gate, Launch, Refusal
from vllm_guard.render.text import verdict_line
from vllm_guard.units import GIB, MIB, ExitCode

# Qwen3.6-27B: 48 gated delta nets and 16 layers of attention. A state has 10240 * 3 values of 16 bits and 48 * 128 * 128 of 32: 3207168 bytes. A token of
# attention has 4096, so that a block has 784 tokens and 3211264 bytes in each of 16 layers: 49 MiB. The weights are 50 GiB and some.
BLOCK_BYTES: Final = 16 * 784 * 4096
QWEN: Final[dict[str, Any]] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "intermediate_size": 17_408,
    "vocab_size": 248_320,
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
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
}


def qwen() -> Checkpoint:
    """With the index of its weight files, which are not there."""
    return checkpoint(51_500, **QWEN)


def gate2(*argv: str, world: Facts | None = None) -> Gate:
    """Gate 2 of this command on an idle H100 with 80 GiB."""
    decision = judge(world or facts(), *argv, model=qwen())
    assert isinstance(decision, Launch | Refusal)
    return next(each for each in decision.assessment.gates if each.gate == "cache_blocks")


def test_vllms_own_1024_requests_have_no_state_each_on_80_gib() -> None:
    """What 0.92 of the card leaves beside 50 GiB holds about 470 blocks of 49 MiB."""
    refusal = refused(judge(facts(), model=qwen()))
    flag, _, most = refusal.assessment.fixes[0].partition(" ")

    assert ("too_many_sequences", ExitCode.REFUSED_FOR_NOW, "fail") == (refusal.reason, refusal.exit_code, gate(refusal, "cache_blocks"))
    assert 1024 * BLOCK_BYTES == gate2().need_bytes
    assert "a state block for each of --max-num-seqs 1024 needs 50176 MiB" in verdict_line(refusal)
    assert ("--max-num-seqs", 300 < int(most) < 500) == (flag, True)
    assert "fail" != gate2(flag, most).outcome


def test_where_the_model_itself_likely_has_no_room_its_states_are_not_blamed() -> None:
    """The 51500 MiB of weights on a card of 48 GiB, where fewer requests would change nothing."""
    card = gpu(total_mib=49_140, free_mib=48_400, reserved_mib=500)
    refusal = refused(judge(facts(card), "--max-num-seqs", "1024", model=replace(qwen(), weight_files_bytes=None)))

    assert "model_too_large" == refusal.reason
    assert "a state block" not in verdict_line(refusal)
    assert not any("max-num-seqs" in fix for fix in refusal.assessment.fixes)


@pytest.mark.parametrize(
    ("argv", "version", "outcome"),
    [
        pytest.param((), "0.32.0", "fail", id="0.32, where the check was read"),
        pytest.param((), "0.33.0", "uncertain", id="0.33, where it was not"),
        pytest.param((), "0.24.0", "uncertain", id="0.24, which lies between releases that were seen to fail by it"),
        pytest.param((), "0.18.1", "pass", id="0.18, which has no such check"),
        pytest.param((), None, "uncertain", id="an unknown release"),
        pytest.param(("--max-num-seqs", "256"), "0.32.0", "pass", id="fewer requests"),
        pytest.param(("--max-num-seqs", "470"), "0.32.0", "uncertain", id="about as many requests as blocks"),
        pytest.param(("--enforce-eager",), "0.32.0", "pass", id="no graphs"),
        pytest.param(("--compilation-config", '{"cudagraph_mode": "PIECEWISE"}'), "0.32.0", "uncertain", id="graphs of another kind"),
        pytest.param(("-O0",), "0.32.0", "uncertain", id="a level of optimization"),
        pytest.param(("--attention-backend", "FLASHINFER"), "0.32.0", "uncertain", id="a backend that may not capture"),
        pytest.param(("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'), "0.32.0", "uncertain", id="speculation"),
        pytest.param(("-dp", "1"), "0.32.0", "uncertain", id="an option that was not thought of"),
        pytest.param(("--no-such-option",), "0.32.0", "uncertain", id="an option that is not known"),
        pytest.param(("--runner", "pooling"), "0.32.0", "pass", id="a pooling model, which captures no full graphs"),
    ],
)
def test_only_what_was_read_and_nothing_changes_is_certain(argv: tuple[str, ...], version: str | None, outcome: str) -> None:
    """Everything else is a warning at most."""
    assert outcome == gate2("--gpu-memory-utilization", "0.92", *argv, world=facts(version=version)).outcome


def test_an_uncertain_check_starts_with_a_warning() -> None:
    """That says which."""
    launch = launched(judge(facts(version="0.33.0"), model=qwen()))

    assert "cache_blocks_uncertain" in codes(launch)
    assert any("a state block for each of --max-num-seqs 1024" in warning.message for warning in launch.assessment.warnings)


def test_models_without_recurrent_layers_are_not_asked() -> None:
    """A block of theirs is 16 tokens, of which 1024 requests need no state."""
    llama = checkpoint(15_317, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=False)

    assert "pass" == gate(judge(facts(), "--max-num-seqs", "65536", "--max-model-len", "1024", "--enforce-eager", model=llama), "cache_blocks")


def test_the_cpu_build_captures_no_graphs() -> None:
    """And looks at no state blocks."""
    world = cpu_facts(total_mib=128 * 1024, free_mib=126 * 1024)

    assert "fail" != gate2("--kv-cache-memory-bytes", "1G", "--max-model-len", "512", world=world).outcome


@pytest.mark.parametrize("pool", [("--kv-cache-memory-bytes", str(20 * BLOCK_BYTES)), ("--num-gpu-blocks-override", "20")])
def test_a_given_pool_is_counted_in_blocks(pool: tuple[str, str]) -> None:
    """Twenty states, and not one more; a number of blocks is an option that was not thought of."""
    most, more = (gate2(*pool, "--max-num-seqs", sequences, "--max-model-len", "1024").outcome for sequences in ("20", "21"))

    assert ("unknown", "fail" if pool[0].startswith("--kv") else "uncertain") == (most, more)


@given(st.integers(8, 64), st.integers(1, 128))
def test_a_given_pool_fails_exactly_where_there_are_more_requests_than_blocks(blocks: int, sequences: int) -> None:
    """As vLLM counts: bytes over bytes per block, rounded down."""
    pool_bytes = blocks * BLOCK_BYTES + MIB
    outcome = gate2("--kv-cache-memory-bytes", str(pool_bytes), "--max-num-seqs", str(sequences), "--max-model-len", "1024").outcome

    assert (sequences > blocks) == (outcome == "fail")


def test_a_card_with_less_free_is_told_what_it_would_hold() -> None:
    """The number fits the memory that is free, not the card."""
    busy = facts(gpu(free_mib=66_000))
    refusal = refused(judge(busy, model=qwen()))
    most = refusal.assessment.fixes[0].removeprefix("--max-num-seqs ")

    assert refusal.reason == "too_many_sequences"
    assert int(most) * BLOCK_BYTES < 10 * GIB
    assert "fail" != gate2("--max-num-seqs", most, world=busy).outcome
