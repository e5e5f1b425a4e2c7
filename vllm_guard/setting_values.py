"""The text of one setting -> its value. Each reader takes a flag's text or TOML's native value and raises ValueError with what is accepted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final, Literal, TypeVar

from vllm_guard.plan.policy import Amount, Lever
from vllm_guard.units import parse_size_bytes

T = TypeVar("T")
Reader = Callable[[object], T]

_OFF: Final = ("", "off")
_NONE: Final = ("", "off", "none")
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", *_OFF)
_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")
_WHOLE_PERCENT: Final = 100
_LEVERS: Final[dict[str, Lever]] = {"utilization": "utilization", "batched_tokens": "batched_tokens"}


def _reader(accepts: str, parse: Callable[[str], T]) -> Reader[T]:
    """A reader that says what it accepts, whatever went wrong: a wrong type, no number, a number beyond what floats or digits hold."""

    def read(value: object) -> T:
        try:
            return parse(_text(value))
        except (ValueError, OverflowError):
            raise ValueError(accepts) from None

    return read


def _text(value: object) -> str:
    """TOML's native value as a flag would spell it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, str | int | float):
        raise ValueError  # noqa: TRY004 - one kind of error for every bad value
    return str(value).strip()


def _only(value: T, *, when: bool) -> T:
    """The value; raises ValueError when it is out of bounds."""
    if not when:
        raise ValueError
    return value


def _auto(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """The same with `auto`, which is None."""
    return lambda text: None if text.lower() == "auto" else parse(text)


def _or_auto(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """The same where nothing and `off` can only mean `auto`."""
    return lambda text: None if text.lower() in ("auto", *_OFF) else parse(text)


def _none(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """The same with `none`, `off` and nothing, which are None."""
    return lambda text: None if text.lower() in _NONE else parse(text)


def _parse_size(text: str) -> int:
    if text.lower() in _OFF:
        return 0
    # Plain bytes are whole: 0.05, meant as a share, would otherwise become 0 bytes.
    return parse_size_bytes(_only(text, when=text.isdigit() or not text[-1].isdigit()))


def _parse_amount(text: str) -> Amount:
    percent = _PERCENT.fullmatch(text)
    if percent is None:
        return Amount(_parse_size(text))
    share = float(percent[1])
    return Amount(fraction=_only(share / _WHOLE_PERCENT, when=share <= _WHOLE_PERCENT))


def _parse_path(text: str) -> str:
    return _only(text, when=text not in _OFF and "\0" not in text)


def _parse_ceiling(text: str) -> float:
    fraction = float(text)
    return _only(fraction, when=0 < fraction <= 1)


def _parse_floor(text: str) -> float:
    fraction = 0.0 if text.lower() in _OFF else float(text)
    return _only(fraction, when=0 <= fraction <= 1)


def _parse_seconds(text: str) -> float:
    seconds = 0.0 if text.lower() in _OFF else float(text)
    return _only(seconds, when=seconds >= 0 and math.isfinite(seconds))


def _parse_batched_tokens(text: str) -> Literal["auto", "off"] | int:
    if text.lower() == "auto":
        return "auto"
    if text.lower() in _OFF:
        return "off"
    tokens = int(text)
    return _only(tokens, when=tokens >= 1)


def _parse_boolean(text: str) -> bool:
    return _only(text.lower() in _TRUE, when=text.lower() in (*_TRUE, *_FALSE))


def _parse_levers(text: str) -> frozenset[Lever]:
    words = [] if text.lower() in _OFF else [word.strip().lower() for word in text.split(",")]
    return frozenset(_LEVERS[word] for word in _only(words, when=all(word in _LEVERS for word in words)))


def _parse_competitors(text: str) -> Literal["share", "refuse"]:
    if text.lower() == "refuse":
        return "refuse"
    return _only("share", when=text.lower() in ("share", *_OFF))


def choice(*words: str) -> Reader[str]:
    """One of these words in any case; an empty value is `off` where that is one of them, else `auto`."""

    def parse(text: str) -> str:
        word = text.lower() or ("off" if "off" in words else "auto")
        return _only(word, when=word in words)

    return _reader(f"one of {', '.join(words)}", parse)


def read_levers(value: object) -> frozenset[Lever]:
    """The levers, from comma-separated words or a TOML list of them; empty is none."""
    words = ",".join(map(str, value)) if isinstance(value, list) else value
    return _reader(f"a comma-separated choice of {', '.join(_LEVERS)}, or empty", _parse_levers)(words)


read_competitors: Final = _reader("share or refuse", _parse_competitors)
read_amount: Final = _reader("a size such as 512MiB, a share such as 5%, or off", _parse_amount)
read_amount_or_auto: Final = _reader("a size such as 512MiB, a share such as 5%, or auto", _auto(_parse_amount))
read_size_or_auto: Final = _reader("a size such as 512MiB, or auto", _auto(_parse_size))
read_size_or_none: Final = _reader("a size such as 8GiB, or none", _none(_parse_size))
read_ceiling_or_auto: Final = _reader("a number above 0 and at most 1, or auto", _or_auto(_parse_ceiling))
read_floor: Final = _reader("a number from 0 to 1", _parse_floor)
read_seconds: Final = _reader("a number of seconds (0 or more), or off", _parse_seconds)
read_seconds_or_auto: Final = _reader("a number of seconds (0 or more), or auto", _auto(_parse_seconds))
read_batched_tokens: Final = _reader("auto, off, or a whole number of tokens (1 or more)", _parse_batched_tokens)
read_boolean: Final = _reader("one of 1, 0, true, false, yes, no, on, off", _parse_boolean)
read_text_or_auto: Final = _reader("a version such as 0.11.2, or auto", _or_auto(_parse_path))
read_path_or_auto: Final = _reader("a path, or auto", _or_auto(_parse_path))
read_path_or_none: Final = _reader("a path, or off", _none(_parse_path))
