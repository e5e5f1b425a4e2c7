"""What the guard decides, as types: it starts, it does not fit, or it could not be judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from vllm_guard.devices import Device
from vllm_guard.facts import Warn
from vllm_guard.model.peak import Band
from vllm_guard.plan.needs import Demand
from vllm_guard.units import ExitCode

_COMFORTABLE_FRACTION: Final = 0.7

Outcome = Literal["pass", "fail", "uncertain", "unknown"]
GateName = Literal["free_memory", "cache_blocks", "one_sequence"]
Source = Literal["argv", "yaml", "vllm_default", "guard"]
RefusalReason = Literal[
    "gpu_busy",
    "model_too_large",
    "below_min_free",
    "below_min_kv_cache",
    "below_min_utilization",
    "competitors",
    "context_too_long",
    "too_many_sequences",
]


@dataclass(frozen=True, slots=True)
class Gate:
    """One of vLLM's start-up gates on the device where it is tightest; sizes in bytes, None where nothing is known."""

    gate: GateName
    outcome: Outcome
    have_bytes: int | None
    need_bytes: int | None
    detail: str


NOT_JUDGED: Final = tuple(Gate(name, "unknown", None, None, "not judged") for name in ("free_memory", "cache_blocks", "one_sequence"))


@dataclass(frozen=True, slots=True)
class Need:
    """A part of what must be there, for evidence that adds up."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Setting:
    """The effective value of one of vLLM's settings; `given` is what the user wrote."""

    value: object
    given: object
    source: Source


@dataclass(frozen=True, slots=True)
class Change:
    """One rewritten flag."""

    dest: str
    before: str | None
    after: str
    because: str

    @property
    def flag(self) -> str:
        """The flag as vLLM spells it."""
        return "--" + self.dest.replace("_", "-")


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """One device with what is set aside on it; `budget_bytes` is what is left for vLLM's budget, and may be negative. `holders_incomplete` says why not
    everybody who holds its memory can be named.
    """

    device: Device
    start_overhead_bytes: int
    outside_budget_bytes: int
    margin_bytes: int
    budget_bytes: int
    gpu_memory_utilization: float | None
    limiting: bool
    holders_incomplete: str | None = None


@dataclass(frozen=True, slots=True)
class Fits:
    """What the pool holds: bytes as a band, the rest at its likely size. `comfortable_sequences` of full length take 70 % of it: with more at once vLLM
    likely preempts, as its users' rule of thumb goes.
    """

    kv_pool_bytes: Band
    kv_tokens: int | None
    max_model_len: int
    full_sequences: float

    @property
    def comfortable_sequences(self) -> int | None:
        """Whole ones; None where they take nothing of the pool."""
        return int(self.full_sequences * _COMFORTABLE_FRACTION) if math.isfinite(self.full_sequences) else None


@dataclass(frozen=True, slots=True)
class Assessment:
    """Everything that was weighed, whatever the verdict."""

    devices: tuple[DevicePlan, ...]
    settings: Mapping[str, Setting]
    changes: tuple[Change, ...]
    gates: tuple[Gate, ...]
    warnings: tuple[Warn, ...]
    fixes: tuple[str, ...]
    demand: Demand | None = None
    fits: Fits | None = None
    unchanged_because: str | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """vLLM starts, with the changes of the assessment."""

    assessment: Assessment


@dataclass(frozen=True, slots=True)
class Refusal:
    """vLLM would fail, or the operator's thresholds say no. `have_bytes` is free memory of the device at index `device`, or the budget that
    a ceiling leaves there (`capped`); `needs` add up to what is needed of it.
    """

    assessment: Assessment
    reason: RefusalReason
    exit_code: Literal[ExitCode.REFUSED_FOR_NOW, ExitCode.REFUSED_FOR_GOOD]
    device: int
    have_bytes: int
    needs: tuple[Need, ...]
    capped: bool

    @property
    def need_bytes(self) -> int:
        """All needs together."""
        return sum(need.size_bytes for need in self.needs)


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """No verdict, because a device could not be read."""

    reason: Literal["driver", "no_gpu", "device_missing"]
    message: str
    fix: str


Decision = Launch | Refusal | Unmeasured
