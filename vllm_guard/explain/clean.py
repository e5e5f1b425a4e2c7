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
_PROCESS: Final = re.compile(r"\([A-Za-z_][\w-]*(?: [A-Z]+\d\w*)?(?:,? (?:rank|pid|ip)=[\w.:]*,?)+\)|\[rank\d+\]:")
_LEVELS: Final = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_DATE: Final = r"(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d| [A-Z]{3,4}\b)?"
_MONTHS: Final = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
# What stands in front of a program's own words: docker, docker compose, kubernetes, journals, launchers, loggers. Each may stand in front of another.
_PREFIX: Final = re.compile(
    "|".join(
        (
            rf"(?:[^\t]*\t)*\ufeff?\s*\[?{_DATE}\]?(?: (?:stdout|stderr) [FP])?\s+(?:[|-] )?",
            rf"(?:{_MONTHS}) +\d+ \d\d:\d\d:\d\d(?:\.\d+)? \S+ [^\s:\[\]]+(?:\[\d+\])?: ?",
            r"\[ *\d+\.\d{6}\] |\d{10}\.\d{6} ",  # the kernel's, and a journal's by the clock
            r"[\w.@-]+ [\w.@/-]+\[\d+\]: ",
            r"[\w.@-]+ (?:kernel|systemd): ",
            r"\s*MESSAGE=",
            r"[\w.-]+ *\| ",
            r"[\w.]+:[\w.<>]+:\d+ - ",
            rf"[\w.]+ - (?:{_LEVELS}) - ",
            r"\[(?:pod/|stdout|stderr|\d+,\d+)[^\]]*\](?:<std(?:out|err)>:)? ?",
            r"[a-z0-9][a-z0-9.-]*-(?:[bcdfghjklmnpqrstvwxz2456789]{5}|\d{1,3}) [a-z0-9][a-z0-9-]* (?=\S)",  # stern: pod and container
            r"\s*(?:> ?)+",
            r"\[(?:[Ii]nfo|[Ww]arn(?:ing)?|[Ee]rror)\] ?",
            rf"(?:{_PROCESS.pattern}) ?",
            r"\[(?:rank|default|server)\d+\]:? ?",
        )
    )
)
_MOST_PREFIXES: Final = 8
# vLLM's own logger. What was set to stand in front of it (VLLM_LOGGING_PREFIX) may be anything.
_LOGGER: Final = re.compile(rf"\b({_LEVELS}) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[?[\w./-]+\.py:\d+\] ?")
_LEVEL: Final = re.compile(rf"\b({_LEVELS}) \d\d-\d\d \d\d:\d\d:\d\d")
_LONGEST_PREFIX: Final = 300
_QUIET: Final = frozenset(("INFO", "DEBUG"))
# torch's own warnings begin with a W and the date.
_TORCH_WARNS: Final = re.compile(r"\[W\d{3,8} ?\d\d:\d\d")
# The message in a line of JSON: docker's json-file, journals, cloud loggers, structlog and the usual Python formatters.
_MESSAGE_KEYS: Final = ("MESSAGE", "message", "msg", "log", "textPayload", "event", "line", "text", "body", "@message", "short_message", "stringValue")
_ERROR_KEYS: Final = ("exc_info", "exception", "exc_text", "stack_trace", "stack_info", "full_message")
# Only Python's own formatters are believed about a level: what collects a container's output calls all of it INFO.
_LOGGER_KEYS: Final = ("levelname", "logger", "logger_name", "lineno", "funcName", "filename")
_MOST_NESTED: Final = 4
_MOST_PIECES: Final = 1000


@dataclass(frozen=True, slots=True)
class Piece:
    """What one process said: `text` without colours only, `words` without prefixes; `informs` where its level says that nothing is wrong, `warns` where it
    is a warning of vLLM's.
    """

    process: str
    text: str
    words: str
    informs: bool = False
    warns: bool = False


def pieces(line: bytes) -> Iterator[Piece]:
    """What a line says: one piece, or more where it is JSON with lines in it."""
    for count, (text, words, informs) in enumerate(_texts(line.decode("utf-8", "replace"), informs=False, depth=0)):
        if count >= _MOST_PIECES:
            return
        found = _PROCESS.search(text[:_LONGEST_PREFIX])
        level = _LEVEL.search(text)
        quiet = informs or _TORCH_WARNS.search(text) is not None if level is None else level[1] in _QUIET
        yield Piece("" if found is None else found[0], text, words, quiet, warns=level is not None and level[1] == "WARNING")


def _texts(text: str, *, informs: bool, depth: int) -> Iterator[tuple[str, str, bool]]:
    for part in re.split(r"[\r\n]+", _ESCAPES.sub("", text)):
        words = _words(part)
        message = _json_message(words) if words.startswith("{") and depth < _MOST_NESTED else None
        if message is not None:
            yield from _texts(message[0], informs=message[1], depth=depth + 1)
        elif words.startswith("{"):  # cut off, or no message in it: an escaped end of a line is still one
            yield from ((each.strip(), each.strip(), informs) for each in re.split(r"\\r?\\n", words) if each.strip())
        else:
            yield from ((each.strip(), said, informs) for each in _records(_WRITTEN_ESCAPES.sub("", part)) if (said := _words(each)))


def _records(part: str) -> Iterator[str]:
    """A line where another record of vLLM's logger begins in it."""
    starts = [found.start() for found in _STAMP.finditer(part)][1:] if part.count("-") > 1 else []
    yield from (part[begin:end] for begin, end in pairwise((0, *starts, len(part))))


def _words(text: str) -> str:
    """The text without the prefixes in front of it."""
    text = _without_prefixes(text)
    logger = None if text.startswith("{") else _LOGGER.search(text[:_LONGEST_PREFIX])
    return (text if logger is None else _without_prefixes(text[logger.end() :])).strip()


def _without_prefixes(text: str) -> str:
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(text)
        if match is None:
            break
        text = text[match.end() :]
    return text


def _json_message(text: str) -> tuple[str, bool] | None:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _message(entry, _MOST_NESTED) if isinstance(entry, dict) else None


def _message(entry: Mapping[str, Any], depth: int) -> tuple[str, bool] | None:
    """The message, with the traceback beside it, and whether its logger calls it information."""
    for key in ("jsonPayload", *_MESSAGE_KEYS):
        value = entry.get(key)
        if isinstance(value, dict) and depth:
            return _message(value, depth - 1)
        if isinstance(value, list) and value and all(type(item) is int and 0 <= item < 256 for item in value):  # noqa: PLR2004 - a journal's bytes
            value = bytes(value).decode("utf-8", "replace")
        if isinstance(value, str):
            error = next((entry[name] for name in _ERROR_KEYS if isinstance(entry.get(name), str)), "")
            return f"{value}\n{error}", _informs(entry)
    return None


def _informs(entry: Mapping[str, Any]) -> bool:
    level = entry.get("levelname", entry.get("level"))
    return isinstance(level, str) and level.upper() in _QUIET and any(key in entry for key in _LOGGER_KEYS)
