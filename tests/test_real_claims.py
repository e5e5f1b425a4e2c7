"""Two guards with the real vLLM at the same moment, on a node where both do not fit. Needs root or user namespaces."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import psutil
import pytest
from other_worlds import wait_for
from real.fake_memory import write_meminfo
from real.server import Server
from real.world import World, assert_serves

from vllm_guard.units import MIB

pytestmark = pytest.mark.slow

TOTAL_MIB, FREE_MIB = 8192, 6144
ASKED = "0.45"  # 3686 MiB, and about 890 beside it
STARTS = "vllm-guard: launch: "
WAITS = re.compile("beside [34][0-9]{3} MiB claimed by other guards, --gpu-memory-utilization 0.45 needs about")


def test_of_two_at_the_same_moment_one_serves_and_the_other_starts_after_it(world: World) -> None:
    """Neither fails at vLLM's gate. The second is told of the promise at once, waits while the first loads and serves, and starts when that has ended."""
    worlds = [replace(world, log=world.log.with_name(name)) for name in ("one", "other")]
    options = ("--gpu-memory-utilization", ASKED, "--guard-wait=600", "--guard-log-format=console")
    with worlds[0].guard_serve(*options) as one, worlds[1].guard_serve(*options) as other, node_that_follows(world, (one, other)):
        first, second = (one, other) if first_of(one, other) is one else (other, one)
        first.wait_until_ready()
        assert_serves(first, world.model, ASKED)
        taken, waiting = world.guard_check(), second.text()
        assert first.terminate() == 0

        second.wait_until_ready()
        assert_serves(second, world.model, ASKED)
        assert second.terminate() == 0
        assert first.remaining() == second.remaining() == []

    assert WAITS.search(waiting)
    assert [0] == [device["claimed_bytes"] for device in taken["devices"]]  # the promise is used memory by then
    assert STARTS not in waiting
    assert STARTS in second.text()


def first_of(*servers: Server) -> Server:
    """Who became vLLM first."""
    (first,) = wait_for(lambda: [server for server in servers if STARTS in server.text()], 60)
    return first


@contextmanager
def node_that_follows(world: World, servers: Sequence[Server]) -> Iterator[None]:
    """The node's free memory is what it was less what these servers hold, as it would be if they had it to themselves."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(0.2):
            used = sum(pss_bytes(server.process.pid) for server in servers) // MIB
            write_meminfo(world.meminfo, total_mib=TOTAL_MIB, free_mib=max(0, FREE_MIB - used))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def pss_bytes(pid: int) -> int:
    """What a process and its children hold, shared pages counted once."""
    held = 0
    with suppress(psutil.Error):
        for process in (root := psutil.Process(pid), *root.children(recursive=True)):
            with suppress(psutil.Error):
                held += process.memory_full_info().pss
    return held
