"""How much of each promise is still to come. Pure: what was read goes in, claims come out, rounded against ourselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vllm_guard.claims.record import Owner, Record
from vllm_guard.facts import Claim, Facts, Gpu, GpuProcess
from vllm_guard.host.cpu_nodes import claim_key, nodes_with_memory
from vllm_guard.host.lineage import ReadKin

COUNTS_SECONDS: Final = 600.0
_TAKEN_PERCENT: Final = 90
_GENERATIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Spot:
    """What can be promised: a card, or a NUMA node of the CPU build. `processes` None: who holds how much of it is not told. `partial`: what a process
    holds is told of all nodes together.
    """

    uuid: str
    total_bytes: int
    free_bytes: int
    processes: tuple[GpuProcess, ...] | None
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """A record whose process, or a forked child of it, lives; `user` owns the file."""

    record: Record
    user: str


@dataclass(frozen=True, slots=True)
class Here:
    """Who reads, and when, on the clock of `Record.taken_seconds`. `initial`: all processes of the host are seen, with the pids that NVML tells."""

    owner: Owner
    seconds: float
    initial: bool


@dataclass(frozen=True, slots=True)
class _Part:
    """One promise on one spot. `seen_bytes` is what its process tree holds there, None where that cannot be seen."""

    held: Held
    promised_bytes: int
    free_before_bytes: int
    seen_bytes: int | None
    elsewhere: bool


def spots(facts: Facts) -> tuple[Spot, ...]:
    """What guards promise on this host: the cards that could be read; for the CPU build the nodes, but for those of a container with a limit of its own."""
    host = facts.host
    if facts.vllm_device == "cpu":
        named = ((claim_key(host, node), node) for node in nodes_with_memory(host))
        listed = host.processes if host.processes_unreadable is None else None
        return tuple(Spot(key, node.total_bytes, node.available_bytes, listed, partial=True) for key, node in named if key is not None)
    return tuple(
        Spot(gpu.uuid, gpu.nvml_total_bytes, gpu.free_bytes, gpu.processes if gpu.processes_unreadable is None else None)
        for gpu in facts.gpus
        if isinstance(gpu, Gpu)
    )


def claims_on(promisable: Iterable[Spot], held: Sequence[Held], here: Here, read: ReadKin) -> tuple[Claim, ...]:
    """The claims of others on these spots. Our own do not count, nor those of our parents: a restart by exec, a launcher that starts a guarded vLLM.

    A claim has ended when 90 % of it is used, or after 10 minutes.
    """
    by_uuid = {spot.uuid: spot for spot in promisable}
    ours = set(_line(here.owner.pid, here.owner, read)) | {here.owner}
    valid = [each for each in held if each.record.owner.boot_id == here.owner.boot_id and each.record.taken_seconds <= here.seconds]
    others = sorted((each for each in valid if each.record.owner not in ours), key=lambda each: each.record.taken_seconds)
    trees = [_seen(each.record, by_uuid, here, read) for each in others]
    return tuple(claim for spot in by_uuid.values() for claim in _on_spot(spot, list(_parts(spot, others, trees)), here))


def _seen(record: Record, by_uuid: Mapping[str, Spot], here: Here, read: ReadKin) -> Mapping[str, int]:
    """What the process tree of a record holds of each spot, by UUID; without a spot where that cannot be told. What is told of all nodes together is taken
    to lie as it was promised.
    """
    if not here.initial or next(_line(record.owner.pid, here.owner, read), None) != record.owner:
        return {}
    promised = {promise.uuid: promise.promised_bytes for promise in record.promises}
    whole = max(1, sum(promised.values()))
    told = ((spot, _used_bytes(spot, record.owner, here, read)) for spot in by_uuid.values())
    return {spot.uuid: used * promised.get(spot.uuid, 0) // whole if spot.partial else used for spot, used in told if used is not None}


def _used_bytes(spot: Spot, owner: Owner, here: Here, read: ReadKin) -> int | None:
    if spot.processes is None:
        return None
    amounts = [process.used_bytes for process in spot.processes if owner in _line(process.pid, here.owner, read)]
    return None if None in amounts else sum(amount or 0 for amount in amounts)


def _line(pid: int, like: Owner, read: ReadKin) -> Iterator[Owner]:
    """The process and its parents that can be seen, nearest first; of the same boot and pid namespace as `like`."""
    for _ in range(_GENERATIONS):
        kin = read(pid)
        if kin is None:
            return
        yield Owner(kin.pid, kin.started_ticks, like.pid_namespace, like.boot_id)
        pid = kin.parent


def _parts(spot: Spot, held: Sequence[Held], trees: Sequence[Mapping[str, int]]) -> Iterator[_Part]:
    """The promises on this spot, the oldest first, none larger than the spot."""
    for each, seen in zip(held, trees, strict=True):
        used_spots = [uuid for uuid, used in seen.items() if used and any(promise.uuid == uuid for promise in each.record.promises)]
        for promise in each.record.promises:
            if promise.uuid == spot.uuid:
                elsewhere = spot.uuid not in used_spots and len(used_spots) >= each.record.world
                yield _Part(each, min(promise.promised_bytes, spot.total_bytes), promise.free_bytes, seen.get(spot.uuid), elsewhere)


def _on_spot(spot: Spot, parts: Sequence[_Part], here: Here) -> Iterator[Claim]:
    """A tree that cannot be seen is credited with what free memory has dropped since its promise, and nobody with the same bytes twice.

    All that was taken after a promise, by it and by younger ones, is at most the drop since then: the oldest is credited first, within the drop since it
    and since every older one, less what the trees that can be seen hold.
    """
    room = spot.total_bytes
    for at, part in enumerate(parts):
        known = sum(younger.seen_bytes or 0 for younger in parts[at:])
        room = min(room, max(0, part.free_before_bytes - spot.free_bytes - known))
        used = min(part.promised_bytes, room) if part.seen_bytes is None else part.seen_bytes
        room -= used if part.seen_bytes is None else 0
        record = part.held.record
        age = here.seconds - record.taken_seconds
        ended = part.elsewhere or age > COUNTS_SECONDS or used * 100 >= part.promised_bytes * _TAKEN_PERCENT
        yield Claim(spot.uuid, part.promised_bytes, used, record.owner.pid, part.held.user, round(age, 1), ended)
