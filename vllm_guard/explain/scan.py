"""The lines of a log that may say something, in one pass over its bytes and with bounded memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import Final

# Every line that a signature, a stage or a setting is read from holds one of these; a test holds the signatures to it. Ordinary lines of a server
# that works hold none, and are only counted.
TOKENS: Final = (
    *(
        b"rror",
        b"emory",
        b"ill",
        b"xcept",
        b"nterrupt",
        b", in ",
        b"ersion",
        b" complete",
        b"NCCL",
        b"annot",
        b"must ",
        b"oad",
        b"raph",
        b"cache size",
        b"blocks: ",
    ),
    *(b"ail", b"upport", b"divis", b"Ray", b"symbol", b"-default args", b"amespace(", b"xceeds", b"reater", b"too old", b"/dev/shm", b"CUDA"),
    *(b"_dummy_", b"died", b"xited", b"nvalid", b"does not", b"nsure the", b"driver", b"Pool(", b"timed out", b"ERR_NO_MEM", b"Repo id"),
)
# The line before says which field it is about.
JOINED: Final = b"nput should be"
_ALL_TOKENS: Final = (*TOKENS, JOINED)
LONGEST_LINE_BYTES: Final = 1 << 15
_BUFFER_BYTES: Final = 1 << 20
_BOMS: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def candidate_lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of each line that holds a token, in order; of a longer line than LONGEST_LINE_BYTES its beginning."""
    number, rest = 1, b""
    for chunk in _utf8(chunks):
        buffer = rest + chunk
        end = buffer.rfind(b"\n") + 1
        if not end:
            # A line without an end: what is beyond the longest line is not kept.
            rest = buffer[:LONGEST_LINE_BYTES] if len(buffer) > _BUFFER_BYTES else buffer
            continue
        yield from _in_buffer(buffer[:end], number)
        number += buffer.count(b"\n", 0, end)
        rest = buffer[end:]
    if rest:
        yield from _in_buffer(rest, number)


def _in_buffer(buffer: bytes, number: int) -> Iterator[tuple[int, bytes]]:
    starts = sorted(_line_starts(buffer))
    counted = 0
    for start in starts:
        number += buffer.count(b"\n", counted, start)
        counted = start
        end = buffer.find(b"\n", start)
        end = len(buffer) if end < 0 else end
        yield number, buffer[start : min(end, start + LONGEST_LINE_BYTES)]


def _line_starts(buffer: bytes) -> set[int]:
    """Where the lines begin that hold a token."""
    starts = set()
    for token in _ALL_TOKENS:
        at = buffer.find(token)
        while at >= 0:
            start = buffer.rfind(b"\n", 0, at) + 1
            starts.add(start)
            if token == JOINED and start:
                starts.add(buffer.rfind(b"\n", 0, start - 1) + 1)
            next_line = buffer.find(b"\n", at)
            at = buffer.find(token, next_line) if next_line >= 0 else -1
    return starts


def _utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks as they are, or as UTF-8 where the log begins with a mark of UTF-16, as PowerShell writes it."""
    decoder: codecs.IncrementalDecoder | None = None
    for index, chunk in enumerate(chunks):
        if index == 0 and chunk[:2] in _BOMS:
            decoder = codecs.getincrementaldecoder(_BOMS[chunk[:2]])("replace")
            chunk = chunk[2:]  # noqa: PLW2901 - without its mark
        yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", "replace")
