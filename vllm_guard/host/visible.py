"""Which devices of this host a vLLM command will use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from vllm_guard.devices import Chosen, Device, Elsewhere, Selection, Unusable, claimed_bytes
from vllm_guard.facts import Facts, Gpu, UnreadableGpu, Warn
from vllm_guard.host.caps import capped, parse_limits
from vllm_guard.host.cpu_nodes import choose_nodes
from vllm_guard.host.cuda_order import Slot, is_slice, places_of, slot_named, visible_slots
from vllm_guard.host.ranks import local_ranks
from vllm_guard.release import Release

if TYPE_CHECKING:
    from vllm_guard.command.parse import Command

# config/parallel.py: before, a world larger than the visible GPUs silently became a Ray cluster where Ray is installed.
_FIRST_THAT_REFUSES: Final = Release(0, 11, 2)
# platforms/cuda.py: up to here every entry of CUDA_VISIBLE_DEVICES goes through int().
_LAST_WITHOUT_UUIDS: Final = Release(0, 21)
_INDEX: Final = re.compile(r"[0-9]{1,9}")


def select_devices(facts: Facts, command: Command, release: Release | None) -> Selection:
    """The devices that the command's ranks take on this host, in rank order; or that they are not the guard's to know; or why there is no verdict.

    `release` None is taken for a release later than all known ones. Of the environment only `facts.environment` counts.
    """
    if facts.vllm_device not in {"cuda", "cpu"}:
        return Elsewhere(Warn("build_not_judged", f"the guard judges CUDA and CPU builds of vLLM, this one is {facts.vllm_device!r}: nothing was changed"))
    ranks = local_ranks(command)
    if isinstance(ranks, Elsewhere):
        return ranks
    if facts.vllm_device == "cpu":
        return choose_nodes(facts.host, ranks, release, facts.claims)
    if facts.nvml_fault is not None:
        return Unusable(facts.nvml_fault.reason, facts.nvml_fault.message, facts.nvml_fault.fix)
    if not facts.gpus:
        return Unusable("no_gpu", "NVML lists no GPU on this host", "give this host or container a GPU (docker run --gpus all)")
    visible = visible_slots(facts.gpus, facts.environment)
    slots = _restrict(visible, command.text("device_ids"), facts)
    if not isinstance(slots, tuple):
        return slots
    if ranks > len(slots):
        return _too_few(facts, slots, ranks, release)
    return _choose(facts, slots[:ranks], _tier(facts, visible), _uuid_warning(facts, release))


def all_devices(facts: Facts) -> tuple[Device, ...]:
    """Every device of the host whose memory could be read, in NVML's order and by its index; the nodes of host memory for the CPU build."""
    if facts.vllm_device == "cpu":
        chosen = choose_nodes(facts.host, max(1, len(facts.host.nodes)), None, facts.claims)
        return chosen.devices if isinstance(chosen, Chosen) else ()
    return tuple(_device(facts, gpu.nvml_index, gpu, (0, "")) for gpu in facts.gpus if isinstance(gpu, Gpu))


def _restrict(visible: tuple[Slot, ...], device_ids: str | None, facts: Facts) -> tuple[Slot, ...] | Elsewhere | Unusable:
    """The visible list under --device-ids (vLLM 0.24.0 engine/arg_utils.py _resolve_device_ids): integers are places in it, UUIDs name any card."""
    if device_ids is None:
        return visible
    entries = [entry.strip() for entry in device_ids.split(",")]
    numbers = [int(entry) for entry in entries if _INDEX.fullmatch(entry)]
    named = [entry for entry in entries if entry.startswith(("GPU-", "MIG-"))]
    rejected = Elsewhere(Warn("device_ids_rejected", f"--device-ids {device_ids[:80]!r} repeats, mixes or misspells devices: vLLM will answer that"))
    if len(entries) not in {len(numbers), len(named)}:
        return rejected
    slots = [visible[i] if i < len(visible) else () for i in numbers] + [slot_named(entry, facts.gpus) for entry in named]
    if () in slots:
        missing = entries[slots.index(())][:80]
        return Unusable("device_missing", f"--device-ids names {missing!r}, which is not there: {_visible_text(facts, visible)}", _widen(facts))
    return rejected if len(set(slots)) < len(slots) else tuple(slots)


def _too_few(facts: Facts, slots: tuple[Slot, ...], ranks: int, release: Release | None) -> Elsewhere | Unusable:
    message = f"this command takes {ranks} {'GPU' if ranks == 1 else 'GPUs'} of this host, {_visible_text(facts, slots)}"
    if release is not None and release < _FIRST_THAT_REFUSES:
        return Elsewhere(Warn("fewer_devices_than_ranks", f"{message}: vLLM {release} may switch to Ray, so nothing was changed"))
    if any(is_slice(slot[0]) for slot in slots):
        return Unusable("device_missing", f"{message}: CUDA shows a process one MIG slice at most", "start one instance per slice, each with one rank")
    cards = len(places_of(facts.gpus))
    if ranks > cards:
        sizes = "--tensor-parallel-size x --pipeline-parallel-size x --data-parallel-size"
        return Unusable("device_missing", message, f"lower {sizes} to {cards} or less, the GPUs of this host")
    return Unusable("device_missing", message, _widen(facts))


def _visible_text(facts: Facts, slots: tuple[Slot, ...]) -> str:
    cause = facts.environment.get("CUDA_VISIBLE_DEVICES")
    return f"{len(slots)} visible" + ("" if cause is None else f" (CUDA_VISIBLE_DEVICES={cause[:80]!r})")


def _widen(facts: Facts) -> str:
    cards = len(places_of(facts.gpus))
    named = "the one GPU" if cards == 1 else f"more of the {cards} GPUs"
    return f"name {named} of this host in CUDA_VISIBLE_DEVICES or --device-ids, or use fewer ranks"


def _choose(facts: Facts, slots: tuple[Slot, ...], tier: tuple[int, str], warnings: tuple[Warn, ...]) -> Chosen | Unusable:
    """The devices of these slots: all that could be meant where CUDA's order is unknown, unless the slots take all of them anyway."""
    ranks = len(slots)
    certain = tuple(slot[0] for slot in slots)
    candidates = tuple(dict.fromkeys(card for slot in slots for card in slot))
    interchangeable = len(candidates) > ranks
    cards = sorted(candidates, key=lambda card: card.nvml_index) if interchangeable else certain
    readable = [card for card in cards if isinstance(card, Gpu)]
    lost = [card for card in cards if isinstance(card, UnreadableGpu)]
    if lost and len(readable) < ranks:
        return Unusable("driver", lost[0].message, lost[0].fix)
    limits = parse_limits(facts.environment)
    devices = tuple(_device(facts, i, capped(gpu, range(ranks) if interchangeable else (i,), limits), tier) for i, gpu in enumerate(readable))
    order = _order_warning(readable, ranks) if interchangeable else ()
    unreadable = tuple(
        Warn("gpu_unreadable", f"{card.message}; this command does not need that GPU" if card not in candidates else card.message)
        for card in chain.from_iterable(places_of(facts.gpus))
        if isinstance(card, UnreadableGpu)
    )
    return Chosen(devices, ranks, interchangeable, (*warnings, *order, *unreadable, *limits.warnings))


def _device(facts: Facts, ordinal: int, gpu: Gpu, tier: tuple[int, str]) -> Device:
    return Device(
        kind="cuda",
        ordinal=ordinal,
        nvml_index=gpu.nvml_index,
        uuid=gpu.uuid,
        name=gpu.name,
        nvml_total_bytes=gpu.nvml_total_bytes,
        free_bytes=gpu.free_bytes,
        driver_reserved_bytes=gpu.driver_reserved_bytes,
        tier_total_bytes=tier[0],
        compute_capability=gpu.compute_capability,
        processes=gpu.processes,
        claimed_bytes=claimed_bytes(facts.claims, gpu.uuid, gpu.free_bytes),
        unified=gpu.unified,
        tier_name=tier[1],
        processes_unreadable=gpu.processes_unreadable,
        claim_key=gpu.uuid,
    )


def _tier(facts: Facts, visible: tuple[Slot, ...]) -> tuple[int, str]:
    """Total and name of the card that vLLM asks NVML about for its batch defaults: the first visible one whatever --device-ids says.

    vLLM takes the integers of CUDA_VISIBLE_DEVICES for NVML's (platforms/cuda.py), so here there is no doubt about the order.
    """
    card = visible[0][0] if visible else None
    if not isinstance(card, Gpu):
        return 0, ""
    total_bytes = card.mig_parent_total_bytes or capped(card, (0,), parse_limits(facts.environment)).nvml_total_bytes
    return total_bytes, card.name


def _order_warning(readable: Sequence[Gpu], ranks: int) -> tuple[Warn, ...]:
    if all(is_slice(gpu) for gpu in readable):
        return (Warn("mig_slice_unknown", "CUDA_VISIBLE_DEVICES names a MIG slice by its card: the worst slice counts; name it MIG-<uuid> instead"),)
    doubt = f"the GPUs differ and CUDA orders them by speed, NVML by bus: which {ranks} of {len(readable)} vLLM takes is unknown, the worst count"
    return (Warn("gpu_order_unknown", f"{doubt}; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or UUIDs in CUDA_VISIBLE_DEVICES"),)


def _uuid_warning(facts: Facts, release: Release | None) -> tuple[Warn, ...]:
    cause = facts.environment.get("CUDA_VISIBLE_DEVICES", "").strip()
    if release is None or release > _LAST_WITHOUT_UUIDS or not cause.startswith(("GPU-", "MIG-")):
        return ()
    return (Warn("uuids_not_understood", f"vLLM {release} reads CUDA_VISIBLE_DEVICES as integers and fails on {cause[:80]!r}: use indices"),)
