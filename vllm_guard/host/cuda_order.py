"""Which cards a CUDA process sees, and in which order: CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and MIG.

Grammar: CUDA programming guide (environment variables) and torch/cuda/__init__.py `_parse_visible_devices`. NVIDIA_VISIBLE_DEVICES is the container
runtime's: it was acted on before NVML could list anything, so it says nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from vllm_guard.facts import Gpu, UnreadableGpu

Card = Gpu | UnreadableGpu
# One entry of CUDA's device list: the card that NVML's order puts there, then every other card that CUDA could have put there instead.
Slot = tuple[Card, ...]

_ORDINAL: Final = re.compile(r"([+-]?)([0-9]+)")


def is_slice(card: Card) -> bool:
    """Whether this is a MIG slice and not a whole card."""
    return (isinstance(card, Gpu) and card.mig_parent_uuid is not None) or (card.uuid or "").startswith("MIG-")


def places_of(gpus: Sequence[Card]) -> tuple[tuple[Card, ...], ...]:
    """The whole cards in NVML's order; one in MIG mode is replaced by its slices, since CUDA never shows it whole."""
    places: dict[int, list[Card]] = {}
    for gpu in gpus:
        places.setdefault(gpu.nvml_index, []).append(gpu)
    return tuple(tuple(filter(is_slice, cards)) or tuple(cards) for _, cards in sorted(places.items()))


def visible_slots(gpus: Sequence[Card], environment: Mapping[str, str]) -> tuple[Slot, ...]:
    """CUDA's device list, logical device first to last; unreadable cards keep their places in it.

    Integers count whole cards; one in MIG mode stands for its first slice. At most one slice is in the list, because CUDA shows a process no more
    than one. UUIDs and integers do not mix; the first entry that fits no card ends the list; a repeated card empties it.
    """
    places = places_of(gpus)
    text = environment.get("CUDA_VISIBLE_DEVICES")
    by_index = _slots_by_index(places, environment)
    if text is None:
        slots: Sequence[Slot] = sorted(by_index, key=lambda slot: not is_slice(slot[0]))
    else:
        entries = [entry.strip() for entry in text.split(",")]
        if entries[0].startswith("MIG-"):
            slots = [] if len(set(entries)) < len(entries) else [slot for slot in [_slice_named(entries[0], places)] if slot]
        elif entries[0].startswith("GPU-"):
            slots = _until_unknown([_card_named(entry, places) if entry.startswith("GPU-") else () for entry in entries])
        else:
            ordinals = [_parse_ordinal(entry) for entry in entries]
            slots = _until_unknown([() if i is None or i >= len(by_index) else by_index[i] for i in ordinals])
    slices = [slot for slot in slots if is_slice(slot[0])]
    return tuple(slot for slot in slots if slot not in slices[1:])


def slot_named(prefix: str, gpus: Sequence[Card]) -> Slot:
    """The card whose UUID is this or, alone among all, starts with it; for a card in MIG mode its first slice. `MIG-` names a slice. Else empty."""
    return _card_named(prefix, places_of(gpus)) if prefix.startswith("GPU-") else _slice_named(prefix, places_of(gpus))


def _slots_by_index(places: Sequence[Sequence[Card]], environment: Mapping[str, str]) -> list[Slot]:
    """What each integer stands for. CUDA's default order is FASTEST_FIRST, NVML's is PCI: with different cards only PCI_BUS_ID makes them one.

    A card whose name could not be read is taken for one like the others.
    """
    cards = [place[0] for place in places]
    whole = [card for card in cards if not is_slice(card)]
    names = {card.name for card in whole if card.name is not None}
    if len(names) <= 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return [(card,) for card in cards]
    return [(card,) if is_slice(card) else (card, *(other for other in whole if other is not card)) for card in cards]


def _parse_ordinal(entry: str) -> int | None:
    """The number that strtoul finds at the start of an entry (`1gpu` is 1, `+1` is 1); None where it is negative, missing or absurdly long."""
    match = _ORDINAL.match(entry)
    if match is None:
        return None
    digits = match[2].lstrip("0")[:10] or "0"
    return None if match[1] == "-" and digits != "0" else int(digits)


def _card_named(prefix: str, places: Sequence[Sequence[Card]]) -> Slot:
    named = [cards[0] for cards in places if (_card_uuid(cards[0]) or "").startswith(prefix)]
    return tuple(named) if len(named) == 1 else ()


def _card_uuid(card: Card) -> str | None:
    return card.mig_parent_uuid if isinstance(card, Gpu) and card.mig_parent_uuid else card.uuid


def _slice_named(prefix: str, places: Sequence[Sequence[Card]]) -> Slot:
    """The slice of this UUID. Before driver 470 slices were called MIG-GPU-<card>/<instance>/<compute instance>, which CUDA still takes.

    NVML no longer says which slice has those numbers, so any slice of that card may be meant.
    """
    slices = [card for card in chain.from_iterable(places) if is_slice(card) and card.uuid]
    named = [card for card in slices if card.uuid == prefix] or [card for card in slices if (card.uuid or "").startswith(prefix)]
    if len(named) == 1:
        return tuple(named)
    parent, slash, _ = prefix.removeprefix("MIG-").partition("/")
    return tuple(card for card in slices if slash and _card_uuid(card) == parent)


def _until_unknown(slots: Sequence[Slot]) -> Sequence[Slot]:
    """The entries before the first one that fits no card; none at all when a card is repeated among them."""
    known: list[Slot] = []
    for slot in slots:
        if not slot:
            break
        if any(slot[0] is other[0] for other in known):
            return ()
        known.append(slot)
    return known
