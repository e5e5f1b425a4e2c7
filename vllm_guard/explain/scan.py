"""The lines of a log that may say something, in one pass over its bytes and with bounded memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

from vllm_guard.explain.encodings import RETURN, plain_lines
from vllm_guard.explain.tokens import JOINED, READY_TOKENS, TOKENS

_ALL_TOKENS: Final = (*TOKENS, JOINED)
LONGEST_LINE_BYTES: Final = 1 << 15
# A line of a terminal's width may go on in the next ones, which hold no token then.
WRAPPED_BYTES: Final = range(40, 133)
MOST_WRAPPED_LINES: Final = 5
_NO_WORDS: Final = re.compile(rb"[^A-Za-z]+")


def candidate_lines(chunks: Iterable[bytes], is_ready: Callable[[], bool] = lambda: False) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of each line that holds a token of those that count when it is reached (`is_ready`), in order; with what may belong to it:
    the line before a rejected value, the lines after one that was wrapped. Where carriage returns stand in a line, its parts come one by one; of a part
    longer than LONGEST_LINE_BYTES only its beginning.
    """
    number, rest, window = 1, b"", _Window(is_ready)
    for chunk in plain_lines(chunks):
        buffer = rest + chunk
        end = buffer.rfind(b"\n") + 1
        yield from window.lines(buffer[:end], number)
        number += _count(buffer, 0, end)
        rest = buffer[end : end + LONGEST_LINE_BYTES]
    yield from window.lines(rest, number)


class _Window:
    """What the end of one buffer means for the beginning of the next: a line not told yet, and how many more lines may be one that was wrapped."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._untold: tuple[int, bytes] | None = None
        self._more = 0
        self._bar = b""

    def lines(self, buffer: bytes, number: int) -> Iterator[tuple[int, bytes]]:
        """The candidates of a buffer of whole lines, whose first one has this number."""
        numbers, told = _Numbers(buffer, number), 0
        for start in self._starts(buffer):
            told = yield from self._wrapped(numbers, told, start)
            line, end = _line(buffer, start)
            if buffer.startswith(RETURN, end - len(RETURN)) and self._moved(line):
                told = end
                continue
            if JOINED in line:
                yield from self._before(numbers, told, start)
            yield numbers.of(start), line
            told = end
            self._more = MOST_WRAPPED_LINES if len(line) in WRAPPED_BYTES else 0
        told = yield from self._wrapped(numbers, told, len(buffer))
        if buffer:
            last = buffer.rfind(b"\n", 0, len(buffer) - 1) + 1
            self._untold = (numbers.of(last), _line(buffer, last)[0]) if told <= last else None

    def _starts(self, buffer: bytes) -> Iterator[int]:
        """Where the candidates start, looked for anew where a line has changed what counts."""
        position = 0
        while position < len(buffer):
            ready = self._is_ready()
            for start in sorted(_line_starts(buffer, READY_TOKENS if ready else _ALL_TOKENS, position)):
                yield start
                position = _line(buffer, start)[1]
                if self._is_ready() != ready:
                    break
            else:
                return

    def _moved(self, line: bytes) -> bool:
        """Whether this is the progress bar that was just told, a little further on."""
        bar, self._bar = self._bar, _NO_WORDS.sub(b"", line)
        return bar == self._bar

    def _wrapped(self, numbers: _Numbers, at: int, stop: int) -> Generator[tuple[int, bytes], None, int]:
        """The lines from here that may belong to one that was wrapped; where they end."""
        while self._more and at < stop:
            start = at
            line, at = _line(numbers.buffer, start)
            self._more = self._more - 1 if len(line) in WRAPPED_BYTES else 0
            if line:
                yield numbers.of(start), line
        return at

    def _before(self, numbers: _Numbers, told: int, start: int) -> Iterator[tuple[int, bytes]]:
        """The line before the one that starts here, where it was not told already."""
        before = numbers.buffer.rfind(b"\n", 0, start - 1) + 1 if start else 0
        if start and before >= told:
            yield numbers.of(before), _line(numbers.buffer, before)[0]
        elif not start and self._untold is not None:
            yield self._untold


class _Numbers:
    """The numbers of the lines of a buffer, asked for from its beginning on."""

    def __init__(self, buffer: bytes, number: int) -> None:
        self.buffer = buffer
        self._number = number
        self._counted = 0

    def of(self, start: int) -> int:
        """The number of the line that starts here."""
        self._number += _count(self.buffer, self._counted, start)
        self._counted = start
        return self._number


def _line(buffer: bytes, start: int) -> tuple[bytes, int]:
    """The line that starts here, as far as it is kept, and where the next one starts."""
    end = buffer.find(b"\n", start)
    end = len(buffer) if end < 0 else end
    return buffer[start : min(end, start + LONGEST_LINE_BYTES)].rstrip(b"\0"), end + 1


def _count(buffer: bytes, start: int, end: int) -> int:
    """How many lines of the log end here."""
    returns = buffer.count(RETURN, start, end) if b"\0" in buffer else 0
    return buffer.count(b"\n", start, end) - returns


def _line_starts(buffer: bytes, tokens: tuple[bytes, ...], position: int) -> set[int]:
    """Where the lines from here on begin that hold a token in the part that is kept."""
    starts = set()
    for token in tokens:
        at = buffer.find(token, position)
        while at >= 0:
            start = buffer.rfind(b"\n", 0, at) + 1
            if at + len(token) <= start + LONGEST_LINE_BYTES:
                starts.add(start)
            next_line = buffer.find(b"\n", at)
            at = buffer.find(token, next_line) if next_line >= 0 else -1
    return starts
