"""What cannot be known, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unknown:
    """No figure, and why there is none."""

    because: str
