"""The one decision: from everything that was read to Launch, Refusal or Unmeasured. Pure and total."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import assert_never

from vllm_guard.command.parse import Command
from vllm_guard.facts import Chosen, Elsewhere, Facts, Selection, Unusable, Warn, parse_release
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.config import ModelTraits, read_traits
from vllm_guard.plan import ask, gates
from vllm_guard.plan.batch import BatchPlan, decide_batch
from vllm_guard.plan.budget import Room, format_fraction, room
from vllm_guard.plan.decision import Assessment, Change, Decision, DevicePlan, Gate, Launch, Need, Refusal, RefusalReason, Setting, Unmeasured
from vllm_guard.plan.defaults import Behaviour, behaviours, is_assumed
from vllm_guard.plan.fixes import fixes_for
from vllm_guard.plan.policy import Policy
from vllm_guard.plan.utilization import Asked, Choice, Emit, Keep, NoRoom, Weights, choose_utilization, least_budget, share_text
from vllm_guard.units import ExitCode, floor4, requested_bytes

_UNJUDGED: Final = tuple(Gate(name, "unknown", None, None, "not judged") for name in ("free_memory", "cache_blocks", "one_sequence"))
_ONE_SEQUENCE: Final = Gate("one_sequence", "unknown", None, None, "KV bytes of one sequence are not worked out in this release")


@dataclass(frozen=True, slots=True)
class _Case:
    """Everything that one decision weighs."""

    facts: Facts
    command: Command
    chosen: Chosen
    rows: tuple[Behaviour, ...]
    rooms: tuple[Room, ...]
    asked: Asked
    traits: ModelTraits | None
    weights: Weights | str
    policy: Policy
    warnings: tuple[Warn, ...]

    @property
    def weights_or_none(self) -> Weights | None:
        return self.weights if isinstance(self.weights, Weights) else None


def decide(facts: Facts, command: Command, selection: Selection, checkpoint: Checkpoint | UnknownCheckpoint, policy: Policy) -> Decision:
    """The verdict on one command line. Only free memory, the devices and the argv can refuse; what is unknown never does."""
    if command.rejection is not None:
        return _untouched(command, Warn("vllm_rejects", f"vLLM will reject this command line: {command.rejection}"))
    match selection:
        case Unusable(reason, message, fix):
            return Unmeasured(reason, message, fix)
        case Elsewhere(warning):
            return _untouched(command, warning)
        case Chosen():
            return _decide_for(facts, command, selection, checkpoint, policy)
        case _:
            assert_never(selection)


def _untouched(command: Command, *warnings: Warn) -> Launch:
    return Launch(Assessment((), given_settings(command), (), _UNJUDGED, (*command.warnings, *warnings), (), warnings[-1].message if warnings else None))


def _decide_for(facts: Facts, command: Command, chosen: Chosen, checkpoint: Checkpoint | UnknownCheckpoint, policy: Policy) -> Decision:
    release = parse_release(facts.vllm_version)
    rows = behaviours(release)
    if not rows:
        return _untouched(command, Warn("release_observed", f"vLLM {facts.vllm_version} has no free-memory gate; nothing is changed"))
    asked = _asked(command, rows)
    if asked is None:
        value = command.given["gpu_memory_utilization"].text
        return _untouched(command, Warn("value_invalid", f"--gpu-memory-utilization {value} is not in (0, 1], vLLM will reject it"))
    traits = read_traits(checkpoint.config, release) if isinstance(checkpoint, Checkpoint) else None
    work = ask.workload(command, facts, traits, command.integer("max_num_seqs", 0) or rows[0].tiers[-1].max_num_seqs)
    warnings = (*command.warnings, *chosen.warnings)
    if is_assumed(release):
        named = facts.vllm_version or "of unknown version"
        warnings = (*warnings, Warn("release_assumed", f"vLLM {named} is not known to this guard, it is taken to behave like {rows[-1].last}"))
    case = _Case(
        facts=facts,
        command=command,
        chosen=chosen,
        rows=rows,
        rooms=tuple(room(device, rows, work, policy, wsl=facts.host.wsl) for device in chosen.devices),
        asked=asked,
        traits=traits,
        weights=ask.weights_bounds(command, checkpoint, traits),
        policy=policy,
        warnings=warnings,
    )
    return _weigh(case)


def _asked(command: Command, rows: Sequence[Behaviour]) -> Asked | None:
    """The fraction asked for; None when the given value is one that vLLM rejects."""
    if "gpu_memory_utilization" in command.given:
        value = command.number("gpu_memory_utilization")
        return Asked(value, value, given=True) if value is not None and math.isfinite(value) and 0 < value <= 1 else None
    defaults = [row.gpu_memory_utilization for row in rows]
    return Asked(min(defaults), max(defaults), given=False)


def _weigh(case: _Case) -> Decision:
    pool_bytes = ask.explicit_pool_bytes(case.command, case.facts)
    explicit = pool_bytes is not None or "num_gpu_blocks_override" in case.command.given
    least = least_budget(case.policy, case.weights_or_none, pool_is_explicit=explicit)
    gate1 = _free_memory(case, case.asked.least, case.asked.most)
    skipped = pool_bytes is not None and case.facts.vllm_device == "cpu"
    if skipped:
        gate1 = replace(gate1, outcome="pass", detail="the CPU build skips this gate when the KV cache size is given")
    poor = next((index for index, each in enumerate(case.rooms) if each.device.free_bytes < case.policy.min_free.of(each.device.nvml_total_bytes)), None)
    if poor is not None:
        device = case.rooms[poor].device
        need = case.policy.min_free.of(device.nvml_total_bytes)
        return _refuse(case, "below_min_free", NoRoom(poor, device.free_bytes, (Need("min_free", need),)), gate1)
    choice = Keep(gate1.detail) if skipped else choose_utilization(case.rooms, case.asked, gate1, case.policy, least)
    if isinstance(choice, NoRoom) and case.chosen.interchangeable and gate1.outcome != "fail":
        choice = Keep("the cards cannot be told apart from here", (Warn("order_unknown", "the worst card that may be meant has no room, another one has"),))
    if isinstance(choice, NoRoom):
        return _refuse(case, _reason(case, choice), choice, gate1)
    fraction = choice.fraction if isinstance(choice, Emit) else case.asked.most
    gate2 = _cache_blocks(case, fraction, pool_bytes, explicit=explicit)
    if gate2.outcome == "fail":
        short = NoRoom(_smallest(case), gate2.have_bytes or 0, (Need(gate2.detail, gate2.need_bytes or 0),), capped=True)
        return _refuse(case, _reason(case, short), short, gate1, gate2)
    if isinstance(choice, Emit) and fraction < case.policy.min_utilization:
        total = case.rooms[choice.limiting].device.nvml_total_bytes
        asked = Need("min_utilization", requested_bytes(total, case.policy.min_utilization))
        short = NoRoom(choice.limiting, requested_bytes(total, fraction), (asked,), capped=True)
        return _refuse(case, "below_min_utilization", short, gate1, gate2)
    return _launch(case, choice, gate1, gate2)


def _free_memory(case: _Case, least: float, most: float) -> Gate:
    return gates.free_memory(case.rooms, least, most, world=case.chosen.world, interchangeable=case.chosen.interchangeable)


def _cache_blocks(case: _Case, fraction: float, pool_bytes: int | None, *, explicit: bool) -> Gate:
    floor = case.weights.floor_bytes if isinstance(case.weights, Weights) else None
    if pool_bytes is not None:
        return gates.explicit_pool(case.rooms, floor, pool_bytes)
    if explicit:
        return gates.cache_blocks(None, None, "--num-gpu-blocks-override sets the pool")
    because = case.weights if isinstance(case.weights, str) else "half of the weight files is the least that must be loaded"
    return gates.cache_blocks(min(requested_bytes(each.device.nvml_total_bytes, fraction) for each in case.rooms), floor, because)


def _smallest(case: _Case) -> int:
    totals = [each.device.nvml_total_bytes for each in case.rooms]
    return totals.index(min(totals))


def _reason(case: _Case, short: NoRoom) -> RefusalReason:
    """Whose fault it is: weights that not even the empty card could hold, a threshold or ceiling of the operator, or others on the card."""
    each = case.rooms[short.device]
    floor = case.weights.floor_bytes if isinstance(case.weights, Weights) else 0
    if floor + each.start_overhead.low > each.device.nvml_total_bytes:
        return "model_too_large"
    if short.capped:
        return "model_too_large" if floor > short.have_bytes else "below_min_kv_cache"
    return "gpu_busy" if case.asked.given or each.usable_without_outside_bytes <= floor else "below_min_kv_cache"


def _launch(case: _Case, choice: Emit | Keep, gate1: Gate, gate2: Gate) -> Launch:
    changes: list[Change] = []
    if isinstance(choice, Emit):
        gate1 = _free_memory(case, choice.fraction, choice.fraction)
        before = case.command.given["gpu_memory_utilization"].text if case.asked.given else format_fraction(case.asked.most)
        because = share_text(case.rooms, choice, case.asked, case.policy, case.weights_or_none)
        changes.append(Change("gpu_memory_utilization", before, format_fraction(choice.fraction), because))
    batch = _batch(case, starved=False)
    if batch.emit is not None:
        given = case.command.given.get("max_num_batched_tokens")
        own = None if given is None else given.text
        changes.append(Change("max_num_batched_tokens", own, str(batch.emit), batch.because))
    settings = _settings(case, changes, batch)
    kept = choice.because if isinstance(choice, Keep) else None
    assessment = Assessment(
        devices=_device_plans(case, choice),
        settings=settings,
        changes=tuple(changes),
        gates=(gate1, gate2, _ONE_SEQUENCE),
        warnings=(*case.warnings, *choice.warnings),
        fixes=(),
        unchanged_because=None if changes else kept,
    )
    return Launch(assessment)


def _refuse(case: _Case, reason: RefusalReason, short: NoRoom, gate1: Gate, gate2: Gate | None = None) -> Refusal:
    each = case.rooms[short.device]
    need_free = short.need_bytes if not short.capped else short.need_bytes + each.start_overhead.likely + each.margin_bytes
    if gate2 is None:
        gate2 = _cache_blocks(case, floor4(max(0, each.usable_without_outside_bytes), each.device.nvml_total_bytes), None, explicit=False)
    assessment = Assessment(
        devices=_device_plans(case, short),
        settings=_settings(case, (), _batch(case, starved=True)),
        changes=(),
        gates=(gate1, gate2, _ONE_SEQUENCE),
        warnings=case.warnings,
        fixes=fixes_for(reason, each, need_free, case.facts, given=case.asked.given),
    )
    return Refusal(assessment, reason, ExitCode.REFUSED_FOR_NOW, short.device, short.have_bytes, short.needs, short.capped)


def _batch(case: _Case, *, starved: bool) -> BatchPlan:
    device = case.rooms[0].device
    world = ask.all_ranks(case.command)
    return decide_batch(case.rows, device, ask.batch_ask(case.command, case.traits, world=world), case.policy, starved=starved)


def _device_plans(case: _Case, choice: Choice) -> tuple[DevicePlan, ...]:
    """The equation per device. `limiting` is the device that decides the fraction, or the one that refuses."""
    match choice:
        case Emit(limiting=index) | NoRoom(device=index):
            limiting = index
        case Keep():
            limiting = min(range(len(case.rooms)), key=lambda i: case.rooms[i].usable_bytes / case.rooms[i].device.nvml_total_bytes)
        case _:
            assert_never(choice)
    plans = []
    for index, each in enumerate(case.rooms):
        safe = min(case.asked.most, floor4(each.usable_bytes, each.device.nvml_total_bytes))
        plans.append(
            DevicePlan(
                device=each.device,
                start_overhead_bytes=each.start_overhead.likely,
                outside_budget_bytes=each.outside_budget_bytes,
                margin_bytes=each.margin_bytes,
                budget_bytes=each.usable_bytes,
                gpu_memory_utilization=case.asked.most if isinstance(choice, Keep) else safe,
                limiting=index == limiting,
            )
        )
    return tuple(plans)


def given_settings(command: Command) -> Mapping[str, Setting]:
    """What the user gave, as far as the report names it."""
    return {dest: Setting(g.value, g.text, g.source) for dest, g in command.given.items() if dest in _REPORTED}


_REPORTED: Final = (
    "gpu_memory_utilization",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enforce_eager",
    "cpu_offload_gb",
)


def _settings(case: _Case, changes: Sequence[Change], batch: BatchPlan) -> Mapping[str, Setting]:
    """Effective values after the guard; on a refusal what was asked."""
    defaults: dict[str, object] = {
        "gpu_memory_utilization": case.asked.most,
        "max_num_batched_tokens": batch.max_num_batched_tokens if batch.emit is None else None,
        "max_num_seqs": batch.max_num_seqs,
        "max_model_len": ask.effective_max_model_len(case.command, case.traits),
        "kv_cache_memory_bytes": None,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
    }
    settings = {dest: Setting(value, None, "vllm_default") for dest, value in defaults.items()}
    settings.update(given_settings(case.command))
    for change in changes:
        before = case.command.given.get(change.dest)
        value = float(change.after) if change.dest == "gpu_memory_utilization" else int(change.after)
        settings[change.dest] = Setting(value, before.text if before else None, "guard")
    return settings
