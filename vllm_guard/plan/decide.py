"""The one decision: from everything that was read to Launch, Refusal or Unmeasured. Pure and total."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from typing_extensions import assert_never

from vllm_guard.command.parse import Command
from vllm_guard.devices import Chosen, Elsewhere, Selection, Unusable
from vllm_guard.facts import Facts, Warn
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan.advice import advice
from vllm_guard.plan.assess import device_plans, effective_settings, fits_at, given_settings, pool_warnings
from vllm_guard.plan.budget import format_fraction
from vllm_guard.plan.case import Case, gather_case, reason_to_stay_out
from vllm_guard.plan.choice import Emit, Keep, NoRoom
from vllm_guard.plan.decision import NOT_JUDGED, Assessment, Change, Decision, Launch, Need, Refusal, RefusalReason, Unmeasured
from vllm_guard.plan.fixes import MOST_FIXES, fixes_for
from vllm_guard.plan.limits import below_min_free, below_min_utilization, reason_of, smallest, taken
from vllm_guard.plan.policy import Policy
from vllm_guard.plan.trial import Trial, best_trial, fraction_of, free_memory_at, try_case
from vllm_guard.plan.utilization import because_text
from vllm_guard.plan.what_if import smaller_requests
from vllm_guard.units import ExitCode


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
    poor = below_min_free(case)
    taken_by = taken(case) if case.policy.competitors == "refuse" else None
    if poor is not None:
        return _refuse(try_case(case), "below_min_free", poor)
    if taken_by is not None:
        return _refuse(try_case(case), "competitors", taken_by)
    trial = best_trial(case)
    choice, failed = trial.choice, trial.failed
    if isinstance(choice, NoRoom):
        return _refuse(trial, reason_of(trial.case, choice), choice)
    fraction = fraction_of(trial.case, choice)
    if fraction < case.policy.min_utilization:
        return _refuse(trial, "below_min_utilization", below_min_utilization(case, fraction))
    if failed is not None:
        short = NoRoom(smallest(case), max(0, failed.have_bytes or 0), (Need(failed.detail, failed.need_bytes or 0),), capped=True)
        return _refuse(trial, "context_too_long" if failed.gate == "one_sequence" else reason_of(case, short), short)
    return _launch(trial, choice)


def _launch(trial: Trial, choice: Emit | Keep) -> Launch:
    case, judged, fraction = trial.case, trial.gates, fraction_of(trial.case, choice)
    if isinstance(choice, Emit):
        judged = (free_memory_at(case, fraction), *judged[1:])
    changes = tuple(_changes(trial, choice))
    fits = fits_at(case, fraction)
    assessment = Assessment(
        devices=device_plans(case, choice),
        settings=effective_settings(case, changes),
        changes=changes,
        gates=judged,
        warnings=(*case.warnings, *choice.warnings, *pool_warnings(judged), *advice(case, judged[2])),
        fixes=tuple(smaller_requests(case))[:MOST_FIXES] if trial.misses else (),
        demand=case.demand,
        fits=fits,
        unchanged_because=choice.because if isinstance(choice, Keep) and not changes else None,
    )
    return Launch(assessment)


def _changes(trial: Trial, choice: Emit | Keep) -> Iterator[Change]:
    case = trial.case
    if isinstance(choice, Emit):
        before = case.command.given["gpu_memory_utilization"].text if case.asked.given else format_fraction(case.asked.most)
        yield Change("gpu_memory_utilization", before, format_fraction(choice.fraction), because_text(trial.options, choice))
    if case.batch.emit is not None:
        given = case.command.given.get("max_num_batched_tokens")
        yield Change("max_num_batched_tokens", None if given is None else given.text, str(case.batch.emit), case.batch.because)


def _refuse(trial: Trial, reason: RefusalReason, short: NoRoom) -> Refusal:
    case = trial.case
    each = case.rooms[short.device]
    need_free = short.need_bytes + (each.start_overhead.likely + each.margin_bytes if short.capped else 0)
    assessment = Assessment(
        devices=device_plans(case, short),
        settings=effective_settings(case, ()),
        changes=(),
        gates=trial.gates,
        warnings=(*case.warnings, *advice(case, trial.gates[2])),
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
