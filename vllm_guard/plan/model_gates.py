"""Gates 2 and 3 of a case at given budgets: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_guard.model.unknown import Unknown
from vllm_guard.plan import gates, pool
from vllm_guard.plan.budget import Room
from vllm_guard.plan.case import Case
from vllm_guard.plan.decision import Gate
from vllm_guard.plan.state_blocks import with_states


def pool_gates(case: Case, budgets_bytes: Sequence[int]) -> tuple[Gate, Gate]:
    """Gates 2 and 3, the second with what recurrent layers ask of it."""
    gate2, gate3 = _gates_of_the_pool(case, budgets_bytes)
    return with_states(case, gate2, budgets_bytes), gate3


def _gates_of_the_pool(case: Case, budgets_bytes: Sequence[int]) -> tuple[Gate, Gate]:
    """Gates 2 and 3 at these budgets; for a pool that is given, its bytes against what is free and against one sequence."""
    judged = pool.Judged(case.chosen.world, case.chosen.interchangeable, case.assumed)
    shortest = case.length_fits_itself
    if case.pool_bytes is not None:
        bounds = [gates.Bound(_open_bytes(each) - case.weights_floor_bytes, case.pool_bytes) for each in case.rooms]
        gate2 = gates.cache_blocks(bounds, "the KV cache size is given", world=judged.world, interchangeable=judged.interchangeable, assumed=judged.assumed)
        return gate2, pool.given_pool(case.demand, case.pool_bytes, judged, shortest=shortest)
    if case.pool_is_explicit:
        because = "--num-gpu-blocks-override sets the pool"
        return Gate("cache_blocks", "unknown", None, None, because), _blocks_override(case, because, judged, shortest=shortest)
    floor, kv = case.weights_floor_bytes, case.demand.kv
    if not isinstance(kv, Unknown) and not kv.plan.groups:
        because = "the model keeps no KV cache, so vLLM looks at no pool"
        return Gate("cache_blocks", "pass", None, None, because), Gate("one_sequence", "pass", None, None, because)
    uneven = case.command.integer("pipeline_parallel_size", 1) > 1 and min(budgets_bytes) < max(budgets_bytes)
    if uneven:  # the fullest stage need not be on the smallest card
        budgets_bytes = [max(budgets_bytes)] * len(budgets_bytes)
    gate2 = pool.cache_blocks(case.demand, budgets_bytes, floor, judged)
    gate3 = pool.one_sequence(case.demand, budgets_bytes, floor, judged, shortest=shortest)
    return (_doubted(gate2), _doubted(gate3)) if uneven else (gate2, gate3)


def _doubted(gate: Gate) -> Gate:
    return replace(gate, outcome="uncertain") if gate.outcome == "pass" else gate


def _blocks_override(case: Case, because: str, judged: pool.Judged, *, shortest: bool) -> Gate:
    blocks = case.command.integer("num_gpu_blocks_override", 0)
    if isinstance(case.demand.kv, Unknown) or blocks <= 0:
        return Gate("one_sequence", "unknown", None, None, because)
    return pool.given_pool(case.demand, blocks * case.demand.kv.bytes_per_block, judged, shortest=shortest)


def _open_bytes(each: Room) -> int:
    return each.open_bytes - each.start_overhead.low
