"""The devices that a command will use: types only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from vllm_guard.facts import Claim, GpuProcess, Warn


@dataclass(frozen=True, slots=True)
class Device:
    """A device that the command will use, in rank order: a card, a MIG slice, or the host memory of the CPU build.

    `tier_total_bytes` and `tier_name` are what decides vLLM's batch defaults, the same on every device of a command: total and name of its first
    visible device, the parent's total for a MIG slice, 0 where it could not be read. `ranks` is how many ranks of this command share the device:
    more than one only on a NUMA node of the CPU build. `claim_key` is the name under which guards promise its memory, None where nobody else shares it.
    """

    kind: Literal["cuda", "cpu"]
    ordinal: int
    nvml_index: int | None
    uuid: str | None
    name: str
    nvml_total_bytes: int
    free_bytes: int
    driver_reserved_bytes: int | None = None
    tier_total_bytes: int = 0
    compute_capability: tuple[int, int] | None = None
    processes: tuple[GpuProcess, ...] = ()
    claimed_bytes: int = 0
    unified: bool = False
    tier_name: str = ""
    ranks: int = 1
    processes_unreadable: str | None = None
    claim_key: str | None = None

    @property
    def unaccounted_bytes(self) -> int:
        """Occupied memory that no listed process explains: total - reserved - free - listed. Negative when processes share pages."""
        listed = sum(process.used_bytes or 0 for process in self.processes)
        return self.nvml_total_bytes - (self.driver_reserved_bytes or 0) - self.free_bytes - listed


def competitors(device: Device) -> tuple[GpuProcess, ...]:
    """Who else computes on a device, the largest first: graphics do not count, nor processes that have ended."""
    computing = [process for process in device.processes if process.kind != "graphics" and not process.exiting]
    return tuple(sorted(computing, key=lambda process: process.used_bytes or 0, reverse=True))


def claimed_bytes(claims: Iterable[Claim], claim_key: str | None, free_bytes: int) -> int:
    """What is still to come of the promises under this name, at most what is free."""
    return min(free_bytes, sum(claim.outstanding_bytes for claim in claims if claim.uuid == claim_key))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The devices that the command will use. `interchangeable`: CUDA's order is not known, so the ranks may land on any `world` of these."""

    devices: tuple[Device, ...]
    world: int
    interchangeable: bool = False
    warnings: tuple[Warn, ...] = ()


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The devices are not this host's or not the guard's to know: the launch goes on untouched, with this warning."""

    warning: Warn


@dataclass(frozen=True, slots=True)
class Unusable:
    """A device that the command needs is missing, lost or unreadable: no verdict."""

    reason: Literal["driver", "no_gpu", "device_missing"]
    message: str
    fix: str


Selection = Chosen | Elsewhere | Unusable
