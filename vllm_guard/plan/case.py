"""Everything that one decision weighs, gathered from what was read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_guard.command.parse import Command
from vllm_guard.facts import Chosen, Facts, Warn, parse_release
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.config import ModelTraits, read_traits
from vllm_guard.plan import ask
from vllm_guard.plan.batch import BatchPlan, decide_batch
from vllm_guard.plan.budget import Room, room
from vllm_guard.plan.defaults import Behaviour, behaviours, is_assumed
from vllm_guard.plan.policy import Policy
from vllm_guard.plan.utilization import Asked, Weights


@dataclass(frozen=True, slots=True)
class Case:
    """One command on its devices, for one release. `rows` are the behaviours that the release may have."""

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
    def known_weights(self) -> Weights | None:
        """The weights where their files prove something."""
        return self.weights if isinstance(self.weights, Weights) else None

    @property
    def weights_floor_bytes(self) -> int:
        """The least that one device must hold, 0 where nothing is proved."""
        return self.weights.floor_bytes if isinstance(self.weights, Weights) else 0

    def batch(self, *, starved: bool) -> BatchPlan:
        """The batch budget; see `decide_batch`."""
        asked = ask.batch_ask(self.command, self.traits, world=ask.all_ranks(self.command))
        return decide_batch(self.rows, self.rooms[0].device, asked, self.policy, starved=starved)


def gather_case(facts: Facts, command: Command, chosen: Chosen, checkpoint: Checkpoint | UnknownCheckpoint, policy: Policy) -> Case | Warn:
    """The case, or the warning with which vLLM is started untouched: a release without gates, a fraction that vLLM rejects itself."""
    release = parse_release(facts.vllm_version)
    rows = behaviours(release)
    if not rows:
        return Warn("release_observed", f"vLLM {facts.vllm_version} has no free-memory gate; nothing is changed")
    asked = _asked(command, rows)
    if asked is None:
        value = command.given["gpu_memory_utilization"].text
        return Warn("value_invalid", f"--gpu-memory-utilization {value} is not in (0, 1], vLLM will reject it")
    traits = read_traits(checkpoint.config, release) if isinstance(checkpoint, Checkpoint) else None
    work = ask.workload(command, facts, traits)
    warnings = (*command.warnings, *chosen.warnings)
    if is_assumed(release):
        named = facts.vllm_version or "of unknown version"
        warnings = (*warnings, Warn("release_assumed", f"vLLM {named} is not known to this guard, it is taken to behave like {rows[-1].last}"))
    return Case(
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


def _asked(command: Command, rows: Sequence[Behaviour]) -> Asked | None:
    """The fraction asked for; None when the given value is one that vLLM rejects."""
    if "gpu_memory_utilization" in command.given:
        value = command.number("gpu_memory_utilization")
        return Asked(value, value, given=True) if value is not None and math.isfinite(value) and 0 < value <= 1 else None
    defaults = [row.gpu_memory_utilization for row in rows]
    return Asked(min(defaults), max(defaults), given=False)
