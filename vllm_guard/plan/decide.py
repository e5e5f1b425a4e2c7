"""The one decision: from everything that was read to Launch, Refusal or Unmeasured. Pure and total."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from typing_extensions import assert_never

from vllm_guard.command.parse import Command
from vllm_guard.facts import Chosen, Elsewhere, Facts, Selection, Unusable, Warn, competitors
from vllm_guard.model.activation import activation_floor_bytes
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan import gates, pool, state_blocks
from vllm_guard.plan.assess import device_plans, effective_settings, fits_at, given_settings, pool_warnings
from vllm_guard.plan.budget import Room, cuda_total_bytes, format_fraction
from vllm_guard.plan.case import Case, gather_case, reason_to_stay_out
from vllm_guard.plan.choice import Choice, Emit, Keep, NoRoom
from vllm_guard.plan.decision import NOT_JUDGED, Assessment, Change, Decision, Gate, Launch, Need, Refusal, RefusalReason, Unmeasured
from vllm_guard.plan.fixes import fixes_for
from vllm_guard.plan.largest import largest
from vllm_guard.plan.policy import Policy
from vllm_guard.plan.utilization import Options, because_text, choose_utilization
from vllm_guard.units import ExitCode, requested_bytes

_CEILING: Final = 0.95  # what the guard goes up to where only that gives the model its cache


def decide(facts: Facts, command: Command, selection: Selection, checkpoint: Checkpoint | UnknownCheckpoint, policy: Policy) -> Decision:
    """The verdict on one command line. Only free memory, the devices and the argv can refuse; what is unknown never does."""
    stay_out = reason_to_stay_out(facts, command)
    if stay_out is not None:
        return untouched(command, stay_out)
    match selection:
        case Unusable(reason, message, fix):
            return Unmeasured(reason, message, fix)
        case Elsewhere(warning):
            return untouched(command, warning)
        case Chosen():
            return _weigh(gather_case(facts, command, selection, checkpoint, policy))
        case _:
            assert_never(selection)


def untouched(command: Command, warning: Warn) -> Launch:
    """A launch that changes nothing, because nothing was judged or nothing may be changed."""
    return Launch(Assessment((), given_settings(command), (), NOT_JUDGED, (*command.warnings, warning), (), unchanged_because=warning.message))


def _weigh(case: Case) -> Decision:
    gate1 = _free_memory(case, case.asked.least, case.asked.most)
    poor = _below_min_free(case)
    if poor is not None:
        return _refuse(case, "below_min_free", poor, (gate1,))
    taken = _taken(case) if case.policy.competitors == "refuse" else None
    if taken is not None:
        return _refuse(case, "competitors", taken, (gate1,))
    options = Options(case.rooms, case.asked, gate1, case.policy, case.known_weights, case.chosen.world, case.chosen.interchangeable)
    if case.pool_bytes is not None and case.facts.vllm_device == "cpu":
        gate1 = replace(gate1, outcome="pass", detail="the CPU build skips this gate when the KV cache size is given")
        choice: Choice = Keep(gate1.detail)
    else:
        choice = choose_utilization(options, case.least_budget())
    if isinstance(choice, NoRoom):
        return _refuse(case, _reason(case, choice), choice, (gate1,))
    fraction = choice.fraction if isinstance(choice, Emit) else case.asked.most
    budgets = [requested_bytes(cuda_total_bytes(each.device)[1], fraction) for each in case.rooms]
    judged = (gate1, *_pool_gates(case, budgets))
    if fraction < case.policy.min_utilization:
        return _refuse(case, "below_min_utilization", _below_min_utilization(case, fraction), judged)
    failed = next((gate for gate in judged[1:] if gate.outcome == "fail"), None)
    raised = None if failed is None else _raised(case, options)
    if raised is not None:
        return _launch(case, options, *raised)
    if failed is not None:
        short = NoRoom(_smallest(case), failed.have_bytes or 0, (Need(failed.detail, failed.need_bytes or 0),), capped=True)
        return _refuse(case, "context_too_long" if failed.gate == "one_sequence" else _reason(case, short), short, judged)
    return _launch(case, options, choice, judged)


def _raised(case: Case, options: Options) -> tuple[Emit, tuple[Gate, Gate, Gate]] | None:
    """A fraction above vLLM's default with which the model does not certainly fail, where nobody set a ceiling and the cards have the memory."""
    free_to_choose = "utilization" in case.policy.levers and case.policy.max_utilization is None and case.policy.budget_bytes is None
    if case.asked.given or case.pool_is_explicit or not free_to_choose:
        return None
    least = case.least_budget()
    choice = largest(case.rooms, _CEILING, least, world=case.chosen.world, interchangeable=case.chosen.interchangeable)
    if isinstance(choice, NoRoom) or choice.fraction <= case.asked.most:
        return None
    budgets = [requested_bytes(cuda_total_bytes(each.device)[1], choice.fraction) for each in options.rooms]
    judged = (_free_memory(case, choice.fraction, choice.fraction), *_pool_gates(case, budgets))
    return None if any(gate.outcome == "fail" for gate in judged) else (choice, judged)


def _free_memory(case: Case, least: float, most: float) -> Gate:
    return gates.free_memory(case.rooms, least, most, world=case.chosen.world, interchangeable=case.chosen.interchangeable)


def _pool_gates(case: Case, budgets_bytes: list[int]) -> tuple[Gate, Gate]:
    """Gates 2 and 3, the second with what recurrent layers ask of it."""
    gate2, gate3 = _gates_of_the_pool(case, budgets_bytes)
    return state_blocks.with_states(case, gate2, budgets_bytes), gate3


def _gates_of_the_pool(case: Case, budgets_bytes: list[int]) -> tuple[Gate, Gate]:
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


def _below_min_free(case: Case) -> NoRoom | None:
    for index, each in enumerate(case.rooms):
        need = case.policy.min_free.of(each.device.nvml_total_bytes)
        if each.device.free_bytes < need:
            return NoRoom(index, each.device.free_bytes, (Need("min_free", need),))
    return None


def _taken(case: Case) -> NoRoom | None:
    """The first card on which somebody else computes: what they are seen to hold is what the card lacks. Graphics do not count, nor who has ended."""
    for index, each in enumerate(case.rooms):
        if each.device.kind == "cuda" and competitors(each.device):
            whole = Need("the whole card", cuda_total_bytes(each.device)[1])
            return NoRoom(index, each.device.free_bytes, (whole,))
    return None


def _below_min_utilization(case: Case, fraction: float) -> NoRoom:
    index = _smallest(case)
    total = case.rooms[index].device.nvml_total_bytes
    need = Need("min_utilization", requested_bytes(total, case.policy.min_utilization))
    return NoRoom(index, requested_bytes(total, fraction), (need,), capped=True)


def _smallest(case: Case) -> int:
    totals = [each.device.nvml_total_bytes for each in case.rooms]
    return totals.index(min(totals))


def _reason(case: Case, short: NoRoom) -> RefusalReason:
    """Whose fault it is: weights that not even the empty card could hold, a threshold or ceiling of the operator, or others on the card."""
    each = case.rooms[short.device]
    floor = case.weights_floor_bytes
    if floor + each.start_overhead.low > each.device.nvml_total_bytes:
        return "model_too_large"
    if short.needs[0].name.startswith(state_blocks.NEED):
        return "too_many_sequences"
    if short.needs[0].name == "min_utilization":
        return "below_min_utilization"
    left = short.have_bytes if short.capped else each.left_bytes(outside_bytes=0, margin_bytes=each.margin_bytes)
    if short.threshold:
        return "below_min_kv_cache" if left > floor else "gpu_busy"
    return "model_too_large" if short.capped and case.pool_bytes is None else "gpu_busy"


def _is_starved(case: Case, fraction: float) -> bool:
    """Whether the least weights and activations exceed the budget, or what is free beside a pool given in bytes, on more devices than can be spared."""
    if case.pool_is_explicit and case.pool_bytes is None:
        return False
    tokens = case.batch(starved=False).max_num_batched_tokens
    need = case.weights_floor_bytes + activation_floor_bytes(case.traits, tokens, max(1, case.command.integer("tensor_parallel_size", 1)))
    if case.pool_bytes is not None:
        starved = [need + case.pool_bytes > _open_bytes(each) for each in case.rooms]
    else:
        starved = [need > requested_bytes(each.device.nvml_total_bytes, fraction) for each in case.rooms]
    spare = len(case.rooms) - case.chosen.world if case.chosen.interchangeable else 0
    return sum(starved) > spare


def _launch(case: Case, options: Options, choice: Emit | Keep, judged: tuple[Gate, Gate, Gate]) -> Launch:
    changes: list[Change] = []
    fraction = case.asked.most
    if isinstance(choice, Emit):
        fraction = choice.fraction
        judged = (_free_memory(case, fraction, fraction), *judged[1:])
        before = case.command.given["gpu_memory_utilization"].text if case.asked.given else format_fraction(case.asked.most)
        because = because_text(replace(options, weights=None) if case.pool_is_explicit else options, choice)
        changes.append(Change("gpu_memory_utilization", before, format_fraction(fraction), because))
    batch = case.batch(starved=_is_starved(case, fraction))
    if batch.emit is not None:
        given = case.command.given.get("max_num_batched_tokens")
        changes.append(Change("max_num_batched_tokens", None if given is None else given.text, str(batch.emit), batch.because))
    assessment = Assessment(
        devices=device_plans(case, choice),
        settings=effective_settings(case, changes),
        changes=tuple(changes),
        gates=judged,
        warnings=(*case.warnings, *choice.warnings, *pool_warnings(judged)),
        fixes=(),
        demand=case.demand,
        fits=fits_at(case, fraction),
        unchanged_because=choice.because if isinstance(choice, Keep) and not changes else None,
    )
    return Launch(assessment)


def _refuse(case: Case, reason: RefusalReason, short: NoRoom, judged: tuple[Gate, Gate, Gate] | tuple[Gate]) -> Refusal:
    """A refusal; its gates are judged at what was asked, the second and the third at the most that the devices could give where there is no fraction."""
    each = case.rooms[short.device]
    need_free = short.need_bytes + (each.start_overhead.likely + each.margin_bytes if short.capped else 0)
    if len(judged) == 1:
        judged = (judged[0], *_pool_gates(case, [max(0, room.left_bytes(outside_bytes=0, margin_bytes=0)) for room in case.rooms]))
    assessment = Assessment(
        devices=device_plans(case, short),
        settings=effective_settings(case, ()),
        changes=(),
        gates=judged,
        warnings=case.warnings,
        fixes=fixes_for(case, reason, each, need_free),
        demand=case.demand,
        fits=None,
    )
    return Refusal(assessment, reason, _exit_code(case, short), short.device, short.have_bytes, short.needs, short.capped)


def _exit_code(case: Case, short: NoRoom) -> Literal[ExitCode.REFUSED_FOR_NOW, ExitCode.REFUSED_FOR_GOOD]:
    """For good only when exact weights exceed the whole empty card."""
    weights = case.demand.weights
    if isinstance(weights, Unknown) or not weights.exact or case.assumed:
        return ExitCode.REFUSED_FOR_NOW
    whole = case.rooms[short.device].device.nvml_total_bytes
    return ExitCode.REFUSED_FOR_GOOD if weights.low > whole else ExitCode.REFUSED_FOR_NOW
