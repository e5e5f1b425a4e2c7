"""Waiting until what was asked fits: time is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from builders import UNKNOWN_MODEL, change, checkpoint, cpu_facts, facts, gpu, judge, launched, process, refused
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard.command.parse import parse
from vllm_guard.devices import Chosen, Device
from vllm_guard.facts import Claim, Facts, NvmlFault
from vllm_guard.host.visible import select_devices
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.plan.decision import Decision, Launch
from vllm_guard.plan.gap import fraction_of
from vllm_guard.plan.policy import Amount, Policy
from vllm_guard.render.waiting import missing_text
from vllm_guard.units import MIB
from vllm_guard.wait import InVain, Over, Patience, Progress, Unsteady, Waiting, World, decide_in_time, outlook

# From each of these seconds on the host is so.
Story = Sequence[tuple[float, Facts]]

POLL_SECONDS = 1.0
IDLE = facts()
HELD = facts(gpu(free_mib=30_000, processes=[process(4711, 50_000, command="python train.py")]))
FULL = facts(gpu(free_mib=300, processes=[process(4711, 80_000)]))
NO_DRIVER = replace(IDLE, gpus=(), nvml_fault=NvmlFault("driver", "cannot read GPU memory: not loaded", "modprobe nvidia"))
LOST = facts(gpu(), gpu(1))


@dataclass
class Play:
    """A host whose state follows a story; the clock moves when somebody sleeps."""

    story: Story
    argv: Sequence[str] = ()
    policy: Policy = field(default_factory=Policy)
    model: Checkpoint | UnknownCheckpoint = UNKNOWN_MODEL
    now: float = 0.0
    readings: int = 0
    told: list[Progress] = field(default_factory=list)

    def read(self) -> Facts:
        """The state at this moment."""
        self.readings += 1
        return next(state for since, state in reversed(self.story) if since <= self.now)

    def decide(self, world: Facts) -> Decision:
        """The decision on a reading."""
        return judge(world, *self.argv, policy=self.policy, model=self.model)

    def devices(self, world: Facts) -> tuple[Device, ...]:
        """The devices that matter."""
        selection = select_devices(world, parse(("m", *self.argv), None), None)
        return selection.devices if isinstance(selection, Chosen) else ()

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        assert seconds > 0
        self.now += seconds

    def ended(self, wait_seconds: float, settle_seconds: float = 15) -> Decision:
        """The decision that counts."""
        world = World(self.read, self.decide, self.devices, lambda: self.now, self.sleep)
        return decide_in_time(world, Patience(wait_seconds, settle_seconds), self.told.append)


def outcome(decision: Decision) -> float | str:
    """The fraction of a launch, the reason of anything else."""
    return fraction_of(decision.assessment) or 0.0 if isinstance(decision, Launch) else decision.reason


def card_of(free_mib: int) -> Facts:
    """One card with this much free."""
    return facts(gpu(free_mib=free_mib))


def small(free_mib: int) -> Facts:
    """A card of 4 GiB, which cannot give vLLM's default."""
    return facts(gpu(free_mib=free_mib, total_mib=4096, reserved_mib=60))


NOISE = tuple((second / 2, card_of(80_000 + 500 * (second % 2))) for second in range(200))
STORIES = {
    "an idle card waits for nothing": (Play([(0, IDLE)]), 0.92, 0.0),
    "steady in three samples after a release": (Play([(0, HELD), (5, IDLE)]), 0.92, 6.0),
    "a release between two polls": (Play([(0, HELD), (5.4, IDLE)]), 0.92, 7.0),
    "a slow release": (Play([(0, FULL), (2, HELD), (4, card_of(60_000)), (6, IDLE)]), 0.92, 7.0),
    "nobody leaves, so what fits is taken": (Play([(0, HELD)]), 0.3474, 30.0),
    "nothing fits at the end": (Play([(0, FULL)]), "gpu_busy", 30.0),
    "what fits is below the threshold": (Play([(0, HELD)], policy=Policy(min_utilization=0.5)), "below_min_utilization", 30.0),
    "the given value fits": (Play([(0, card_of(20_000)), (3, card_of(50_000))], ("--gpu-memory-utilization", "0.5")), 0.5, 4.0),
    "a given value that does not fit yet is not lowered": (Play([(0, card_of(30_000)), (20, IDLE)], ("--gpu-memory-utilization", "0.5")), 0.5, 21.0),
    "a ceiling is as much as was asked, and settled for": (Play([(0, card_of(60_000))], policy=Policy(max_utilization=0.4)), 0.4, 1.0),
    "a budget is waited for and no more": (Play([(0, card_of(9000)), (3, card_of(40_000))], policy=Policy(budget_bytes=20_000 * MIB)), 0.2452, 4.0),
    "a small card gives what an idle one can": (Play([(0, small(1000)), (3, small(4030))]), 0.7963, 4.0),
    "the one card that is full decides": (Play([(0, facts(gpu(0), gpu(1, free_mib=20_000))), (4, facts(gpu(0), gpu(1)))], ("-tp", "2")), 0.92, 5.0),
    "exclusive at last": (Play([(0, HELD), (3, IDLE)], policy=Policy(competitors="refuse")), 0.92, 4.0),
    "a threshold of free memory": (Play([(0, HELD), (3, IDLE)], policy=Policy(min_free=Amount(70_000 * MIB))), 0.92, 4.0),
    "weights above the empty card": (Play([(0, HELD)], model=checkpoint(400_000)), "model_too_large", 0.0),
    "a threshold above the empty card": (Play([(0, HELD)], policy=Policy(min_free=Amount(200_000 * MIB))), "below_min_free", 0.0),
    "a ceiling below the threshold": (Play([(0, HELD)], policy=Policy(max_utilization=0.3, min_utilization=0.5)), "below_min_utilization", 0.0),
    "a card that turns out too small": (Play([(0, NO_DRIVER), (3, HELD)], model=checkpoint(400_000)), "model_too_large", 3.0),
    "a driver that is loaded late": (Play([(0, NO_DRIVER), (3, IDLE)]), 0.92, 4.0),
    "a driver that never comes": (Play([(0, NO_DRIVER)]), "driver", 30.0),
    "a card that comes back": (Play([(0, IDLE), (3, LOST)], ("-tp", "2")), 0.92, 4.0),
    "a card that stays away": (Play([(0, IDLE)], ("-tp", "2")), "device_missing", 30.0),
    "enough that never becomes steady": (Play([(0, HELD), *((since + 2, state) for since, state in NOISE)]), 0.92, 17.0),
    "host memory of the CPU build": (
        Play([(0, cpu_facts(total_mib=65_536, free_mib=20_000)), (2, cpu_facts(total_mib=65_536, free_mib=60_000))], ("--gpu-memory-utilization", "0.5")),
        0.5,
        3.0,
    ),
}


@pytest.mark.parametrize(("play", "expected", "seconds"), STORIES.values(), ids=STORIES)
def test_a_wait_ends_when_what_was_asked_fits_or_cannot(play: Play, expected: float | str, seconds: float) -> None:
    """With the decision and after the time of the table, of 30 seconds; what was waited for is said, and that it is over."""
    play = replace(play, told=[])
    decision = play.ended(30)

    assert (expected, seconds) == (outcome(decision), play.now)
    assert [Over(seconds)] == [told for told in play.told if isinstance(told, Over)] or seconds == 0


def test_a_launch_that_fits_at_once_reads_once() -> None:
    """And says nothing."""
    play = Play([(0, IDLE)])
    play.ended(600)

    assert (1, 0.0, []) == (play.readings, play.now, play.told)


@pytest.mark.parametrize("wait_seconds", [0, 120])
def test_somebody_who_may_be_leaving_is_settled_for(wait_seconds: float) -> None:
    """What fits beside a vLLM is taken when it is steady, with a wait as without."""
    play = Play([(0, facts(gpu(processes=[process(1, vllm=True)])))])
    play.ended(wait_seconds)

    assert (3, 1.0) == (play.readings, play.now)


def test_a_vllm_that_grows_while_it_is_settled_for_is_waited_for() -> None:
    """Two starts at once: what fitted at first does no longer."""
    growing = [process(1, vllm=True)]
    play = Play([(0, facts(gpu(processes=growing))), (0.5, facts(gpu(free_mib=10_000, processes=growing))), (20, IDLE)])

    assert change(play.ended(60)) is None
    assert play.now == 21.5


def test_a_refusal_that_is_in_vain_says_so() -> None:
    """Once, so that nobody wonders about the wait."""
    play = Play([(0, FULL)], policy=Policy(min_free=Amount(200_000 * MIB)))
    refused(play.ended(600))

    assert (1, [InVain(), Over(0.0)]) == (play.readings, play.told)


def test_after_a_short_wait_a_teardown_is_still_settled_for() -> None:
    """A wait of a second is not less patient than none."""
    slow = Play([(float(second), card_of(1000 * second)) for second in range(12)])
    slow.ended(1)

    assert slow.now == 12.0


def test_a_wait_ends_on_time() -> None:
    """Between two polls too."""
    play = Play([(0, HELD)])
    play.ended(2.25, 0)

    assert (2.25, 4) == (play.now, play.readings)


def test_without_patience_the_first_reading_counts() -> None:
    """As before there was a wait."""
    play = Play([(0, FULL)])
    refused(play.ended(0, 0))

    assert (1, 0.0, []) == (play.readings, play.now, play.told)


def test_settling_alone_tells_as_before() -> None:
    """One line after two seconds."""
    play = Play([(second / 2, card_of(1000 + 500 * second)) for second in range(20)])
    play.ended(0)

    assert [Unsteady] == [type(told) for told in play.told]


def test_each_moment_tells_what_is_missing() -> None:
    """Once a second, and each half while it fits."""
    play = Play([(0, HELD), (3, IDLE)])
    play.ended(60)

    moments = [told for told in play.told if isinstance(told, Waiting)]
    assert [(0, 60, False), (1, 59, False), (2, 58, False), (3, 57, True), (3.5, 56.5, True)] == [
        (told.waited_seconds, told.left_seconds, told.fits) for told in moments
    ]


def needing(have_mib: int, utilization: float, need_mib: int, label: str = "GPU 0") -> str:
    """The sentence about a gap."""
    return f"{label} has {have_mib} MiB free, --gpu-memory-utilization {utilization} needs about {need_mib} MiB (short by {need_mib - have_mib} MiB)"


HALF = ("--gpu-memory-utilization", "0.5")
LEVEL = Policy(max_utilization=0.4)
TWO = facts(gpu(0, free_mib=60_000), gpu(1, free_mib=20_000, processes=[process(5, None)]))
UNSEEN = facts(gpu(free_mib=300, processes=[process(9, 80_000, name="unknown")]))
EVIL = facts(gpu(free_mib=300, processes=[process(9, 1, name="a\n\x1b[2J")]))
CLAIMED = facts(gpu(free_mib=60_000), claims=[Claim(gpu().uuid, 50_000 * MIB, 20_000 * MIB, 1)])
NODE = cpu_facts(total_mib=65_536, free_mib=20_000)
EXCLUSIVE = "GPU 0 is not exclusive as competitors=refuse wants it: pid 4711 (50000 MiB) on it"
MISSING = {
    "a default": (Play([(0, HELD)]), needing(30_000, 0.92, 76_192) + ", pid 4711 (python train.py) holds 50000 MiB"),
    "a given value, which is kept without a margin": (Play([(0, card_of(30_000))], HALF), needing(30_000, 0.5, 41_144)),
    "a ceiling": (Play([(0, card_of(9000))], policy=LEVEL), needing(9000, 0.4, 34_068)),
    "the worst of two cards": (Play([(0, TWO)], ("-tp", "2")), needing(20_000, 0.92, 76_832, "GPU 1") + ", pid 5 (python) holds an unknown amount"),
    "a refusal": (Play([(0, FULL)]), needing(300, 0.92, 76_192) + ", pid 4711 (python) holds 80000 MiB"),
    "a holder that is not seen": (Play([(0, UNSEEN)]), needing(300, 0.92, 76_192) + ", pid 9 holds 80000 MiB"),
    "what other guards were promised": (Play([(0, CLAIMED)]), needing(30_000, 0.92, 76_192).replace("free", "free beside 30000 MiB claimed by other guards")),
    "two ranks on one node": (Play([(0, NODE)], ("-tp", "2", *HALF)), needing(20_000, 0.5, 68_608, "NUMA node 0")),
    "a threshold": (Play([(0, HELD)], policy=Policy(min_free=Amount(70_000 * MIB))), "GPU 0 has 30000 MiB free, min_free asks for 70000 MiB"),
    "a card that is to be exclusive": (Play([(0, HELD)], policy=Policy(competitors="refuse")), EXCLUSIVE),
    "no driver": (Play([(0, NO_DRIVER)]), "cannot read GPU memory: not loaded"),
    "a hostile name": (Play([(0, EVIL)]), "pid 9 (a??[2J) holds 1 MiB"),
}


@pytest.mark.parametrize(("play", "expected"), MISSING.values(), ids=MISSING)
def test_what_is_missing_is_said_with_who_holds_it(play: Play, expected: str) -> None:
    """Free, needed and the gap on the card that misses most."""
    play = replace(play, told=[])
    play.ended(1, 0)

    first = play.told[0]
    assert isinstance(first, Waiting)
    text = missing_text(first.decision, first.goal, fits=first.fits)
    assert expected in text
    assert text.isprintable()


@pytest.mark.parametrize("before", [HELD, FULL], ids=["held", "full"])
@pytest.mark.parametrize("version", ["0.9.2", "0.18.1", "0.32.0", None])
def test_when_the_gap_is_closed_it_fits(before: Facts, version: str | None) -> None:
    """What is said to be needed is enough, and not much more than enough."""
    play = Play([(0, replace(before, vllm_version=version))])
    play.ended(1, 0)
    first = play.told[0]
    assert isinstance(first, Waiting)
    need_mib = int(missing_text(first.decision, first.goal, fits=False).partition("needs about ")[2].split()[0])

    def fits(free_mib: int) -> bool:
        world = replace(facts(gpu(free_mib=free_mib)), vllm_version=version)
        return outlook(play.decide(world), world, play.decide).state == "fits"

    assert (True, False) == (fits(need_mib + 16), fits(need_mib - 1024))


stories = st.lists(st.tuples(st.floats(0, 40), st.integers(0, 80_900) | st.none()), max_size=8)


@given(stories, st.floats(0, 50), st.floats(0, 20), st.none() | st.floats(0.01, 1))
def test_a_wait_keeps_its_word(story: list[tuple[float, int | None]], wait_seconds: float, settle_seconds: float, asked: float | None) -> None:
    """Never longer than it may, never a launch above what was asked, no reading more than a launch that fits at once needs."""
    states = [(since, NO_DRIVER if free_mib is None else card_of(free_mib)) for since, free_mib in sorted(story, key=lambda step: step[0])]
    argv = () if asked is None else ("--gpu-memory-utilization", f"{asked:.4f}")
    play = Play([(0, HELD), *states], argv)
    first = play.decide(play.read())
    decision = play.ended(wait_seconds, settle_seconds)

    assert play.now <= max(wait_seconds, settle_seconds) + POLL_SECONDS
    if isinstance(decision, Launch):
        assert (fraction_of(decision.assessment) or 0) <= (0.95 if asked is None else round(asked, 4))
    if isinstance(first, Launch) and not first.assessment.changes:
        assert play.readings == 2


@given(st.integers(0, 80_900), st.none() | st.floats(0.01, 0.99), st.floats(0, 0.9))
def test_what_is_in_vain_never_starts(free_mib: int, ceiling: float | None, threshold: float) -> None:
    """However much becomes free."""
    policy = Policy(max_utilization=ceiling, min_utilization=threshold)
    play = Play([(0, HELD)], policy=policy)

    if outlook(play.decide(HELD), HELD, play.decide).state == "in_vain":
        refused(play.decide(card_of(free_mib)))
    else:
        launched(play.decide(card_of(81_008)))
