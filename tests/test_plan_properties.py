"""What holds for every reading, release and number of cards."""

from __future__ import annotations

import math
from dataclasses import replace

from builders import UNKNOWN_MODEL, checkpoint, facts, judge
from hypothesis import assume, given
from hypothesis import strategies as st

from vllm_guard.facts import Claim, Facts, Gpu
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.plan.decision import Decision, DevicePlan, Launch, Refusal
from vllm_guard.plan.policy import Amount, Policy
from vllm_guard.render.devices import equation
from vllm_guard.units import MIB

VERSIONS = (
    "0.9.2",
    "0.10.2",
    "0.11.0",
    "0.11.2",
    "0.12.0",
    "0.15.1",
    "0.18.1",
    "0.19.0",
    "0.21.0",
    "0.24.0",
    "0.26.0",
    "0.28.0",
    "0.30.0",
    "0.33.0",
    "0.99.0",
    None,
)


@st.composite
def cards(draw: st.DrawFn, index: int = 0) -> Gpu:
    """Any card; equal names, so that CUDA's order is known."""
    total = draw(st.integers(256 * MIB, 1 << 40))
    reserved = draw(st.none() | st.integers(0, total // 30))
    free = draw(st.integers(0, total - (reserved or 0)))
    return Gpu(index, f"GPU-{index:04d}", "card", nvml_total_bytes=total, free_bytes=free, driver_reserved_bytes=reserved)


@st.composite
def hosts(draw: st.DrawFn) -> Facts:
    """Any host with up to 16 cards, some promised to others."""
    gpus = [draw(cards(index)) for index in range(draw(st.integers(1, 16)))]
    claims = [Claim(gpu.uuid, draw(st.integers(0, gpu.free_bytes)), 0, 1) for gpu in gpus if draw(st.booleans())]
    return facts(*gpus, version=draw(st.sampled_from(VERSIONS)), wsl=draw(st.booleans()), claims=claims)


policies = st.builds(
    Policy,
    margin=st.none() | st.builds(Amount, st.integers(0, 1 << 34)) | st.builds(Amount, fraction=st.floats(0, 0.5)),
    start_overhead_bytes=st.none() | st.integers(0, 1 << 31),
    budget_bytes=st.none() | st.integers(MIB, 1 << 38),
    max_utilization=st.none() | st.floats(0.01, 1),
    min_kv_cache_bytes=st.none() | st.integers(0, 1 << 34),
)
models = st.just(UNKNOWN_MODEL) | st.builds(checkpoint, st.integers(1, 200_000))
explicit = st.none() | st.floats(0.0001, 1.0).map(lambda value: f"{value:.6f}")


def _argv(world: Facts, utilization: str | None) -> list[str]:
    given = [] if utilization is None else ["--gpu-memory-utilization", utilization]
    return ["-tp", str(len(world.gpus)), *given]


def _fraction(decision: Decision) -> float | None:
    if not isinstance(decision, Launch):
        return None
    made = [change for change in decision.assessment.changes if change.dest == "gpu_memory_utilization"]
    return float(made[0].after) if made else None


def _requested(plan: DevicePlan, fraction: float) -> int:
    """As vLLM computes it, from the total that CUDA tells."""
    return math.ceil((plan.device.nvml_total_bytes - (plan.device.driver_reserved_bytes or 0)) * fraction)


def _open_bytes(plan: DevicePlan) -> int:
    return plan.device.free_bytes - plan.device.claimed_bytes


@given(hosts(), policies, models, explicit)
def test_a_chosen_fraction_keeps_the_budget_invariant(world: Facts, policy: Policy, model: Checkpoint | UnknownCheckpoint, utilization: str | None) -> None:
    """With the printed decimal, what vLLM requests fits beside claims and start overhead on every card."""
    decision = judge(world, *_argv(world, utilization), policy=policy, model=model)
    fraction = _fraction(decision)
    if fraction is None:
        return
    assert isinstance(decision, Launch)
    for plan in decision.assessment.devices:
        assert 0 < fraction <= 1
        assert _requested(plan, fraction) <= _open_bytes(plan) - plan.start_overhead_bytes


@given(hosts(), policies, models, explicit)
def test_the_guard_never_goes_above_what_was_asked(world: Facts, policy: Policy, model: Checkpoint | UnknownCheckpoint, utilization: str | None) -> None:
    """Neither above a user's value nor above vLLM's default."""
    fraction = _fraction(judge(world, *_argv(world, utilization), policy=policy, model=model))

    assert fraction is None or fraction <= (0.92 if utilization is None else float(utilization))


@given(hosts(), policies, models, explicit)
def test_a_value_that_passes_is_never_changed(world: Facts, policy: Policy, model: Checkpoint | UnknownCheckpoint, utilization: str | None) -> None:
    """A user's value changes only where gate 1 certainly fails on some card."""
    assume(utilization is not None)
    decision = judge(world, *_argv(world, utilization), policy=policy, model=model)
    if _fraction(decision) is None:
        return
    assert isinstance(decision, Launch)
    short = [
        math.ceil((plan.device.nvml_total_bytes - (plan.device.driver_reserved_bytes or 0)) * float(utilization or 0))
        > plan.device.free_bytes - plan.device.claimed_bytes - plan.start_overhead_bytes
        for plan in decision.assessment.devices
    ]

    assert any(short)


@given(hosts(), policies, models)
def test_memory_outside_the_budget_never_refuses(world: Facts, policy: Policy, model: Checkpoint | UnknownCheckpoint) -> None:
    """What --enforce-eager would start, starts."""
    if isinstance(judge(world, *_argv(world, None), "--enforce-eager", policy=policy, model=model), Launch):
        assert isinstance(judge(world, *_argv(world, None), policy=policy, model=model), Launch)


@given(hosts(), policies, models, explicit, st.integers(0, 1 << 36))
def test_more_free_memory_never_gives_a_smaller_fraction(
    world: Facts, policy: Policy, model: Checkpoint | UnknownCheckpoint, utilization: str | None, more: int
) -> None:
    """A launch stays a launch, and what it gets does not shrink."""
    gpus = [gpu for gpu in world.gpus if isinstance(gpu, Gpu)]
    richer_gpus = tuple(replace(gpu, free_bytes=min(gpu.free_bytes + more, gpu.nvml_total_bytes - (gpu.driver_reserved_bytes or 0))) for gpu in gpus)
    before = judge(world, *_argv(world, utilization), policy=policy, model=model)
    after = judge(replace(world, gpus=richer_gpus), *_argv(world, utilization), policy=policy, model=model)
    if not isinstance(before, Launch):
        return
    asked = float(utilization) if utilization is not None else 0.92

    assert isinstance(after, Launch)
    assert (_fraction(after) or asked) >= min(_fraction(before) or asked, asked)


@given(hosts(), policies, models, explicit, st.randoms(use_true_random=False))
def test_the_order_of_cards_does_not_matter(
    world: Facts, policy: Policy, model: Checkpoint | UnknownCheckpoint, utilization: str | None, random: st.DataObject
) -> None:
    """One fraction for all, whichever card is first."""
    mixed = list(world.gpus)
    random.shuffle(mixed)  # type: ignore[attr-defined]  # hypothesis' Random has the standard methods
    renumbered = tuple(replace(gpu, nvml_index=index) for index, gpu in enumerate(mixed))
    one = judge(world, *_argv(world, utilization), policy=policy, model=model)
    other = judge(replace(world, gpus=renumbered), *_argv(world, utilization), policy=policy, model=model)

    assert (type(one), _fraction(one)) == (type(other), _fraction(other))


@given(st.integers(1, 16), st.sampled_from(VERSIONS), st.integers(8 << 30, 1 << 40), models)
def test_an_idle_card_on_which_the_default_passes_changes_nothing(count: int, version: str | None, total: int, model: Checkpoint | UnknownCheckpoint) -> None:
    """An idle card starts exactly as plain vLLM would."""
    gpus = [Gpu(i, f"GPU-{i:04d}", "card", nvml_total_bytes=total, free_bytes=total - total // 100, driver_reserved_bytes=total // 100) for i in range(count)]
    overhead = (1600 if count > 1 else 800) * MIB
    assume(math.ceil(gpus[0].free_bytes * 0.92) <= gpus[0].free_bytes - overhead)
    decision = judge(facts(*gpus, version=version), "-tp", str(count), model=model)
    if isinstance(decision, Refusal):
        assert decision.reason == "model_too_large"
    else:
        assert _fraction(decision) is None


@given(hosts())
def test_the_evidence_sums_to_the_total(world: Facts) -> None:
    """`total = free + driver + processes + unaccounted`, in the MiB that are printed."""
    decision = judge(world, *_argv(world, None))
    if not isinstance(decision, Launch | Refusal):
        return
    for plan in decision.assessment.devices:
        numbers = [int(word) for word in equation(plan).partition("total ")[2].split() if word.lstrip("-").isdigit()]

        assert numbers[0] == sum(numbers[1:])
