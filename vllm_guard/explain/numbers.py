"""The numbers of a finding, by name and in fixed units. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from vllm_guard.explain.attempt import Attempt
from vllm_guard.explain.findings import Finding

_SIZE: Final = re.compile(r"([\d,.]+(?:e[+-]?\d+)?) ?([KMGT]?)(i?)B")
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_WORDS: Final = frozenset(("process", "arguments", "option", "flag", "value", "stored"))
_GIB: Final = 1 << 30
_MOST: Final = 1e18  # no number of a start is larger


def numbers_of(finding: Finding, attempt: Attempt) -> Mapping[str, float | int | str]:
    """What the line says, and what of this start belongs to it: weights, pool, and the settings that decide. Sizes are GiB."""
    numbers: dict[str, float | int | str] = {}
    for name, text in finding.groups.items():
        size = _SIZE.fullmatch(text)
        if name in _WORDS and (name != "value" or _number(text) is None):
            numbers[name] = text.strip()
            continue
        number = _number(text) if size is None else _gib(size)
        if number is not None:
            numbers[name if size is None else f"{name}_gib"] = number
    if attempt.weights_gib is not None:
        numbers.setdefault("weights_gib", attempt.weights_gib)
    if attempt.pool is not None and finding.signature.cause.startswith("gate_"):
        numbers.setdefault("pool_gib", attempt.pool[2])
    if attempt.holder_gib is not None:
        numbers.setdefault("holder_gib", attempt.holder_gib)
    return numbers


def _gib(size: re.Match[str]) -> float | None:
    scale = (1024.0 if size[3] else 1000.0) ** _POWERS[size[2]]
    number = _number(size[1])
    return None if number is None else round(number * scale / _GIB, 4)


def _number(text: str) -> float | int | None:
    plain = text.replace(",", "")
    try:
        number = int(plain) if plain.lstrip("-").isdigit() else float(plain)
    except ValueError:
        return None
    return number if abs(number) < _MOST else None
