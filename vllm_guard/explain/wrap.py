"""Lines that were one before a terminal or a chat tool broke it at its width. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from vllm_guard.explain.clean import Piece
from vllm_guard.explain.scan import WRAPPED_BYTES

LONGEST_TEXT: Final = 4000
_MOST_TEXTS: Final = 8
# What begins a line of its own, and goes on with none before it.
_ANEW: Final = re.compile(
    r"[A-Z][\w.]*(?:Error|Exception|Interrupt)\b|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|Traceback|Value error,|Input should|File \"|\[[\w-]+\]|[{|]"
    r"|\d{4}-|\$ "
)


@dataclass(frozen=True, slots=True)
class Lines:
    """Adjacent lines that may be one: the numbers of the first and the last, whose they are, what they say joined, and whether no more may follow."""

    first: int
    last: int
    process: str
    texts: tuple[str, ...]
    ended: bool

    @property
    def joined(self) -> tuple[str, ...]:
        """What they say together, broken between words or within them; nothing where it is one line."""
        return self.texts if len(self.texts) > 1 else ()


def lines_with(before: Lines | None, number: int, piece: Piece) -> Lines:
    """A line behind the ones before it where it may go on with them, without a prefix of its own; else alone."""
    words = piece.words[:LONGEST_TEXT]
    last = len(piece.text) not in WRAPPED_BYTES or piece.informs
    if before is None or before.ended or number > before.last + 1 or piece.process or piece.informs or piece.words != piece.text or _ANEW.match(words):
        return Lines(number, number, piece.process, (words,), ended=last)
    texts = tuple(text for each in before.texts for text in (f"{each} {words}", each + words))
    return Lines(before.first, number, before.process, texts, ended=last or len(texts) >= _MOST_TEXTS)
