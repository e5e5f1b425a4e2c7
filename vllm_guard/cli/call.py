"""How the guard was called, and its one way to stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """How the guard was called."""

    argv: tuple[str, ...]
    invoked: str
    environ: Mapping[str, str]
    began: float


def print_line(text: str) -> None:
    """A line on stdout, with the bytes of argv as they came. A reader that has gone away is no failure: the exit code is the verdict."""
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(os.fsencode(text) + b"\n")
        sys.stdout.buffer.flush()
