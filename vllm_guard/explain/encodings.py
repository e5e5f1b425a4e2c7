"""The bytes of a log as UTF-8 with one kind of line end, in one pass."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import Final

# What a lone carriage return becomes, as progress bars print them: an end that begins no new line. No NUL of the log is left by then.
RETURN: Final = b"\0\n"
_BOMS: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: "utf-8"}
_LONGEST_BOM_BYTES: Final = 3


def plain_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks without NULs and carriage returns, as UTF-8 where the log begins with a mark of another encoding."""
    yield from _ended_by_newlines(_utf8(chunks))


def _ended_by_newlines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks without NULs, with one kind of line end; a lone carriage return becomes one that is not counted."""
    held = b""
    for chunk in chunks:
        text = held + chunk.replace(b"\0", b"")
        held = b"\r" if text.endswith(b"\r") else b""
        text = text[: len(text) - len(held)]
        yield text.replace(b"\r\n", b"\n").replace(b"\r", RETURN) if b"\r" in text else text


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
