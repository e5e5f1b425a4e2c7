"""One case with the fraction that is chosen for it and its three gates at that fraction: pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from vllm_guard.plan import gates
from vllm_guard.plan.budget import cuda_total_bytes
from vllm_guard.plan.case import Case
from vllm_guard.plan.choice import Choice, Emit, Keep, NoRoom
from vllm_guard.plan.decision import Gate
from vllm_guard.plan.largest import largest
from vllm_guard.plan.model_gates import pool_gates
from vllm_guard.plan.utilization import Options, choose_utilization
from vllm_guard.units import requested_bytes

CEILING: Final = 0.95  # what the guard goes up to where only that gives the model its cache


@dataclass(frozen=True, slots=True)
class Trial:
    """What would become of a case. Its gates are judged at the chosen fraction; the second and the third at the most that the devices could give where
    there is none.
    """

    case: Case
    options: Options
    choice: Choice
    gates: tuple[Gate, Gate, Gate]

    @property
    def failed(self) -> Gate | None:
        """The second or third gate where it certainly fails."""
        return next((gate for gate in self.gates[1:] if gate.outcome == "fail"), None)

    @property
    def fails(self) -> bool:
        """Whether it certainly does not start."""
        return isinstance(self.choice, NoRoom) or self.failed is not None

    @property
    def misses(self) -> bool:
        """Whether it certainly fails, or the pool likely misses one full sequence."""
        doubted = (gate for gate in self.gates[1:] if gate.outcome == "uncertain" and gate.have_bytes is not None and gate.need_bytes is not None)
        return self.fails or any((gate.have_bytes or 0) < (gate.need_bytes or 0) for gate in doubted)


def try_case(case: Case) -> Trial:
    """The largest fraction that is safe, above vLLM's default where only that gives the model its cache, and the gates there."""
    gate1 = _free_memory(case, case.asked.least, case.asked.most)
    options = Options(
        rooms=case.rooms,
        asked=case.asked,
        gate=gate1,
        policy=case.policy,
        weights=case.known_weights,
        beside_pool_bytes=case.beside_pool_bytes,
        world=case.chosen.world,
        interchangeable=case.chosen.interchangeable,
    )
    if case.pool_bytes is not None and case.facts.vllm_device == "cpu":
        gate1 = replace(gate1, outcome="pass", detail="the CPU build skips this gate when the KV cache size is given")
        choice: Choice = Keep(gate1.detail)
    else:
        choice = choose_utilization(options, case.least_budget())
    if isinstance(choice, NoRoom):
        most = [max(0, each.left_bytes(outside_bytes=0, margin_bytes=0)) for each in case.rooms]
        return Trial(case, options, choice, (gate1, *pool_gates(case, most)))
    trial = Trial(case, options, choice, (gate1, *pool_gates(case, _budgets(case, fraction_of(case, choice)))))
    return (_raised(trial) or trial) if trial.failed is not None else trial


def best_trial(case: Case) -> Trial:
    """The case as it is where its pool holds one full sequence; else with the largest batch budget that lets it, or that at least may start. A value that the
    user gave changes only where it certainly fails.
    """
    first = try_case(case)
    given = "max_num_batched_tokens" in case.command.given
    if not (first.fails if given else first.misses):
        return first
    smaller = [try_case(each) for each in case.with_smaller_batches()]
    holding = next((trial for trial in smaller if not trial.misses), None)
    return holding or next((trial for trial in smaller if first.fails and not trial.fails), first)


def fraction_of(case: Case, choice: Emit | Keep) -> float:
    """The fraction that vLLM will use."""
    return choice.fraction if isinstance(choice, Emit) else case.asked.most


def _budgets(case: Case, fraction: float) -> list[int]:
    return [requested_bytes(cuda_total_bytes(each.device)[1], fraction) for each in case.rooms]


def _raised(trial: Trial) -> Trial | None:
    """A fraction above vLLM's default with which the model does not certainly fail, where nobody set a ceiling and the cards have the memory."""
    case = trial.case
    free_to_choose = "utilization" in case.policy.levers and case.policy.max_utilization is None and case.policy.budget_bytes is None
    if case.asked.given or case.pool_is_explicit or not free_to_choose:
        return None
    least = case.least_budget()
    choice = largest(case.rooms, CEILING, least, world=case.chosen.world, interchangeable=case.chosen.interchangeable)
    if isinstance(choice, NoRoom) or choice.fraction <= case.asked.most:
        return None
    judged = (free_memory_at(case, choice.fraction), *pool_gates(case, _budgets(case, choice.fraction)))
    return None if any(gate.outcome == "fail" for gate in judged) else replace(trial, choice=choice, gates=judged)


def free_memory_at(case: Case, fraction: float) -> Gate:
    """Gate 1 at this fraction."""
    return _free_memory(case, fraction, fraction)


def _free_memory(case: Case, least: float, most: float) -> Gate:
    return gates.free_memory(case.rooms, least, most, world=case.chosen.world, interchangeable=case.chosen.interchangeable)
