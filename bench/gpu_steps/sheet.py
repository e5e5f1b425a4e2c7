"""Figures as they are taken, and as people and programs read them. A name ends in its unit; a figure that was not taken keeps its reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_MIB: Final = 1 << 20


class NotTakenError(Exception):
    """A figure could not be taken; the text is the reason."""


@dataclass
class Sheet:
    """The figures of one step. `names` are all it can have, in order."""

    name: str
    title: str
    names: tuple[str, ...]
    taken: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None

    def put(self, name: str, value: Any) -> None:
        """A figure. An answer of the form `{"error": reason}` is one that was not taken."""
        if isinstance(value, dict) and "error" in value:
            self.unknown[name] = value["error"]
        else:
            self.taken[name] = value

    def take(self, name: str, read: Callable[[], Any]) -> None:
        """A figure of which nothing else depends: its failure is its own."""
        try:
            self.put(name, read())
        except NotTakenError as error:
            self.unknown[name] = str(error)

    def finish(self, error: str | None, seconds: float) -> None:
        """What was not reached is unknown, because of the error that ended the step."""
        self.error, self.seconds = error, round(seconds, 1)
        for name in self.names:
            if name not in self.taken and name not in self.unknown:
                self.unknown[name] = error or "not reached"

    def rows(self) -> Iterable[tuple[str, str]]:
        """Name and text of each figure; a list goes on in rows without a name."""
        for name in self.names:
            value = self.taken.get(name)
            if name in self.unknown:
                yield name, f"unknown: {self.unknown[name]}"
            elif isinstance(value, list) and value:
                yield from zip([name, *[""] * (len(value) - 1)], map(_item_text, value), strict=True)
            else:
                yield name, text_of(name, value)


def text_of(name: str, value: Any) -> str:
    """A figure for people: sizes in MiB with the exact bytes behind."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value / _MIB:.1f} MiB ({value})"
    return "none" if value == [] else str(value)


def _item_text(item: Any) -> str:
    """One entry of a list: a listed process, a descriptor, a judgement."""
    if not isinstance(item, Mapping):
        return str(item)
    parts = []
    for name, value in item.items():
        parts.append(f"{name.removesuffix('_bytes').replace('_', ' ')} {'N/A' if value is None else text_of(name, value)}")
    return ", ".join(parts)


def table(sheets: Iterable[Sheet]) -> str:
    """All steps, aligned."""
    kept = list(sheets)
    width = max((len(name) for sheet in kept for name in sheet.names), default=0)
    lines = []
    for sheet in kept:
        lines += [f"{sheet.name}: {sheet.title} ({sheet.seconds} s)", *(f"  {name:<{width}}  {text}" for name, text in sheet.rows()), ""]
    return "\n".join(lines)


def document(sheets: Iterable[Sheet], **about: str) -> str:
    """The same as JSON, with `about` on top."""
    steps = [
        {"name": sheet.name, "title": sheet.title, "seconds": sheet.seconds, "error": sheet.error, "figures": sheet.taken, "unknown": sheet.unknown}
        for sheet in sheets
    ]
    return json.dumps({"schema_version": 1, **about, "steps": steps}, indent=2) + "\n"
