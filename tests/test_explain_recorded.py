"""Logs that the real vLLM 0.32.0 for CPUs wrote (`real/record_logs.py` makes them anew): each failure is named, with its proof and its first fix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from real.failures import FAILURES

from vllm_guard.explain.diagnose import Diagnosis, diagnose
from vllm_guard.explain.signatures import read_signatures
from vllm_guard.render.explain import explain_lines

LOGS: Final = Path(__file__).parent / "explain" / "logs"
NODE: Final = "Available memory on node 0"


@dataclass(frozen=True, slots=True)
class Expected:
    """The cause, words of the line that proves it, and the first fix: action, flag, value."""

    cause: str
    proof: str
    action: str
    flag: str | None = None
    value: str | None = None
    confidence: str = "certain"


EXPECTED: Final = {
    "gate1_default": Expected("gate_free_memory", f"{NODE} (6.0/8.0 GiB) on startup", "lower_utilization", "--gpu-memory-utilization", "0.74"),
    "gate1_99": Expected("gate_free_memory", "utilization (0.99, 7.92 GiB)", "lower_utilization", "--gpu-memory-utilization", "0.74"),
    "gate1_small_node": Expected("gate_free_memory", f"{NODE} (1.5/2.0 GiB) on startup", "lower_utilization", "--gpu-memory-utilization", "0.74"),
    "gate1_held_by_others": Expected("gate_free_memory", f"{NODE} (1.5/8.0 GiB) on startup", "free_host_memory", None, "3.30 GiB"),
    "utilization_above_one": Expected(
        "invalid_value", "less than or equal to 1 [type=less_than_equal, input_value=1.2", "fix_flag", "--gpu-memory-utilization"
    ),
    "utilization_001": Expected("oom_at_kv_allocation", "requested memory for kv (-0.", "raise_utilization", "--gpu-memory-utilization", "0.74"),
    "kv_bytes_above_free": Expected("oom_at_kv_allocation", "for kv (60.0 GiB)", "lower_kv_bytes", "--kv-cache-memory-bytes", "5798205849"),
    "kv_bytes_small_node": Expected("oom_at_kv_allocation", "for kv (6.0 GiB)", "lower_kv_bytes", "--kv-cache-memory-bytes", "966367641"),
    "kv_space_above_free": Expected("oom_at_kv_allocation", "for kv (100.0 GiB)", "lower_kv_bytes", "VLLM_CPU_KVCACHE_SPACE", "5"),
    "gate3_1m": Expected("gate_one_sequence", "estimated maximum model length is 1920", "lower_model_len", "--max-model-len", "1920"),
    "gate3_16m": Expected("gate_one_sequence", "estimated maximum model length is 32640", "lower_model_len", "--max-model-len", "32640"),
    "gate3_override": Expected("gate_one_sequence", "estimated maximum model length is 1920", "lower_model_len", "--max-model-len", "1920"),
    "gate2_0": Expected("gate_cache_blocks", "No available memory for the cache blocks", "raise_kv_bytes", "--kv-cache-memory-bytes"),
    "gate2_1": Expected("gate_cache_blocks", "No available memory for the cache blocks", "raise_kv_bytes", "--kv-cache-memory-bytes"),
    "batch_below_length": Expected(
        "batched_tokens_below_model_len", "(256) is smaller than max_model_len (512)", "raise_batched_tokens", "--max-num-batched-tokens", "512"
    ),
    "batch_below_sequences": Expected("invalid_value", "(64) must be greater than or", "raise_batched_tokens", "--max-num-batched-tokens", "128"),
    "batch_0": Expected("invalid_value", "greater than or equal to 1 [type=greater_than_equal, input_value=0", "fix_flag", "--max-num-batched-tokens"),
    "sequences_0": Expected("invalid_value", "greater than or equal to 1 [type=greater_than_equal, input_value=0", "fix_flag", "--max-num-seqs"),
    "unknown_flag": Expected("unknown_flag", "unrecognized arguments: --swap-space 4", "fix_flag", "--swap-space"),
    "bad_value": Expected("invalid_value", "argument --max-model-len: invalid", "fix_flag", "--max-model-len"),
    "missing_value": Expected("invalid_value", "argument --max-model-len: expected one argument", "fix_flag", "--max-model-len"),
    "load_format": Expected("invalid_value", "Load format `nosuch` is not supported", "fix_flag"),
    "length_above_config": Expected("invalid_value", "max_model_len (4096) is greater than", "lower_model_len", "--max-model-len", "512"),
    "port_in_use": Expected("port_in_use", "[Errno 98] Address already in use", "fix_port", "--port"),
    "tensor_parallel_3": Expected("parallel_size_does_not_divide", "heads (4) must be", "fix_parallel_size", "--tensor-parallel-size", "2"),
    "tensor_parallel_2_one_node": Expected("invalid_value", "Not enough allowed NUMA nodes", "fix_parallel_size", "--tensor-parallel-size"),
    "path_missing": Expected("model_not_found", "HFValidationError: Repo id must be", "fix_path"),
    "hub_name_offline": Expected("model_not_found", "LocalEntryNotFoundError: Cannot find", "fix_path"),
    "empty_folder": Expected("model_incomplete", "Invalid repository ID or local directory specified: '/models/empty'", "redownload"),
    "weights_truncated": Expected("model_incomplete", "incomplete metadata, file not fully covered", "redownload"),
    "weights_garbage": Expected("model_incomplete", "Error while deserializing header: header too large", "redownload"),
    "weights_bad_header": Expected("model_incomplete", "Error while deserializing header: invalid JSON in header", "redownload"),
    "weights_wrong_shape": Expected("model_incomplete", "start (0) + length (512) exceeds dimension size (256)", "redownload"),
    "no_weights": Expected("model_incomplete", "Cannot find any model weights with `/models/no_weights`", "redownload"),
    "config_broken": Expected("model_incomplete", "'/models/bad_config/config.json' is not a valid JSON file", "redownload"),
    "architecture_unknown": Expected("architecture_unsupported", "Model architectures ['NopeForCausalLM'] are not supported", "other_checkpoint"),
    "model_type_unknown": Expected("architecture_unsupported", "model type `nope`", "other_checkpoint"),
    "worker_killed_loading": Expected("log_incomplete", "EngineCore failed to start", "more_log", confidence="likely"),
    "sigint_engine": Expected("interrupted", "KeyboardInterrupt", "none"),
    "sigint_loading": Expected("interrupted", "KeyboardInterrupt", "none"),
}
NO_CAUSE: Final = ("sigterm_early", "sigterm_engine", "served_then_sigterm", "served_then_engine_killed", "served_then_worker_killed", "first_request_dies")


def diagnosis(name: str) -> Diagnosis:
    """What `explain` makes of a recorded log."""
    return diagnose([(LOGS / f"{name}.log").read_bytes()], read_signatures())


@pytest.mark.parametrize("name", EXPECTED)
def test_a_failure_is_named_with_its_proof_and_its_fix(name: str) -> None:
    """The quoted line is the one in the file, and says what it is said to say."""
    expected, found = EXPECTED[name], diagnosis(name)
    fix = found.fixes[0]

    assert (expected.cause, expected.confidence) == (found.cause, found.confidence)
    assert (expected.action, expected.flag, expected.value) == (fix.action, fix.flag, fix.value)
    assert found.line is not None
    assert expected.proof in (found.text or "")
    assert expected.proof in (LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines()[found.line - 1]


@pytest.mark.parametrize("name", NO_CAUSE)
def test_what_is_no_failed_start_has_no_cause(name: str) -> None:
    """A server that became ready, however it ended; and one that was ended while it started and printed nothing about it."""
    found = diagnosis(name)

    assert (None, ()) == (found.cause, found.fixes)


def test_the_example_in_the_docs_is_what_is_printed() -> None:
    """Word for word, of a recorded log."""
    docs = (LOGS.parent.parent.parent / "docs" / "explain.md").read_text(encoding="utf-8")
    shown = docs.partition("$ vllm-guard explain vllm.log\n")[2].partition("```")[0]

    assert list(explain_lines(diagnosis("gate3_16m"))) == shown.splitlines()


def test_every_recorded_log_is_judged() -> None:
    """No log without an expectation, and no case without a log."""
    recorded = {path.stem for path in LOGS.glob("*.log")}

    assert recorded == {*EXPECTED, *NO_CAUSE}
    assert recorded == set(FAILURES)
