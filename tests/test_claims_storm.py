"""Many guards at the same moment on few cards: what was promised and what is used never exceed a card, and nothing is left behind.

Time is scaled: what takes vLLM half a minute takes the stand-in a second or two.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from guard_process import Host
from holding_vllm import Stage, Started, staged
from standin_driver import Card, Listed

CUDA_MIB: Final = 81_559 - 479
# The least that a start takes before vLLM measures, alone and with NCCL: a given value that fits beside no more than that is kept, with a warning.
OVERHEAD_MIB: Final = {1: 400, 2: 800}
_TICK_SECONDS: Final = 0.03
_LOADING_SECONDS: Final = 1.5
_SERVING_SECONDS: Final = 1.5
_MOST_SECONDS: Final = 180


@dataclass(slots=True)
class Server:
    """A stand-in that a guard became, and how it will take its memory: up to four fifths while it loads, then its cache at once."""

    started: Started
    cards: tuple[int, ...]
    began: float
    loading_seconds: float
    ends: float
    final_fraction: float
    killed: bool

    @property
    def promised_mib(self) -> int:
        """What it may take of each card: what vLLM requests, rounded up, and its start."""
        return int(CUDA_MIB * self.started.utilization) + 1 + OVERHEAD_MIB[len(self.cards)]

    def used_mib(self, now: float) -> int:
        """What it holds of each card."""
        loaded = (now - self.began) / self.loading_seconds
        return int(self.promised_mib * (self.final_fraction if loaded >= 1 else 0.8 * loaded))

    def counted_mib(self, now: float) -> int:
        """Its promise until nine tenths of it are used, then its use."""
        used = self.used_mib(now)
        return used if used >= 0.9 * self.promised_mib else self.promised_mib


class Storm:
    """Guards on their way, servers that live, and the cards that they share."""

    def __init__(self, stage: Stage, seed: int, guards: int, cards: int) -> None:
        self.stage = stage
        self.cards = cards
        self.random = random.Random(seed)  # noqa: S311 - chance, not secrets
        self.servers: list[Server] = []
        self.most_mib = 0
        self.codes: list[int] = []
        self.unlocked = 0
        self.utilizations: list[float] = []
        self._show()
        self.coming = [self._begin() for _ in range(guards)]

    def _begin(self) -> tuple[subprocess.Popen[bytes], tuple[int, ...]]:
        cards = tuple(self.random.sample(range(self.cards), self.random.choice([1, 1, 1, 2])))
        words = ["-tp", str(len(cards)), "--guard-min-utilization=0.05"]
        if self.random.random() < 0.7:
            words += ["--gpu-memory-utilization", f"{self.random.uniform(0.1, 0.6):.2f}"]
        return self.stage.begin(*words, environ={"CUDA_VISIBLE_DEVICES": ",".join(map(str, cards))}), cards

    def play(self) -> None:
        """Until every guard has ended or become a server, and every server has ended."""
        deadline = time.monotonic() + _MOST_SECONDS
        while self.coming or self.servers:
            assert time.monotonic() < deadline, f"{len(self.coming)} guards did not end"
            self._end_servers()
            self._welcome()
            self._show()
            self._weigh()
            time.sleep(_TICK_SECONDS)

    def _end_servers(self) -> None:
        now = time.monotonic()
        for server in [server for server in self.servers if server.ends <= now]:
            server.started.process.send_signal(signal.SIGKILL if server.killed else signal.SIGTERM)
            server.started.process.wait(10)
            self.servers.remove(server)

    def _welcome(self) -> None:
        for process, cards in list(self.coming):
            started = self.stage.poll(process)
            if started is None:
                continue
            self.coming.remove((process, cards))
            self.unlocked += "holds this lock for too long" in self.stage.said(process)
            if isinstance(started, int):
                self.codes.append(started)
                continue
            now, draw = time.monotonic(), self.random
            loading = draw.uniform(0.01, _LOADING_SECONDS)
            ends = now + draw.uniform(0.2, 1) * (loading + _SERVING_SECONDS)  # some are killed while they load
            self.servers.append(Server(started, cards, now, loading, ends, draw.uniform(0.93, 1), killed=draw.random() < 0.5))
            self.utilizations.append(started.utilization)

    def _show(self) -> None:
        """The driver shows what the servers hold."""
        now = time.monotonic()
        listed = [tuple(Listed(each.started.pid, each.used_mib(now)) for each in self._on(card)) for card in range(self.cards)]
        self.stage.host.cards(*(Card(processes=processes) for processes in listed))

    def _on(self, card: int) -> Iterator[Server]:
        return (server for server in self.servers if card in server.cards)

    def _weigh(self) -> None:
        now = time.monotonic()
        for card in range(self.cards):
            counted = sum(server.counted_mib(now) for server in self._on(card))
            self.most_mib = max(self.most_mib, counted)
            assert counted <= CUDA_MIB, f"GPU {card}: {[(each.promised_mib, each.used_mib(now)) for each in self._on(card)]}"


def play(host: Host, seed: int, guards: int, cards: int) -> Storm:
    """A storm to its end, and the silence after it."""
    with staged(host) as stage:
        storm = Storm(stage, seed, guards, cards)
        storm.play()
        after = stage.claims()
        last = stage.start("-tp", str(cards))
        left = sorted(path.suffix for path in host.claims.iterdir())

    assert [] == after
    assert 0.92 == last.utilization
    assert [".claim", *[".lock"] * cards] == left
    assert set(storm.codes) <= {75}
    return storm


def test_a_small_storm(host: Host) -> None:
    """A dozen guards on two cards: some get what they asked for, some the rest."""
    storm = play(host, 0, 12, 2)

    assert 2 <= len(storm.utilizations) <= 12
    assert storm.most_mib > CUDA_MIB // 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_storm_of_60_guards_on_4_cards(host: Host, seed: int) -> None:
    """At no moment do promises and use exceed a card; every guard starts or is refused for now."""
    storm = play(host, seed, 60, 4)

    assert 60 == len(storm.utilizations) + len(storm.codes)
    assert storm.most_mib > CUDA_MIB // 2
    print(f"{len(storm.utilizations)} started, {len(storm.codes)} refused, {storm.unlocked} without a lock, at most {storm.most_mib} of {CUDA_MIB} MiB")  # noqa: T201 - with -s
