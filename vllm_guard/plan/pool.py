"""Gates 2 and 3, as far as the model's files and this release tell: is anything left for the KV cache, and does one full sequence fit into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vllm_guard.model.peak import Band
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan.decision import Gate, Outcome
from vllm_guard.plan.needs import Demand

if TYPE_CHECKING:
    from vllm_guard.model.kv_cache import KvCache

NEED: Final = "weights, activations and CUDA graphs against the budget"


@dataclass(frozen=True, slots=True)
class Judged:
    """How outcomes of several devices count together. A failure of an assumed release is uncertain."""

    world: int
    interchangeable: bool
    assumed: bool

    def together(self, outcomes: Sequence[Outcome]) -> Outcome:
        """All devices must pass; where any `world` of them may be meant, it fails for sure only when fewer can pass."""
        failed = sum(outcome == "fail" for outcome in outcomes)
        if failed and not (self.interchangeable and len(outcomes) - failed >= self.world):
            return "uncertain" if self.assumed else "fail"
        known: tuple[Outcome, ...] = ("pass", "unknown")
        return next((outcome for outcome in known if all(each == outcome for each in outcomes)), "uncertain")


def pool_band(demand: Demand, budget_bytes: int, floor_bytes: int) -> tuple[Band, bool]:
    """The pool that a budget leaves on one device, and whether its lower end is known. Negative where there is none.

    What is unknown of the demand counts as nothing for the upper end; `floor_bytes` is what the weight files prove where the weights are unknown.
    """
    beside = demand.beside_pool
    if beside is not None:
        return Band(budget_bytes - beside.high, budget_bytes - beside.likely, budget_bytes - beside.low), True
    weights = floor_bytes if isinstance(demand.weights, Unknown) else demand.weights.low
    activation = 0 if isinstance(demand.activation, Unknown) else demand.activation.low
    most = budget_bytes - weights - activation
    return Band(most, most, most), False


def cache_blocks(demand: Demand, budgets_bytes: Sequence[int], floor_bytes: int, judged: Judged) -> Gate:
    """Gate 2 on the device whose budget is smallest: the pool must hold more than the block that is held back (v1/core/kv_cache_utils.py)."""
    held_back = 0 if isinstance(demand.kv, Unknown) else demand.kv.null_block_bytes
    outcomes = [outcome_of(pool_band(demand, budget, floor_bytes), held_back + 1) for budget in budgets_bytes]
    tightest = min(budgets_bytes)
    beside = demand.beside_pool
    outcome = judged.together(outcomes)
    if beside is not None:
        return Gate("cache_blocks", outcome, tightest, beside.likely + held_back, NEED)
    least = tightest - pool_band(demand, tightest, floor_bytes)[0].high
    detail = "what is known of weights and activations against the budget" if outcome == "fail" else _why(demand)
    return Gate("cache_blocks", outcome, tightest, least or None, detail)


def one_sequence(demand: Demand, budgets_bytes: Sequence[int], floor_bytes: int, judged: Judged, *, shortest: bool) -> Gate:
    """Gate 3: the pool must hold what this release asks for one sequence of `max_model_len`; of one token where the length fits itself (`shortest`)."""
    if isinstance(demand.kv, Unknown):
        return Gate("one_sequence", "unknown", None, None, demand.kv.because)
    need = _tested_bytes(demand.kv, shortest=shortest)
    outcomes = [outcome_of(pool_band(demand, budget, floor_bytes), need) for budget in budgets_bytes]
    pool = pool_band(demand, min(budgets_bytes), floor_bytes)[0]
    return Gate("one_sequence", judged.together(outcomes), pool.likely, need, f"one sequence of {demand.kv.setting.max_model_len} tokens")


def given_pool(demand: Demand, pool_bytes: int, judged: Judged, *, shortest: bool) -> Gate:
    """Gate 3 for a pool whose bytes are given: exact."""
    if isinstance(demand.kv, Unknown):
        return Gate("one_sequence", "unknown", pool_bytes, None, demand.kv.because)
    need = _tested_bytes(demand.kv, shortest=shortest)
    outcome = judged.together(["pass" if need <= pool_bytes else "fail"] * judged.world)
    return Gate("one_sequence", outcome, pool_bytes, need, f"one sequence of {demand.kv.setting.max_model_len} tokens")


def _tested_bytes(kv: KvCache, *, shortest: bool) -> int:
    return (kv.tested_bytes_of(1) if shortest else kv.tested_bytes) + kv.null_block_bytes


def outcome_of(pool: tuple[Band, bool], need_bytes: int) -> Outcome:
    """Whether a pool of these bounds, the lower one known or not, holds a need."""
    band, low_is_known = pool
    if band.high < need_bytes:
        return "fail"
    if not low_is_known:
        return "unknown"
    return "pass" if band.low >= need_bytes else "uncertain"


def _why(demand: Demand) -> str:
    reasons = [part.because for part in (demand.weights, demand.activation) if isinstance(part, Unknown)]
    return "; ".join(dict.fromkeys(reasons))
