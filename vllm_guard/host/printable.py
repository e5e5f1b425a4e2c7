"""Foreign text for one line of a report."""

from __future__ import annotations

from typing import Final

_TEXT_LIMIT: Final = 120


def printable(text: str) -> str:
    """The text on one line without control characters, escapes or broken encoding, at most 120 characters."""
    return "".join(character if character.isprintable() else "?" for character in text[:_TEXT_LIMIT])
