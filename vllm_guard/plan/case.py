"""Everything that one decision weighs, gathered from what was read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vllm_guard.command.parse import Command, Given
from vllm_guard.devices import Chosen
from vllm_guard.facts import Facts, Warn
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.config import ModelTraits, read_traits
from vllm_guard.model.peak import Band
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan import ask
from vllm_guard.plan.batch import own_choice
from vllm_guard.plan.budget import Room, room
from vllm_guard.plan.capping import BatchPlan, decide_batch, smaller_batches
from vllm_guard.plan.choice import Asked
from vllm_guard.plan.defaults import Behaviour, behaviours, is_assumed
from vllm_guard.plan.largest import Least, Weights, least_budget
from vllm_guard.plan.needs import Demand
from vllm_guard.plan.policy import Policy
from vllm_guard.release import Release, parse_release

if TYPE_CHECKING:
    from vllm_guard.model.weights import WeightBytes

_FITS_ITSELF: Final = -1


@dataclass(frozen=True, slots=True)
class Case:
    """One command on its devices, for one release. `rows` are the behaviours that the release may have; `demand` is that of the batch budget in `batch`."""

    facts: Facts
    command: Command
    chosen: Chosen
    checkpoint: Checkpoint | UnknownCheckpoint
    rows: tuple[Behaviour, ...]
    rooms: tuple[Room, ...]
    asked: Asked
    traits: ModelTraits | None
    weights: Weights | str
    policy: Policy
    batch: BatchPlan
    demand: Demand
    assumed: bool
    warnings: tuple[Warn, ...]

    @property
    def known_weights(self) -> Weights | None:
        """The weights where their files prove something."""
        return self.weights if isinstance(self.weights, Weights) else None

    @property
    def weights_floor_bytes(self) -> int:
        """The least that one device must hold, 0 where nothing is proved."""
        return self.weights.floor_bytes if isinstance(self.weights, Weights) else 0

    @property
    def beside_pool_bytes(self) -> int | None:
        """What the budget most likely loses before the KV cache: the demand's parts, else the weight files; None where the fraction does not size the pool."""
        if self.pool_is_explicit:
            return None
        demanded = self.demand.beside_pool
        share = self.weights.share_bytes if isinstance(self.weights, Weights) else None
        return share if demanded is None else demanded.likely

    @property
    def pool_bytes(self) -> int | None:
        """The KV cache size that the user gave in bytes."""
        return ask.explicit_pool_bytes(self.command, self.facts)

    @property
    def pool_is_explicit(self) -> bool:
        """Whether the fraction does not size the pool: bytes are given, or a number of blocks where that replaces vLLM's own checks."""
        overridden = "num_gpu_blocks_override" in self.command.given and all(row.blocks_override_replaces_checks for row in self.rows)
        return self.pool_bytes is not None or overridden

    @property
    def max_num_seqs(self) -> int | None:
        """Requests at once, given or vLLM's own; None where that is not known."""
        return self.batch.max_num_seqs

    @property
    def length_fits_itself(self) -> bool:
        """Whether `--max-model-len auto` lets vLLM take what fits."""
        return self.command.integer("max_model_len", 0) == _FITS_ITSELF

    def least_budget(self) -> Least:
        """The smallest budget that is worth starting with."""
        shortest = self.length_fits_itself
        return least_budget(self.policy, self.known_weights, self.demand, pool_is_explicit=self.pool_is_explicit, shortest=shortest)

    def with_smaller_batches(self) -> Iterator[Case]:
        """The same with the batch budgets that may be tried where the KV cache would miss one full sequence, the largest first."""
        devices = [each.device for each in self.rooms]
        for batch in smaller_batches(self.rows, devices, ask.batch_ask(self.command, self.traits), self.policy):
            yield replace(self, batch=batch, demand=self._demand_of(self.command, batch))

    def asking(self, values: Mapping[str, object]) -> Case:
        """The same as if the user had given these values too, by dest: for what would make it fit. None of them may change the weights."""
        given = {dest: Given(value, str(value), "argv") for dest, value in values.items()}
        command = replace(self.command, given={**self.command.given, **given})
        batch = decide_batch(self.rows, [each.device for each in self.rooms], ask.batch_ask(command, self.traits), self.policy)
        asked = _asked(command, self.rows) or self.asked
        return replace(self, command=command, asked=asked, batch=batch, demand=self._demand_of(command, batch))

    def _demand_of(self, command: Command, batch: BatchPlan) -> Demand:
        return _demand(self.facts, command, self.checkpoint, self.traits, self.rows, batch, self.demand.weights)


def reason_to_stay_out(facts: Facts, command: Command) -> Warn | None:
    """Why vLLM is started untouched whatever is free: it will reject the command itself, or this release has no gate."""
    if command.rejection is not None:
        return Warn("vllm_rejects", f"vLLM will reject this command line: {command.rejection}")
    rows = behaviours(parse_release(facts.vllm_version))
    if not rows:
        return Warn("release_observed", f"vLLM {facts.vllm_version} has no free-memory gate; nothing is changed")
    if _asked(command, rows) is None:
        value = command.given["gpu_memory_utilization"].text
        return Warn("value_invalid", f"--gpu-memory-utilization {value} is not in (0, 1], vLLM will reject it")
    return None


def gather_case(facts: Facts, command: Command, chosen: Chosen, checkpoint: Checkpoint | UnknownCheckpoint, policy: Policy) -> Case:
    """The case of a command that nothing speaks against judging."""
    release = parse_release(facts.vllm_version)
    rows = behaviours(release)
    asked = _asked(command, rows) or Asked(rows[-1].gpu_memory_utilization, rows[-1].gpu_memory_utilization, given=False)
    traits = _traits(command, checkpoint, release)
    batch_ask = ask.batch_ask(command, traits)
    batch = decide_batch(rows, chosen.devices, batch_ask, policy)
    work = ask.workload(command, facts, traits, max(own_choice(row, chosen.devices[0], batch_ask).max_num_seqs for row in rows))
    warnings = (*command.warnings, *chosen.warnings)
    if is_assumed(release):
        named = facts.vllm_version or "of unknown version"
        warnings = (*warnings, Warn("release_assumed", f"vLLM {named} is not known to this guard, it is taken to behave like {rows[-1].last}"))
    return Case(
        facts=facts,
        command=command,
        chosen=chosen,
        checkpoint=checkpoint,
        rows=rows,
        rooms=tuple(room(device, rows, work, policy, wsl=facts.host.wsl) for device in chosen.devices),
        asked=asked,
        traits=traits,
        weights=ask.weights_bounds(command, facts, checkpoint, traits),
        policy=policy,
        batch=batch,
        demand=_demand(facts, command, checkpoint, traits, rows, batch, None),
        assumed=is_assumed(release),
        warnings=warnings,
    )


def _demand(
    facts: Facts,
    command: Command,
    checkpoint: Checkpoint | UnknownCheckpoint,
    traits: ModelTraits | None,
    rows: tuple[Behaviour, ...],
    batch: BatchPlan,
    weighed: WeightBytes | Unknown | None,
) -> Demand:
    """What the model needs on each device with this batch; `weighed` are its weights where they are known already."""
    if isinstance(checkpoint, UnknownCheckpoint) or traits is None:
        unknown = Unknown(checkpoint.because if isinstance(checkpoint, UnknownCheckpoint) else "no config.json")
        return Demand(unknown, unknown, Band(0, 0, 0), unknown)
    from vllm_guard.plan.demand import gather_demand  # noqa: PLC0415 - 40 ms that only a model on this disk is worth

    return gather_demand(command, facts, checkpoint, traits, rows, batch, ask.effective_max_model_len(command, traits), weighed)


def _traits(command: Command, checkpoint: Checkpoint | UnknownCheckpoint, release: Release | None) -> ModelTraits | None:
    if isinstance(checkpoint, UnknownCheckpoint):
        return None
    traits = read_traits(checkpoint.config, release)
    if checkpoint.sentence_transformers:  # sentence_bert_config.json, which is not read, has the last word on the length (config/model.py)
        return replace(traits, generates=False, max_model_len=None)
    return replace(traits, max_model_len=ask.derived_length(command, checkpoint, traits, release))


def _asked(command: Command, rows: tuple[Behaviour, ...]) -> Asked | None:
    """The fraction asked for; None when the given value is one that vLLM rejects."""
    if "gpu_memory_utilization" in command.given:
        value = command.number("gpu_memory_utilization")
        return Asked(value, value, given=True) if value is not None and math.isfinite(value) and 0 < value <= 1 else None
    defaults = [row.gpu_memory_utilization for row in rows]
    return Asked(min(defaults), max(defaults), given=False)
