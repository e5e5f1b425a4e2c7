"""Words that everybody uses: sizes, rounding, exit codes. Integers of bytes everywhere; text is made at the edges."""

from __future__ import annotations

import math
import re
from enum import IntEnum
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


class ExitCode(IntEnum):
    """The published exit codes of the guard itself; after exec vLLM's own travel the same way."""

    OK = 0
    USAGE = 64
    UNMEASURED = 69
    BUG = 70
    REFUSED_FOR_NOW = 75
    REFUSED_FOR_GOOD = 78
    CANNOT_RUN = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    TERMINATED = 143


def parse_size_bytes(text: str) -> int:
    """Bytes of `512MiB`, `1.5GiB`, `800MB` or plain digits, rounded down.

    Raises ValueError for anything else, negative sizes and unknown units included.
    """
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        msg = f"{text!r} is not a size such as 512MiB, 8GiB, 800MB or plain bytes"
        raise ValueError(msg)
    return math.floor(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def floor4(numerator_bytes: int, denominator_bytes: int) -> float:
    """`numerator / denominator` rounded down to 4 decimals, exactly (integer arithmetic); 0.0 when the numerator is not positive.

    Rounded down because the result becomes vLLM's fraction: too small starts, too large is refused.
    """
    if numerator_bytes <= 0:
        return 0.0
    return (numerator_bytes * 10_000 // denominator_bytes) / 10_000


def requested_bytes(total_bytes: int, gpu_memory_utilization: float) -> int:
    """What vLLM asks of a device of this total: `ceil(total * fraction)` in float arithmetic, as vLLM computes it (v1/worker/utils.py request_memory)."""
    return math.ceil(total_bytes * gpu_memory_utilization)


def floor_mib(size_bytes: int) -> int:
    """Whole MiB, rounded down: for what we have."""
    return size_bytes // MIB


def ceil_mib(size_bytes: int) -> int:
    """Whole MiB, rounded up: for what is needed."""
    return -(-size_bytes // MIB)
