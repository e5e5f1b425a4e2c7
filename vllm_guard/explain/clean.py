"""A line of a log without what was put around it: terminal colours, the prefixes of containers and journals, JSON. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Colours as text: what was copied from a viewer that shows the escape, or that has lost it.
_WRITTEN_ESCAPES: Final = re.compile(r"(?:\^\[|ESC|\\x1b|\\u001b|\\033)\[\d*(?:;\d+)*m|\[(?:0|[01];\d\d|[39]\d)m")
# Where another record of vLLM's logger begins: records that lost their line ends when they were pasted.
_STAMP: Final = re.compile(r"(?:\([\w ,.=-]+\) ?)*\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d ")
_PROCESS: Final = re.compile(r"\(((?:[A-Za-z_]\w*(?:-\d+)?)(?: rank=\d+| [A-Z]+\d\w*)?)(?:,? pid=(\d+))(?:, ip=[\d.]*)?\)|\[rank(\d+)\]:")
# What stands in front of a program's own words: docker, docker compose, kubernetes, journals, vLLM's own logger. Each may stand in front of another.
_PREFIXES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\s*\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?(?: (?:stdout|stderr) [FP])?\s+(?:[|-] )?",
        r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d+ \d\d:\d\d:\d\d(?:\.\d+)? \S+ [^\s:\[\]]+(?:\[\d+\])?: ?",
        r"[\w.@-]+ [\w.@/-]+\[\d+\]: ",
        r"[\w.-]+ +\| ",
        r"\s*(?:> ?)+",
        r"\[pod/[^\]]+\] ",
        r"\((?:[A-Za-z_][\w-]*)(?: rank=\d+| [A-Z]+\d\w*)?(?:,? pid=\d+)?(?:, ip=[\d.]*)?\) ?",
        r"\[rank\d+\]: ?",
        r"\[(?:[Ii]nfo|[Ww]arn(?:ing)?|[Ee]rror|stdout|stderr)\] ?",
        r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]+\.py:\d+\] ?",
    )
)
_MOST_PREFIXES: Final = 6
# The message in a line of JSON: docker's json-file, journals, cloud loggers, structlog and the usual Python formatters.
_MESSAGE_KEYS: Final = ("MESSAGE", "message", "msg", "log", "textPayload", "event", "text", "body")
_MOST_PIECES: Final = 1000


@dataclass(frozen=True, slots=True)
class Piece:
    """What one process said: `text` for matching, without colours only, and `words` without prefixes, for people."""

    process: str
    text: str

    @property
    def words(self) -> str:
        """The text without the prefixes in front of it."""
        text = self.text
        for _ in range(_MOST_PREFIXES):
            stripped = next((text[match.end() :] for prefix in _PREFIXES if (match := prefix.match(text))), None)
            if stripped is None:
                break
            text = stripped
        return text.strip()


def pieces(line: bytes) -> Iterator[Piece]:
    """What a line says: one piece, or more where it holds carriage returns or is JSON with lines in it."""
    for count, text in enumerate(_texts(line.decode("utf-8", "replace"))):
        if count >= _MOST_PIECES:
            return
        found = _PROCESS.search(text[:200])
        yield Piece("" if found is None else found[0], text)


def _texts(text: str) -> Iterator[str]:
    text = _uncoloured(text).strip("\r\n\0 ")
    message = _json_message(text) if text.startswith("{") else None
    for part in re.split(r"[\r\n]+", text if message is None else _uncoloured(message)):
        starts = [found.start() for found in _STAMP.finditer(part)][1:] if part.count("-") > 1 else []
        for begin, end in pairwise((0, *starts, len(part))):
            if part[begin:end].strip():
                yield part[begin:end]


def _uncoloured(text: str) -> str:
    return _WRITTEN_ESCAPES.sub("", _ESCAPES.sub("", text))


def _json_message(text: str) -> str | None:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _message(entry) if isinstance(entry, dict) else None


def _message(entry: Mapping[str, Any]) -> str | None:
    payload = entry.get("jsonPayload")
    if isinstance(payload, dict):
        return _message(payload)
    for key in _MESSAGE_KEYS:
        value = entry.get(key)
        if isinstance(value, list) and value and all(type(item) is int and 0 <= item < 256 for item in value):  # noqa: PLR2004 - a journal's bytes
            value = bytes(value).decode("utf-8", "replace")
        if isinstance(value, str):
            error = next((entry[name] for name in ("exc_info", "exception", "stack_info") if isinstance(entry.get(name), str)), "")
            return f"{value}\n{error}"
    return None
