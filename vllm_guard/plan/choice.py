"""What can become of `gpu_memory_utilization`: types."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_guard.facts import Warn
from vllm_guard.plan.decision import Need


@dataclass(frozen=True, slots=True)
class Asked:
    """The fraction that was asked for: the user's, or vLLM's default; `least` and `most` differ where a release may use either default."""

    least: float
    most: float
    given: bool


@dataclass(frozen=True, slots=True)
class Keep:
    """The value asked for stays; argv is untouched."""

    because: str
    warnings: tuple[Warn, ...] = ()


@dataclass(frozen=True, slots=True)
class Emit:
    """A fraction that the guard chose; `limiting` is the index of the device that decides it."""

    fraction: float
    limiting: int
    warnings: tuple[Warn, ...] = ()


@dataclass(frozen=True, slots=True)
class NoRoom:
    """No fraction is worth starting with on the device at this index. The bytes are free memory, or vLLM's budget where a ceiling binds (`capped`).

    `threshold`: the fraction could be chosen, and what is left is below the least that is worth starting with.
    """

    device: int
    have_bytes: int
    needs: tuple[Need, ...]
    capped: bool = False
    threshold: bool = False

    @property
    def need_bytes(self) -> int:
        """All needs together."""
        return sum(need.size_bytes for need in self.needs)


Choice = Keep | Emit | NoRoom
