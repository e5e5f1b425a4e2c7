"""The signatures of causes, as data: `signatures.yaml`, one row each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

_TABLE: Final = Path(__file__).with_name("signatures.yaml")
_NUMBER: Final = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_SIZE: Final = rf"{_NUMBER} ?(?:[KMGT]i?B|bytes)"


@dataclass(frozen=True, slots=True)
class Signature:
    """One wording of one cause; see the head of the table for what the fields mean. `anchored`: the pattern may ask for the beginning."""

    id: str
    cause: str
    pattern: re.Pattern[str]
    sure: bool
    info: bool
    weak: bool
    joined: bool
    anchored: bool
    releases: str | None
    fixes: tuple[str, ...]
    examples: tuple[str, ...]
    near: tuple[str, ...]


def read_signatures() -> tuple[Signature, ...]:
    """The rows of the table, in its order: of two that match a line the first one counts."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows: list[dict[str, Any]] = yaml.load(_TABLE.read_bytes(), Loader=loader)  # noqa: S506 - a safe loader, the one in C where there is one
    return tuple(_signature(row) for row in rows)


def _signature(row: Mapping[str, Any]) -> Signature:
    return Signature(
        id=row["id"],
        cause=row["cause"],
        pattern=re.compile(row["pattern"].replace("%S", _SIZE).replace("@", _NUMBER)),
        sure=row.get("sure", True),
        info=row.get("info", False),
        weak=row.get("weak", False),
        joined=row.get("joined", False),
        anchored="^" in row["pattern"].replace("[^", ""),
        releases=row.get("releases"),
        fixes=tuple(row.get("fixes", ())),
        examples=tuple(row["examples"]),
        near=tuple(row["near"]),
    )
