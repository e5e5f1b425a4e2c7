"""How much of a promise is still to come: by what the process tree holds where that is seen, else by what free memory has dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from builders import cpu_facts, facts, gpu, process
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard.claims.reckon import Held, Here, claims_on, spots
from vllm_guard.claims.record import Owner, Promise, Record
from vllm_guard.facts import Claim, Gpu, GpuProcess, NumaNode
from vllm_guard.host.lineage import Kin
from vllm_guard.host.visible import all_devices
from vllm_guard.units import MIB

BOOT, OTHER_BOOT = "b" * 36, "0" * 36
HOST_PIDS, CONTAINER_PIDS = 4026531836, 4026532181
CARD = gpu().uuid
FREE_MIB = 80_000
# pid: parent. 100 is a guard that became vLLM, 101 its engine, 102 a worker; 200 another one; 900 we ourselves, started by 800.
FAMILY = {1: 0, 100: 1, 101: 100, 102: 101, 200: 1, 300: 1, 800: 1, 900: 800}
HERE = Here(Owner(900, 9000, HOST_PIDS, BOOT), 1000.0, initial=True)


def read(pid: int) -> Kin | None:
    """The processes of FAMILY, each started at ten times its pid."""
    return Kin(pid, FAMILY[pid], "python", (), pid * 10) if pid in FAMILY else None


def held(pid: int = 100, promised_mib: int = 40_000, *, free_mib: int = FREE_MIB, taken: float = 990.0, uuids: Sequence[str] = (CARD,), world: int = 1) -> Held:
    """A claim of this process."""
    owner = Owner(pid, pid * 10, HOST_PIDS, BOOT)
    return Held(Record(owner, taken, world, tuple(Promise(uuid, promised_mib * MIB, free_mib * MIB) for uuid in uuids)), "alice")


def of(claim: Held, **owner: object) -> Held:
    """The same with another owner."""
    return replace(claim, record=replace(claim.record, owner=replace(claim.record.owner, **owner)))  # type: ignore[arg-type]  # a field's own type


def card(free_mib: int = FREE_MIB, *used: GpuProcess) -> Gpu:
    """The card as it is read now."""
    return gpu(free_mib=free_mib, processes=used)


def found_on(cards: Sequence[Gpu], *claims: Held, here: Here = HERE) -> tuple[Claim, ...]:
    """The claims on the cards of a host."""
    return claims_on(spots(facts(*cards)), claims, here, read)


def outstanding_mib(card: Gpu, *claims: Held, here: Here = HERE) -> list[int]:
    """What is still to come of each claim that there is."""
    return [claim.outstanding_bytes // MIB for claim in found_on([card], *claims, here=here)]


UNSEEN = of(held(), pid_namespace=CONTAINER_PIDS)
CONTAINER = replace(HERE, initial=False)
CASES: Mapping[str, tuple[list[int], list[int]]] = {
    "nothing taken yet": (outstanding_mib(card(), held()), [40_000]),
    "half of it held by a worker": (outstanding_mib(card(60_000, process(102, 20_000)), held()), [20_000]),
    "held by two processes of the tree": (outstanding_mib(card(60_000, process(101, 5_000), process(102, 20_000)), held()), [15_000]),
    "nine tenths held": (outstanding_mib(card(44_000, process(101, 36_000)), held()), [0]),
    "a little less than nine tenths held": (outstanding_mib(card(44_001, process(101, 35_999)), held()), [4_001]),
    "more held than promised": (outstanding_mib(card(30_000, process(101, 50_000)), held()), [0]),
    "free memory dropped for somebody else": (outstanding_mib(card(40_000, process(200, 40_000)), held()), [40_000]),
    "ten minutes ago": (outstanding_mib(card(), held(taken=400.0)), [40_000]),
    "more than ten minutes ago": (outstanding_mib(card(), held(taken=399.0)), [0]),
    "in the future, on a clock that does not jump": (outstanding_mib(card(), held(taken=1001.0)), []),
    "before this boot": (outstanding_mib(card(), of(held(), boot_id=OTHER_BOOT)), []),
    "more than the card": (outstanding_mib(card(), held(promised_mib=10**9)), [81_559]),
    "by ourselves, before we became a guard again": (outstanding_mib(card(), held(900)), []),
    "by the launcher that started us": (outstanding_mib(card(), held(800)), []),
    "by somebody with our pid in a container": (outstanding_mib(card(), of(held(900), pid_namespace=CONTAINER_PIDS)), [40_000]),
    "its pid is another process now": (outstanding_mib(card(60_000, process(100, 20_000)), of(held(), started_ticks=1)), [20_000]),
    "its pid is another process now that holds all there was": (outstanding_mib(card(80_000, process(100, 9_000)), of(held(), started_ticks=1)), [40_000]),
    "its pid is gone, a forked child lives": (outstanding_mib(card(60_000), held(4000)), [20_000]),
    "in another container, nothing taken yet": (outstanding_mib(card(), UNSEEN), [40_000]),
    "in another container, free memory dropped": (outstanding_mib(card(55_000), UNSEEN), [15_000]),
    "in another container, free memory dropped by nine tenths": (outstanding_mib(card(44_000), UNSEEN), [0]),
    "in another container, free memory has grown": (outstanding_mib(card(80_500), UNSEEN), [40_000]),
    "seen from a container": (outstanding_mib(card(60_000), held(), here=CONTAINER), [20_000]),
    "on a driver that tells no amounts": (outstanding_mib(card(60_000, process(102, None)), held()), [20_000]),
    "on a card whose processes cannot be read": (outstanding_mib(replace(card(60_000), processes_unreadable="no"), held()), [20_000]),
    "on another card": (outstanding_mib(card(), held(uuids=["GPU-ffff"])), []),
}


@pytest.mark.parametrize(("found", "expected"), CASES.values(), ids=CASES)
def test_what_is_to_come_of_one_claim(found: list[int], expected: list[int]) -> None:
    """MiB; an empty list where the claim is none of our business."""
    assert expected == found


def test_two_unseen_claims_share_what_was_taken() -> None:
    """The first has taken all of its own before the second promised; what is taken since then is the second's."""
    old = of(held(promised_mib=40_000, free_mib=80_000, taken=900.0), pid_namespace=CONTAINER_PIDS)
    new = of(held(200, promised_mib=30_000, free_mib=40_000, taken=950.0), pid_namespace=CONTAINER_PIDS)

    assert [0, 30_000] == outstanding_mib(card(40_000), old, new)
    assert [0, 20_000] == outstanding_mib(card(30_000), new, old)
    assert [0, 0] == outstanding_mib(card(10_000), old, new)


def test_bytes_are_credited_once() -> None:
    """Two promised at the same free memory, one of them has taken its part: the other's is still to come, whoever of them can be seen."""
    first, second = held(100, promised_mib=40_000, taken=900.0), held(200, promised_mib=30_000, taken=950.0)
    unseen_first, unseen_second = of(first, pid_namespace=CONTAINER_PIDS), of(second, pid_namespace=CONTAINER_PIDS)
    taken_by_first, taken_by_second = card(40_000, process(101, 40_000)), card(50_000, process(200, 30_000))

    assert 30_000 == sum(outstanding_mib(taken_by_first, first, second))
    assert 30_000 == sum(outstanding_mib(taken_by_first, first, unseen_second))
    assert 40_000 == sum(outstanding_mib(taken_by_second, unseen_first, second))
    assert 30_000 == sum(outstanding_mib(card(40_000), unseen_first, unseen_second))


def test_of_several_cards_that_could_be_meant_one_is_taken() -> None:
    """Where CUDA's order is not known a claim names all; it ends on the others as soon as its vLLM is there on as many as it uses."""
    claim, uuids = held(uuids=["GPU-a", "GPU-b"]), ("GPU-a", "GPU-b")
    before = [gpu(index, uuid=uuid, free_mib=FREE_MIB) for index, uuid in enumerate(uuids)]
    after = [gpu(0, uuid="GPU-a", free_mib=79_000, processes=[process(101, 500)]), before[1]]

    assert [40_000, 40_000] == [each.outstanding_bytes // MIB for each in found_on(before, claim)]
    assert [39_500, 0] == [each.outstanding_bytes // MIB for each in found_on(after, claim)]


def on_nodes(claim: Held, *free_mib: int, used: Sequence[GpuProcess] = (), hidden: str | None = None) -> list[int]:
    """What is still to come of a claim on nodes of 100,000 MiB with this much free, MiB by MiB, while these processes hold host memory."""
    world = cpu_facts(total_mib=100_000, free_mib=0)
    nodes = tuple(NumaNode(node, 100_000 * MIB, free * MIB) for node, free in enumerate(free_mib))
    world = replace(world, host=replace(world.host, nodes=nodes, processes=tuple(used), processes_unreadable=hidden))
    return [each.outstanding_bytes // MIB for each in claims_on(spots(world), [claim], HERE, read)]


ON_NODE, ON_BOTH = held(uuids=["numa-node-0"]), held(uuids=["numa-node-0", "numa-node-1"])
NODES: Mapping[str, tuple[list[int], list[int]]] = {
    "nothing taken yet, whoever else does": (on_nodes(ON_NODE, 50_000), [40_000]),
    "half of it held by the tree": (on_nodes(ON_NODE, 60_000, used=[process(102, 20_000)]), [20_000]),
    "loaded, and somebody else has given memory back since": (on_nodes(ON_NODE, 80_000, used=[process(101, 39_000)]), [0]),
    "the processes of others are hidden": (on_nodes(ON_NODE, 60_000, hidden="hidepid"), [20_000]),
    "in a container": (on_nodes(of(ON_NODE, pid_namespace=CONTAINER_PIDS), 44_000), [0]),
    "another node": (on_nodes(held(uuids=["numa-node-1"]), 80_000), []),
    "two nodes, each half loaded": (on_nodes(ON_BOTH, 60_000, 60_000, used=[process(101, 20_000), process(102, 20_000)]), [20_000, 20_000]),
    "two nodes, loaded": (on_nodes(ON_BOTH, 40_000, 40_000, used=[process(101, 39_000), process(102, 39_000)]), [0, 0]),
}


@pytest.mark.parametrize(("found", "expected"), NODES.values(), ids=NODES)
def test_what_is_to_come_of_a_claim_on_host_memory(found: list[int], expected: list[int]) -> None:
    """By what its process tree holds, of all nodes as it was promised; what the nodes have less counts where that is not seen."""
    assert expected == found


def test_host_memory_under_a_limit_of_a_container_is_not_shared() -> None:
    """Others with the same folder have limits of their own."""
    world = cpu_facts(total_mib=8192, free_mib=6144)
    bound = replace(world, host=replace(world.host, cgroup_limit_bytes=8192 * MIB))
    wider = replace(world, host=replace(world.host, cgroup_limit_bytes=8193 * MIB))

    assert ([1, 0, 1], [None]) == ([len(spots(each)) for each in (world, bound, wider)], [device.claim_key for device in all_devices(bound)])


def test_a_claim_says_whose_it_is() -> None:
    """For people: user, pid, age, and that it has ended."""
    assert [Claim(CARD, 40_000 * MIB, 0, 100, "alice", 10.0)] == list(found_on([card()], held()))
    assert [Claim(CARD, 40_000 * MIB, 0, 100, "alice", 700.0, ended=True)] == list(found_on([card()], held(taken=300.0)))


HELD = st.builds(
    lambda pid, promised, free, taken, namespace: of(held(pid, promised, free_mib=free, taken=taken), pid_namespace=namespace),
    st.sampled_from([*FAMILY, 4000]),
    st.integers(0, 200_000),
    st.integers(0, 200_000),
    st.floats(0, 1100),
    st.sampled_from([HOST_PIDS, CONTAINER_PIDS]),
)
USED = st.lists(st.builds(process, st.sampled_from([*FAMILY]), st.none() | st.integers(0, 90_000)), max_size=4)


@given(st.lists(HELD, max_size=6), st.integers(0, 80_900), USED, st.booleans())
def test_no_promise_makes_anything_negative_or_larger_than_the_card(claims: list[Held], free_mib: int, used: list[GpuProcess], initial: bool) -> None:  # noqa: FBT001
    """Whatever was promised and whoever holds memory: never more than the card, and never more than is free on the device."""
    now = card(free_mib, *used)
    found = found_on([now], *claims, here=replace(HERE, initial=initial))

    assert all(0 <= each.outstanding_bytes <= each.promised_bytes <= now.nvml_total_bytes for each in found)
    assert all(each.used_bytes >= 0 for each in found)
    assert all(0 <= device.claimed_bytes <= device.free_bytes for device in all_devices(facts(now, claims=found)))


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=6), st.data())
def test_unseen_promises_and_use_cover_what_will_be_taken(promises: list[int], data: st.DataObject) -> None:
    """Each start promises and takes some of it at once or later, none more than it promised: what is counted is never less than what is to come, but for
    the tenth at which a claim ends; and all of it counts when nobody took anything.
    """
    free, claims, taken = FREE_MIB, [], []
    for at, promised in enumerate(promises):
        claims.append(of(held(4000 + at, promised, free_mib=free, taken=900.0 + at), pid_namespace=CONTAINER_PIDS))
        taken.append(0)
        for index in range(at + 1):
            step = data.draw(st.integers(0, promises[index] - taken[index]))
            taken[index] += step
            free -= step
    to_come, tenths = sum(promises) - sum(taken), sum(promised // 10 + 1 for promised in promises)

    assert to_come - tenths <= sum(outstanding_mib(card(max(free, 0)), *claims))
