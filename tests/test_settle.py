"""Settling: time is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from builders import checkpoint, facts, gpu, judge, process

from vllm_guard.command.parse import parse
from vllm_guard.devices import Chosen, Device
from vllm_guard.facts import Facts
from vllm_guard.host.visible import select_devices
from vllm_guard.plan.decision import Decision
from vllm_guard.settle import World, settle, should_settle

IDLE = facts()


@dataclass
class Host:
    """A card whose free memory follows a list, one entry a reading; the clock moves when somebody sleeps."""

    free_mib: Sequence[int]
    now: float = 0.0
    readings: int = 0
    said: list[str] = field(default_factory=list)

    def read(self) -> Facts:
        """The next reading."""
        self.readings += 1
        return facts(gpu(free_mib=self.free_mib[min(self.readings, len(self.free_mib) - 1)]))

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    def settled_mib(self, at_most_seconds: float = 15) -> int:
        """Free memory of the reading that counts."""
        world = World(self.read, devices, lambda: self.now, self.sleep, self.said.append)
        return devices(settle(facts(gpu(free_mib=self.free_mib[0])), at_most_seconds, world))[0].free_bytes >> 20


def devices(world: Facts) -> tuple[Device, ...]:
    """The devices of a command of one rank."""
    selection = select_devices(world, parse(("m",), None), None)
    assert isinstance(selection, Chosen)
    return selection.devices


@pytest.mark.parametrize(
    ("free_mib", "expected_mib", "seconds"),
    [
        pytest.param([1000], 1000, 1.0, id="steady memory takes three samples"),
        pytest.param([1000, 2000, 3000, 4000], 4000, 2.5, id="a teardown is waited for"),
        pytest.param([1000, 1050, 1010], 1010, 1.0, id="64 MiB of noise is steady"),
        pytest.param(range(0, 100_000, 1000), 30_000, 15.0, id="after 15 s the last reading counts"),
    ],
)
def test_the_first_steady_reading_counts(free_mib: Sequence[int], expected_mib: int, seconds: float) -> None:
    """Three readings in a row within 64 MiB, half a second apart."""
    host = Host(free_mib)

    assert (expected_mib, seconds) == (host.settled_mib(), host.now)


def test_a_wait_of_more_than_two_seconds_says_so_once() -> None:
    """A progress line on anything that takes longer."""
    host = Host(range(0, 100_000, 1000))
    host.settled_mib()

    assert host.said == ["free memory is changing (4000 MiB free now), waiting up to 15 s until it is steady"]


def test_memory_that_an_ended_process_still_holds_is_waited_for() -> None:
    """A plateau is not the end while the driver still lists somebody who is gone."""
    full, freed = gpu(free_mib=100, processes=[process(1, exiting=True)]), gpu(free_mib=80_000)
    now = [0.0]
    world = World(
        lambda: facts(full if now[0] < 5 else freed),
        devices,
        lambda: now[0],
        lambda seconds: now.__setitem__(0, now[0] + seconds),
        lambda _: None,
    )

    assert settle(facts(full), 15, world).gpus == (freed,)
    assert now == [6.0]


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        pytest.param(judge(IDLE), False, id="an idle card"),
        pytest.param(judge(facts(gpu(free_mib=70_000, processes=[process(1)]))), False, id="a little less than asked"),
        pytest.param(judge(facts(gpu(free_mib=30_000, processes=[process(1)]))), True, id="under 80 % of what was asked"),
        pytest.param(judge(facts(gpu(processes=[process(1, vllm=True)]))), True, id="a vLLM on the card"),
        pytest.param(judge(facts(gpu(processes=[process(1, exiting=True)]))), True, id="a process that is ending"),
        pytest.param(judge(facts(gpu(free_mib=10))), True, id="a refusal on a used card"),
        pytest.param(judge(facts(), model=checkpoint(400_000)), False, id="a model above the card"),
        pytest.param(judge(facts(), "-tp", "8"), False, id="no verdict"),
    ],
)
def test_settling_is_for_teardowns(decision: Decision, *, expected: bool) -> None:
    """A launch that fits at once waits for nothing."""
    assert expected == should_settle(decision)
