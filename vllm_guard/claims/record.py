"""A claim as bytes of a file, and back. What is read is anybody's data: bytes that are no record are None, never an error."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

LARGEST_BYTES: Final = 8192
_VERSION: Final = 1
_MOST_PROMISES: Final = 64
_LARGEST_NUMBER: Final = 1 << 62
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9/-]{0,95}")
_BOOT_ID: Final = re.compile(r"[0-9a-f-]{36}")


@dataclass(frozen=True, slots=True)
class Promise:
    """What vLLM will take of one card at most, and what was free there when that was promised."""

    uuid: str
    promised_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Owner:
    """A process as no other one ever was: its pid in its pid namespace (an inode), its start in clock ticks after boot, and the boot."""

    pid: int
    started_ticks: int
    pid_namespace: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class Record:
    """What one start promised. `taken_seconds` is of the clock that counts from boot and never jumps. `world` is how many of the cards it will use: fewer
    than are named where CUDA's order is not known.
    """

    owner: Owner
    taken_seconds: float
    world: int
    promises: tuple[Promise, ...]


def to_bytes(record: Record) -> bytes:
    """The file of this record."""
    return json.dumps({"version": _VERSION, **asdict(record)}, separators=(",", ":")).encode()


def from_bytes(data: bytes) -> Record | None:
    """The record of a file; None for anything else: too long, half written, of another version, with a value out of bounds or a card named twice."""
    if len(data) > LARGEST_BYTES:
        return None
    try:
        root = json.loads(data)
        if root["version"] != _VERSION:
            return None
        owner, promises = root["owner"], root["promises"]
        record = Record(
            Owner(_number(owner["pid"], 1), _number(owner["started_ticks"]), _number(owner["pid_namespace"]), _text(owner["boot_id"], _BOOT_ID)),
            _seconds(root["taken_seconds"]),
            _number(root["world"], 1),
            tuple(Promise(_text(each["uuid"], _UUID), _number(each["promised_bytes"]), _number(each["free_bytes"])) for each in promises),
        )
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    uuids = {promise.uuid for promise in record.promises}
    return record if 0 < len(uuids) == len(record.promises) <= _MOST_PROMISES else None


def is_uuid(text: str | None) -> bool:
    """Whether a card of this UUID can be claimed."""
    return text is not None and _UUID.fullmatch(text) is not None


def _number(value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _LARGEST_NUMBER:
        raise ValueError
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST_NUMBER:
        raise ValueError
    return float(value)


def _text(value: Any, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError
    return value
