"""What the operator asked of the guard, as values the plan can reckon with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Amount:
    """A size in bytes, or a share of the card's total."""

    size_bytes: int = 0
    fraction: float | None = None

    def of(self, total_bytes: int) -> int:
        """Bytes on a card of this total, rounded down."""
        return self.size_bytes if self.fraction is None else int(total_bytes * self.fraction)


Lever = Literal["utilization", "batched_tokens"]


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of `contract.md` that change a decision. `None` stands for `auto`, and for "no limit" where there is no auto."""

    margin: Amount | None = None
    start_overhead_bytes: int | None = None
    budget_bytes: int | None = None
    max_utilization: float | None = None
    min_utilization: float = 0.0
    min_free: Amount = Amount()
    min_kv_cache_bytes: int | None = None
    on_explicit: Literal["lower", "keep"] = "lower"
    batched_tokens: Literal["auto", "off"] | int = "auto"
    competitors: Literal["share", "refuse"] = "share"
    levers: frozenset[Lever] = frozenset(("utilization", "batched_tokens"))
