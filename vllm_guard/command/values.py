"""The texts of option values, read as vLLM reads them."""

from __future__ import annotations

import json
import re
from typing import Final

from vllm_guard.command.options import Option
from vllm_guard.release import Release

# vllm/utils/argparse_utils.py human_readable_int (0.21.0; engine/arg_utils.py before). Lower case is decimal, upper case binary.
_HUMAN: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_POWER: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
_LAST_WITHOUT_TERA: Final = Release(0, 12)
# The JSON of vLLM's own config classes may have such numbers outside of its strings: `{"bytes": 80m}`.
_HUMAN_IN_JSON: Final = re.compile(r'("(?:[^"\\]|\\.)*")|\b\d+(?:\.\d+)?[kKmMgGtT]\b')
_OBJECT: Final = re.compile(r"\s*\{.*\}\s*", re.DOTALL)


def parse_value(option: Option, text: str, release: Release | None) -> object:
    """The value that vLLM of this release makes of a text. Raises ValueError with the reason when it would not take it."""
    if option.nullable and text in ("", "None"):
        return None
    match option.kind:
        case "int":
            return parse_int(text)
        case "float":
            return float(text)
        case "human_int":
            return parse_human_int(text, release)
        case "human_int_or_auto":
            return -1 if text.strip().lower() in ("-1", "auto") else parse_human_int(text, release)
        case "json":
            return parse_json(text)
        case "json_or_str":
            return parse_json(text) if _OBJECT.fullmatch(text) else text
        case "config":
            return parse_json(_HUMAN_IN_JSON.sub(lambda part: part[1] or str(parse_human_int(part[0], release)), text))
        case "bool":
            return _parse_bool(text)
        case _:
            return text


def parse_int(text: str) -> int:
    """The integer as Python reads it (`1_000`, ` 5 `, `+5`). Raises ValueError without repeating an endless text."""
    try:
        return int(text)
    except ValueError:
        msg = f"{text[:40]!r} is not an integer"
        raise ValueError(msg) from None


def parse_human_int(text: str, release: Release | None) -> int:
    """The integer of `16384`, `16k` (16000), `16K` (16384) or `25.6k`. Raises ValueError, also for decimals of a binary suffix (`25.6K`)."""
    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        return parse_int(text)
    digits, suffix = match.groups()
    power = _POWER[suffix.lower()]
    if suffix in "tT" and release is not None and release <= _LAST_WITHOUT_TERA:
        msg = f"{text[:40]!r} has a suffix that vLLM {release} does not know"
        raise ValueError(msg)
    if suffix.isupper():
        return parse_int(digits) << 10 * power
    try:
        return int(float(digits) * 1000**power)
    except OverflowError:
        msg = f"{text[:40]!r} is too large"
        raise ValueError(msg) from None


def parse_json(text: str) -> object:
    """The JSON value. Raises ValueError, which never repeats the text: it may hold a secret."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        msg = "the value is not JSON"
        raise ValueError(msg) from None


def _parse_bool(text: str) -> bool:
    match text.lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            msg = "the value is neither true nor false"
            raise ValueError(msg)
