"""Waiting until what was asked fits: for what, how long, and when it is in vain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from vllm_guard.devices import Device
from vllm_guard.facts import Facts, Gpu, NumaNode, UnreadableGpu
from vllm_guard.plan.decision import Decision, Launch, Refusal
from vllm_guard.plan.gap import fraction_of
from vllm_guard.settle import AUTO_SECONDS, STEADY_SAMPLES, free_bytes, is_steady, settle, should_settle
from vllm_guard.settle import World as Settling

_INTERVAL_SECONDS: Final = 1.0
_STEADYING_SECONDS: Final = 0.5
# An idle card is not wholly free: what an idle one can give is enough, what a wholly free one cannot will never be.
_IDLE_FRACTION: Final = 0.99


@dataclass(frozen=True, slots=True)
class World:
    """What a decision in time needs of the outside: a reading, the decision on it and the devices that matter in it, and time."""

    read: Callable[[], Facts]
    decide: Callable[[Facts], Decision]
    devices: Callable[[Facts], Sequence[Device]]
    clock: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait until what was asked fits, and until free memory is steady; 0 is not at all."""

    wait_seconds: float
    settle_seconds: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A moment of the wait. `goal` is the launch on idle devices, None where any launch would do."""

    decision: Decision
    goal: Launch | None
    fits: bool
    waited_seconds: float
    left_seconds: float


@dataclass(frozen=True, slots=True)
class Over:
    """The wait has ended, whatever came of it."""

    waited_seconds: float


@dataclass(frozen=True, slots=True)
class InVain:
    """There is no waiting: no memory that others free could mend this refusal."""


@dataclass(frozen=True, slots=True)
class Unsteady:
    """Free memory is changing; `text` says how."""

    text: str


Progress = Waiting | Over | InVain | Unsteady
Tell = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class _Reading:
    facts: Facts
    decision: Decision


@dataclass(frozen=True, slots=True)
class Outlook:
    """What time could bring; `goal` as in `Waiting`."""

    state: Literal["fits", "may_come", "in_vain"]
    goal: Launch | None = None


def decide_in_time(world: World, patience: Patience, tell: Tell) -> Decision:
    """The decision that counts: at once where what was asked fits and nobody is leaving; else once it fits and is steady, or is in vain, or the time is over.

    Takes at most `wait_seconds`, or `settle_seconds` where that is more, and one reading.
    """
    began = world.clock()
    first = _reading(world)
    settles = patience.settle_seconds > 0 and should_settle(first.decision)
    last, left_seconds = first, patience.settle_seconds
    if patience.wait_seconds > 0 and (settles or outlook(first.decision, first.facts, world.decide).state != "fits"):
        last, done = _wait(first, began, patience.wait_seconds, world, tell)
        if done:
            return last.decision
        left_seconds -= world.clock() - began
    if left_seconds <= 0 or not should_settle(last.decision):
        return last.decision
    settling = Settling(world.read, world.devices, world.clock, world.sleep, lambda text: tell(Unsteady(text)))
    return world.decide(settle(last.facts, left_seconds, settling))


def outlook(decision: Decision, facts: Facts, decide: Callable[[Facts], Decision]) -> Outlook:
    """Whether what was asked fits, may fit later, or cannot whatever others free.

    What was asked is the user's fraction, else vLLM's default or more; where an idle device could not give that much (a ceiling of the operator, a
    small card), what it could. A device that cannot be read may come back.
    """
    if isinstance(decision, Launch) and not _is_lowered(decision):
        return Outlook("fits")
    if isinstance(decision, Refusal) and isinstance(decide(_emptied(facts, 1.0)), Refusal):
        return Outlook("in_vain")
    idle = decide(_emptied(facts, _IDLE_FRACTION))
    goal = idle if isinstance(idle, Launch) else None
    most = (fraction_of(goal.assessment) if goal is not None else None) or 0.0
    if isinstance(decision, Launch) and (fraction_of(decision.assessment) or 0.0) >= most:
        return Outlook("fits", goal)
    return Outlook("may_come", goal)


def _wait(first: _Reading, began: float, at_most_seconds: float, world: World, tell: Tell) -> tuple[_Reading, bool]:
    """The reading that counts, and whether it needs no settling. Memory that leaves enough and never becomes steady is waited for as long as in settling."""
    now, samples, fitting_since = first, list[Sequence[int]](), None
    try:
        while True:
            coming, waited = outlook(now.decision, now.facts, world.decide), world.clock() - began
            if coming.state == "in_vain":
                tell(InVain())
                return now, True
            fits = coming.state == "fits"
            samples = [*samples[1 - STEADY_SAMPLES :], free_bytes(world.devices(now.facts))] if fits else []
            fitting_since = (waited if fitting_since is None else fitting_since) if fits else None
            done = is_steady(samples) or (fitting_since is not None and waited - fitting_since >= AUTO_SECONDS)
            if done or waited >= at_most_seconds:
                return now, done
            tell(Waiting(now.decision, coming.goal, fits, waited, at_most_seconds - waited))
            world.sleep(min(_STEADYING_SECONDS if fits else _INTERVAL_SECONDS, at_most_seconds - waited))
            now = _reading(world)
    finally:
        tell(Over(world.clock() - began))


def _reading(world: World) -> _Reading:
    facts = world.read()
    return _Reading(facts, world.decide(facts))


def _is_lowered(launch: Launch) -> bool:
    changes = [change for change in launch.assessment.changes if change.dest == "gpu_memory_utilization"]
    return any(float(change.after) < float(change.before or 1) for change in changes)


def _emptied(facts: Facts, fraction: float) -> Facts:
    """The same host when everybody else has left and this much of each device is free, or more where more is free now."""
    nodes = tuple(_emptied_node(node, fraction) for node in facts.host.nodes)
    available = max(facts.host.memory_available_bytes, int(facts.host.memory_total_bytes * fraction))
    host = replace(facts.host, memory_available_bytes=available, nodes=nodes, processes=())
    gpus = tuple(_emptied_card(card, fraction) for card in facts.gpus)
    return replace(facts, host=host, gpus=gpus, claims=())


def _emptied_node(node: NumaNode, fraction: float) -> NumaNode:
    return replace(node, available_bytes=max(node.available_bytes, int(node.total_bytes * fraction)))


def _emptied_card(card: Gpu | UnreadableGpu, fraction: float) -> Gpu | UnreadableGpu:
    if isinstance(card, UnreadableGpu):
        return card
    whole = card.nvml_total_bytes - (card.driver_reserved_bytes or 0)
    return replace(card, free_bytes=max(card.free_bytes, int(whole * fraction)), processes=())
