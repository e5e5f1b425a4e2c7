"""The lines of a log that may say something, in one pass over its bytes and with bounded memory."""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator, Iterable, Iterator
from typing import Final

# Every line that a signature, a stage or a setting is read from holds one of these; a test holds the signatures to it. Ordinary lines of a server
# that works hold none, and are only counted.
TOKENS: Final = (
    *(b"rror", b"ERROR", b"xcept", b"ail", b"FAILED", b"fatal", b"ill", b"SIGKILL", b"signal", b"xit", b"nterrupt", b"nexpected"),
    *(b"emory", b"CUDA", b"NCCL", b"Gloo", b"Ray", b"NVIDIA", b"KV ", b"raph", b"oad", b"bad_alloc", b"/dev/shm", b"No space", b"GPU decoding", b"VllmConfig"),
    *(
        b" not ",
        b"Not Found",
        b"n't ",
        b"not compat",
        b"annot",
        b"nvalid",
        b"o valid",
        b"no vLLM",
        b"must ",
        b"required",
        b"restricted",
        b"gated",
        b"upport",
        b"divis",
        b"xceeds",
        b"reater",
    ),
    *(b"arger", b"maller", b"longer", b"imum", b"out of bounds", b"too old", b"size changed", b"imed out", b"imeout", b"already", b"EADDRINUSE", b"ostname"),
    *(
        b"connectFull",
        b"o such file",
        b"presence of",
        b"nrecogni",
        b"uantization method",
        b"Buffer",
        b"Offline",
        b"Transformers does",
        b"symbol",
        b"GLIBC",
        b"ersion",
    ),
    *(b"  File", b", in ", b"_dummy_", b" complete", b"vicorn running", b"-default args", b"amespace(", b"cheduled restart", b" serve ", b'"MESSAGE":['),
)
# The line before says which field it is about.
JOINED: Final = b"nput should be"
_ALL_TOKENS: Final = (*TOKENS, JOINED)
LONGEST_LINE_BYTES: Final = 1 << 15
# A line of a terminal's width may go on in the next ones, which hold no token then.
WRAPPED_BYTES: Final = range(40, 133)
MOST_WRAPPED_LINES: Final = 5
_BOMS: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: "utf-8"}
_LONGEST_BOM_BYTES: Final = 3
# What a lone carriage return becomes, as progress bars print them: an end that begins no new line. No NUL of the log is left by then.
_RETURN: Final = b"\0\n"
_NO_WORDS: Final = re.compile(rb"[^A-Za-z]+")


def candidate_lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of each line that holds a token, in order, with what may belong to it: the line before a rejected value, the lines after
    one that was wrapped. Where carriage returns stand in a line, its parts come one by one; of a part longer than LONGEST_LINE_BYTES only its beginning.
    """
    number, rest, window = 1, b"", _Window()
    for chunk in _ended_by_newlines(_utf8(chunks)):
        buffer = rest + chunk
        end = buffer.rfind(b"\n") + 1
        yield from window.lines(buffer[:end], number)
        number += _count(buffer, 0, end)
        rest = buffer[end : end + LONGEST_LINE_BYTES]
    yield from window.lines(rest, number)


class _Window:
    """What the end of one buffer means for the beginning of the next: a line not told yet, and how many more lines may be one that was wrapped."""

    def __init__(self) -> None:
        self._untold: tuple[int, bytes] | None = None
        self._more = 0
        self._bar = b""

    def lines(self, buffer: bytes, number: int) -> Iterator[tuple[int, bytes]]:
        """The candidates of a buffer of whole lines, whose first one has this number."""
        numbers, told = _Numbers(buffer, number), 0
        for start in sorted(_line_starts(buffer)):
            told = yield from self._wrapped(numbers, told, start)
            line, end = _line(buffer, start)
            if buffer.startswith(_RETURN, end - len(_RETURN)) and self._moved(line):
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
    return buffer.count(b"\n", start, end) - buffer.count(_RETURN, start, end)


def _line_starts(buffer: bytes) -> set[int]:
    """Where the lines begin that hold a token in the part that is kept."""
    starts = set()
    for token in _ALL_TOKENS:
        at = buffer.find(token)
        while at >= 0:
            start = buffer.rfind(b"\n", 0, at) + 1
            if at + len(token) <= start + LONGEST_LINE_BYTES:
                starts.add(start)
            next_line = buffer.find(b"\n", at)
            at = buffer.find(token, next_line) if next_line >= 0 else -1
    return starts


def _ended_by_newlines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks without NULs, with one kind of line end; a lone carriage return becomes one that is not counted."""
    held = b""
    for chunk in chunks:
        text = held + chunk.replace(b"\0", b"")
        held = b"\r" if text.endswith(b"\r") else b""
        text = text[: len(text) - len(held)]
        yield text.replace(b"\r\n", b"\n").replace(b"\r", _RETURN) if b"\r" in text else text


def _utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks as they are, or as UTF-8 where the log begins with a mark of UTF-16, as PowerShell writes it."""
    head, decoder, known = b"", None, False
    for chunk in chunks:
        if not known:
            head += chunk
            if len(head) < _LONGEST_BOM_BYTES:
                continue
            chunk, decoder, known = *_decoder(head), True  # noqa: PLW2901 - without its mark
        yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", "replace")
    if not known:
        text, decoder = _decoder(head)
        yield text if decoder is None else decoder.decode(text).encode("utf-8", "replace")


def _decoder(head: bytes) -> tuple[bytes, codecs.IncrementalDecoder | None]:
    """What follows the mark, and the decoder that it asks for."""
    bom = next((bom for bom in _BOMS if head.startswith(bom)), None)
    if bom is None:
        return head, None
    return head[len(bom) :], None if bom == codecs.BOM_UTF8 else codecs.getincrementaldecoder(_BOMS[bom])("replace")
