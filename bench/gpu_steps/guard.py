"""The guard's own view: its reading through the shipped `snapshot`, and its decisions on that reading."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from gpu_steps.machine import GUARD_RELEASE, Machine, guard_environment
from vllm_guard.command.parse import parse
from vllm_guard.devices import Selection
from vllm_guard.facts import Facts, Gpu
from vllm_guard.host.snapshot import parse_facts
from vllm_guard.host.visible import select_devices
from vllm_guard.model.checkpoint import UnknownCheckpoint
from vllm_guard.plan.decide import decide
from vllm_guard.plan.decision import Decision
from vllm_guard.plan.policy import Policy
from vllm_guard.release import parse_release

SNAPSHOT = (sys.executable, "-m", "vllm_guard", "snapshot", f"--guard-vllm-version={GUARD_RELEASE}")


def read_facts(machine: Machine, environ: Mapping[str, str] | None = None) -> Facts:
    """What the guard reads now, with this environment instead of the machine's. Raises NotTakenError."""
    chosen = environ or guard_environment(machine.environ, machine.uuid)
    return parse_facts(json.loads(machine.run(SNAPSHOT, chosen)), chosen)


def card_of(facts: Facts, uuid: str) -> Gpu:
    """The card under test in this reading; StopIteration cannot happen: it was chosen from one."""
    return next(gpu for gpu in facts.gpus if isinstance(gpu, Gpu) and gpu.uuid == uuid)


def select(facts: Facts) -> Selection:
    """The devices that a plain `vllm serve MODEL` would use."""
    release = parse_release(GUARD_RELEASE)
    return select_devices(facts, parse(("model",), release), release)


def decision_on(facts: Facts, *argv: str) -> Decision:
    """The guard's decision on `vllm serve MODEL ARGV`, about a model of which nothing is known."""
    release = parse_release(GUARD_RELEASE)
    command = parse(("model", *argv), release)
    return decide(facts, command, select_devices(facts, command, release), UnknownCheckpoint("no model: a measurement"), Policy())
