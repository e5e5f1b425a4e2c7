"""What vLLM itself does, by release, as data: one row per range of inspected releases.

Inspected were 0.9.2, 0.10.2, 0.11.2, 0.12.0, 0.15.1, 0.18.1, 0.21.0, 0.24.0, 0.28.0, 0.30.0, 0.32.0 and 0.33.0; a row holds from its first to its
last inspected release. Nothing is known about releases between two rows but that they behave as one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from vllm_guard.release import Release
from vllm_guard.units import GIB


@dataclass(frozen=True, slots=True)
class BatchTier:
    """vLLM's batch defaults for the API server on cards of at least this total, and for its LLM class, which differs in the batch budget only
    (engine/arg_utils.py get_batch_defaults).
    """

    at_least_total_bytes: int
    max_num_batched_tokens: int
    max_num_seqs: int
    llm_class_tokens: int
    not_a100: bool = False


SMALL_TIER: Final = BatchTier(0, 2048, 256, 8192)
LARGE_TIER: Final = BatchTier(70 * GIB, 8192, 1024, 16384, not_a100=True)
HUGE_TIER: Final = BatchTier(160 * GIB, 16384, 1024, 16384)

# CUDA graphs lie outside the budget: always, with the V2 model runner only, or never (v1/worker/gpu_worker.py determine_available_memory).
GraphsOutside = Literal["always", "v2_runner", "never"]
# Where the V2 model runner is the default without VLLM_USE_V2_MODEL_RUNNER (config/vllm.py).
V2Runner = Literal["never", "opt_in", "six_architectures", "most"]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one range of releases decides about memory."""

    first: Release
    last: Release
    gpu_memory_utilization: float
    collectives_before_gate: bool
    graphs_outside: GraphsOutside
    v2_runner: V2Runner
    tiers: tuple[BatchTier, ...]
    batch_follows_lengths: bool
    default_seqs_are_clipped: bool
    prefix_lm_raises_batch: bool
    blocks_override_replaces_checks: bool
    v2_sampler_outside: bool
    hybrid_batch_floor: bool


# Each row says what changed since the row before. Sources: default utilization config/cache.py; order of NCCL and the snapshot v1/worker/gpu_worker.py
# init_device; tiers and the min(R * L) rule engine/arg_utils.py; graph estimate v1/worker/gpu_model_runner.py and v1/worker/gpu/cudagraph_utils.py;
# runner config/vllm.py; --num-gpu-blocks-override v1/core/kv_cache_utils.py.
_0_9: Final = Behaviour(
    first=Release(0, 9, 2),
    last=Release(0, 9, 2),
    gpu_memory_utilization=0.9,
    collectives_before_gate=False,
    graphs_outside="always",
    v2_runner="never",
    v2_sampler_outside=False,
    tiers=(LARGE_TIER, SMALL_TIER),
    batch_follows_lengths=False,
    default_seqs_are_clipped=False,
    prefix_lm_raises_batch=False,
    hybrid_batch_floor=False,
    blocks_override_replaces_checks=False,
)
_0_10: Final = replace(_0_9, first=Release(0, 10, 2), last=Release(0, 10, 2), default_seqs_are_clipped=True)
_0_11: Final = replace(_0_10, first=Release(0, 11, 2), last=Release(0, 15, 1), collectives_before_gate=True, v2_runner="opt_in", batch_follows_lengths=True)
_0_18: Final = replace(_0_11, first=Release(0, 18, 1), last=Release(0, 18, 1), hybrid_batch_floor=True)
_0_21: Final = replace(
    _0_18,
    first=Release(0, 21, 0),
    last=Release(0, 21, 0),
    gpu_memory_utilization=0.92,
    graphs_outside="v2_runner",
    blocks_override_replaces_checks=True,
)
_0_24: Final = replace(
    _0_21, first=Release(0, 24, 0), last=Release(0, 24, 0), v2_runner="six_architectures", v2_sampler_outside=True, prefix_lm_raises_batch=True
)
_0_28: Final = replace(
    _0_24,
    first=Release(0, 28, 0),
    last=Release(0, 28, 0),
    v2_runner="most",
    v2_sampler_outside=False,
    hybrid_batch_floor=False,
    tiers=(HUGE_TIER, LARGE_TIER, SMALL_TIER),
)
_0_30: Final = replace(_0_28, first=Release(0, 30, 0), last=Release(0, 33, 0), graphs_outside="never")

BEHAVIOURS: Final = (_0_9, _0_10, _0_11, _0_18, _0_21, _0_24, _0_28, _0_30)
LAST_INSPECTED: Final = BEHAVIOURS[-1].last
# The CPU build's defaults per rank, without tiers; its LLM class takes twice as much (engine/arg_utils.py).
CPU_MAX_NUM_BATCHED_TOKENS: Final = 2048
CPU_MAX_NUM_SEQS: Final = 128
# What every other usage context gets, on any device (config/scheduler.py).
OTHER_MAX_NUM_BATCHED_TOKENS: Final = 2048
OTHER_MAX_NUM_SEQS: Final = 128
# The architectures that 0.24.0 runs on the V2 runner (config/vllm.py).
V2_ARCHITECTURES_0_24: Final = frozenset(
    (
        "LlamaForCausalLM",
        "Qwen3ForCausalLM",
        "MistralForCausalLM",
        "DeepseekV2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "GraniteMoeForCausalLM",
    )
)


def behaviours(release: Release | None) -> tuple[Behaviour, ...]:
    """The behaviours that a release may have: one, or two when it lies between inspected ranges; the last one's for unknown and later releases.

    Empty for releases before 0.9.2, which have no free-memory gate and are only observed.
    """
    if release is None or release > LAST_INSPECTED:
        return (BEHAVIOURS[-1],)
    below = [row for row in BEHAVIOURS if row.first <= release]
    if not below:
        return ()
    index = len(below) - 1
    return BEHAVIOURS[index : index + 1] if release <= below[-1].last else BEHAVIOURS[index : index + 2]


def is_assumed(release: Release | None) -> bool:
    """Whether the last inspected release stands in for this one."""
    return release is None or release > LAST_INSPECTED


def runs_v2(row: Behaviour, forced: str | None, architecture: str | None) -> bool:
    """Whether the V2 model runner is used; `forced` is VLLM_USE_V2_MODEL_RUNNER. An unknown architecture counts as V2 where that is a default."""
    if row.v2_runner == "never":
        return False
    if forced in {"0", "1"}:
        return forced == "1"
    if row.v2_runner == "six_architectures":
        return architecture is None or architecture in V2_ARCHITECTURES_0_24
    return row.v2_runner == "most"
