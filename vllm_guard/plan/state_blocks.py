"""Whether the pool has a block for the state of every request, which vLLM wants of models with recurrent layers before it captures full CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from vllm_guard.model.peak import Band
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan import ask
from vllm_guard.plan.case import Case
from vllm_guard.plan.decision import Gate
from vllm_guard.plan.pool import Judged, outcome_of, pool_band
from vllm_guard.release import Release, parse_release

NEED: Final = "a state block for each of"
# Read in 0.32.0 (config/compilation.py resolve_cudagraph_mode_and_sizes); starts of 0.19 and 0.27.1 were seen to fail by it, of 0.18 not.
_SINCE: Final = Release(0, 19)
_READ: Final = Release(0, 32)
# Beside any other option the graphs may be of another kind, which is not checked.
_KEEP_FULL_GRAPHS: Final = frozenset(
    (
        *(
            "model",
            "revision",
            "tokenizer",
            "download_dir",
            "trust_remote_code",
            "served_model_name",
            "host",
            "port",
            "api_key",
            "seed",
            "dtype",
            "uvicorn_log_level",
        ),
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "load_format"),
        *(
            "enable_prefix_caching",
            "kv_cache_dtype",
            "limit_mm_per_prompt",
            "language_model_only",
            "enable_auto_tool_choice",
            "tool_call_parser",
            "quantization",
        ),
        *("reasoning_parser", "chat_template", "generation_config", "override_generation_config", "root_path", "enable_log_requests", "disable_log_stats"),
    )
)


def with_states(case: Case, gate: Gate, budgets_bytes: Sequence[int]) -> Gate:
    """Gate 2 where recurrent layers keep states: it fails too where the pool surely has fewer blocks than `max_num_seqs`. Certain in 0.32 only."""
    kv, sequences = case.demand.kv, case.max_num_seqs
    if gate.outcome == "fail" or sequences is None or isinstance(kv, Unknown) or not kv.keeps_states or not _may_be_checked(case):
        return gate
    need = sequences * kv.bytes_per_block
    pools = _pools(case, budgets_bytes, kv.bytes_per_block)
    judged = Judged(case.chosen.world, case.chosen.interchangeable, assumed=not _is_checked(case))
    outcome = judged.together([outcome_of(each, need) for each in pools])
    if outcome in {"pass", "unknown"}:
        return gate
    have = min(band.likely for band, _ in pools)
    if have <= 0:  # what lacks is room for the model
        return replace(gate, outcome=outcome)
    return Gate("cache_blocks", outcome, have, need, f"{NEED} --max-num-seqs {sequences}")


def _pools(case: Case, budgets_bytes: Sequence[int], block_bytes: int) -> list[tuple[Band, bool]]:
    given = case.pool_bytes
    blocks = case.command.integer("num_gpu_blocks_override", 0)
    if given is None and blocks > 0:
        given = blocks * block_bytes
    if given is not None:
        return [(Band(given, given, given), True)] * len(case.rooms)
    return [pool_band(case.demand, budget, case.weights_floor_bytes) for budget in budgets_bytes]


def _may_be_checked(case: Case) -> bool:
    release = parse_release(case.facts.vllm_version)
    eager = case.facts.vllm_device == "cpu" or case.command.flag("enforce_eager") is True or ask.is_pooling(case.command, case.traits)
    return not eager and (release is None or release >= _SINCE)


def _is_checked(case: Case) -> bool:
    """Whether the check was read, and nothing was asked for that may change which graphs are captured."""
    release = parse_release(case.facts.vllm_version)
    read = release is not None and (release.major, release.minor) == (_READ.major, _READ.minor)
    if case.command.entry.usage == "unknown" and "max_num_seqs" not in case.command.given:
        return False
    plain = case.command.given.keys() <= _KEEP_FULL_GRAPHS and not case.command.unknown and "VLLM_ATTENTION_BACKEND" not in case.facts.environment
    return read and plain
