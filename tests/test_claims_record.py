"""Claims as bytes: what a guard writes is read back, and whatever else lies there is no record."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard.claims.record import LARGEST_BYTES, Owner, Promise, Record, from_bytes, to_bytes

BOOT = "0c8d6d2e-5a7b-4d57-9f3f-6f3f3a4b5c6d"
UUIDS = st.from_regex(r"(GPU|MIG)-[0-9a-f-]{4,36}", fullmatch=True)
SIZES = st.integers(0, 1 << 61)
RECORDS = st.builds(
    Record,
    st.builds(Owner, st.integers(1, 1 << 22), SIZES, SIZES, st.just(BOOT)),
    st.floats(0, 1e9),
    st.integers(1, 64),
    st.lists(st.builds(Promise, UUIDS, SIZES, SIZES), min_size=1, max_size=16, unique_by=lambda promise: promise.uuid).map(tuple),
)
RECORD = Record(Owner(4711, 123456, 4026531836, BOOT), 1000.5, 1, (Promise("GPU-0", 1 << 30, 2 << 30),))


@given(RECORDS)
def test_what_is_written_is_read_back(record: Record) -> None:
    """For every record, in a few kB."""
    assert record == from_bytes(to_bytes(record))
    assert len(to_bytes(record)) <= LARGEST_BYTES


@given(st.binary(max_size=200) | st.integers(0, 300).map(lambda length: to_bytes(RECORD)[:length]))
def test_any_bytes_are_a_record_or_none(data: bytes) -> None:
    """Half-written ones too; never an error."""
    assert (from_bytes(data) is None) == (data != to_bytes(RECORD))


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=5)


@given(st.sampled_from(["version", "owner", "taken_seconds", "world", "promises"]), JSON)
def test_any_value_in_a_record_is_checked(key: str, value: Any) -> None:
    """A record that is read has numbers within bounds and a card at least."""
    record = from_bytes(json.dumps({**json.loads(to_bytes(RECORD)), key: value}).encode())

    if record is not None:
        assert 0 <= record.taken_seconds < 1 << 62
        assert record.world >= 1
        assert record.promises == RECORD.promises


def changed(**values: Any) -> bytes:
    """The record with other values of its one promise."""
    document = json.loads(to_bytes(RECORD))
    document["promises"][0].update(values)
    return json.dumps(document).encode()


def twice() -> bytes:
    """The record with its card named twice."""
    document = json.loads(to_bytes(RECORD))
    document["promises"] *= 2
    return json.dumps(document).encode()


HOSTILE: Mapping[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "half of a record": lambda: to_bytes(RECORD)[:100],
    "more than a few kB": lambda: to_bytes(RECORD) + b" " * LARGEST_BYTES,
    "a well of brackets": lambda: b"[" * LARGEST_BYTES,
    "a number of 5000 digits": lambda: to_bytes(RECORD).replace(b"4711", b"9" * 5000),
    "a negative promise": lambda: changed(promised_bytes=-1),
    "a promise beyond all cards": lambda: changed(promised_bytes=1 << 62),
    "a promise that is no number": lambda: changed(promised_bytes=float("nan")),
    "a promise that is true": lambda: changed(promised_bytes=True),
    "a card that is a path": lambda: changed(uuid="../../etc/passwd"),
    "a card with an escape": lambda: changed(uuid="GPU-\x1b[31m"),
    "a card named twice": twice,
    "no card": lambda: to_bytes(Record(RECORD.owner, 1.0, 1, ())),
    "too many cards": lambda: to_bytes(Record(RECORD.owner, 1.0, 1, tuple(Promise(f"G{index}", 1, 1) for index in range(65)))),
    "no pid": lambda: to_bytes(RECORD).replace(b"4711", b"0"),
    "another version": lambda: to_bytes(RECORD).replace(b'"version":1', b'"version":2'),
    "a boot that is none": lambda: to_bytes(RECORD).replace(BOOT.encode(), b"boot"),
    "a time that is none": lambda: to_bytes(RECORD).replace(b"1000.5", b"Infinity"),
    "a list": lambda: b"[1]",
    "text of another encoding": lambda: b"\xff\xfe\x00",
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_record_is_none(make: Callable[[], bytes]) -> None:
    """Whoever wrote it."""
    assert from_bytes(make()) is None
