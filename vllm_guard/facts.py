"""What was read from the world, frozen. Everything is decided from one `Facts`; printing never reads again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

ProcessKind = Literal["compute", "graphics", "mps"]

_DECIDING_VARIABLES: Final = frozenset(
    (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "VLLM_USE_V2_MODEL_RUNNER",
        "VLLM_CPU_KVCACHE_SPACE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_DEVICE_MEMORY_LIMIT",
        "VLLM_ATTENTION_BACKEND",
        "VLLM_PP_LAYER_PARTITION",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    )
)
# HAMi gives each device its own variable, numbered as the container sees them.
_NUMBERED_LIMIT: Final = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT_[0-9]{1,4}")


def decides(name: str) -> bool:
    """Whether this environment variable changes which devices vLLM takes or how much it may have: those travel with a snapshot."""
    return name in _DECIDING_VARIABLES or _NUMBERED_LIMIT.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a card, or of the host for the CPU build. `None` is "not reported", never zero.

    `server` is the server that an engine works for, and `end_command` what ends an orphaned engine, where that was verified.
    """

    pid: int
    kind: ProcessKind
    name: str
    user: str | None = None
    command: str | None = None
    used_bytes: int | None = None
    age_seconds: float | None = None
    container: str | None = None
    unit: str | None = None
    vllm: bool = False
    orphan: bool = False
    exiting: bool = False
    server: str | None = None
    end_command: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card or a MIG slice whose memory could be read. `free_bytes` is NVML's free, or host memory on a unified board.

    A slice carries the `nvml_index` of its card.
    """

    nvml_index: int
    uuid: str
    name: str
    nvml_total_bytes: int
    free_bytes: int
    driver_reserved_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    processes: tuple[GpuProcess, ...] = ()
    processes_unreadable: str | None = None
    unified: bool = False
    mig_parent_uuid: str | None = None
    mig_parent_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class UnreadableGpu:
    """A card that NVML lists and that could not be read; it stops a launch only when the launch needs it."""

    nvml_index: int
    uuid: str | None
    name: str | None
    message: str
    fix: str

    @property
    def warning(self) -> Warn:
        """What to say where the card is not needed."""
        return Warn("gpu_unreadable", self.message)


@dataclass(frozen=True, slots=True)
class NumaNode:
    """Memory of one NUMA node as vLLM's CPU worker counts it: total, and free plus what the kernel gives back at once."""

    node: int
    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Host:
    """The machine around the cards. `processes` are the largest holders of its memory, read for the CPU build only, and `processes_unreadable` says why
    that is not everybody.
    """

    memory_total_bytes: int
    memory_available_bytes: int
    cgroup_limit_bytes: int | None = None
    wsl: bool = False
    pid_namespace_initial: bool = True
    nodes: tuple[NumaNode, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    processes_unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """What another guard promised its vLLM and the card does not show yet."""

    uuid: str
    promised_bytes: int
    used_bytes: int
    pid: int

    @property
    def outstanding_bytes(self) -> int:
        """The part of the promise that is not used memory yet."""
        return max(0, self.promised_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True)
class NvmlFault:
    """Why NVML as a whole could not be used."""

    reason: Literal["driver", "no_gpu", "device_missing"]
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class Facts:
    """One reading of the world."""

    taken_at: str
    vllm_version: str | None
    vllm_device: str
    host: Host
    gpus: tuple[Gpu | UnreadableGpu, ...] = ()
    nvml_fault: NvmlFault | None = None
    claims: tuple[Claim, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Device:
    """A device that the command will use, in rank order: a card, a MIG slice, or the host memory of the CPU build.

    `tier_total_bytes` and `tier_name` are what decides vLLM's batch defaults, the same on every device of a command: total and name of its first
    visible device, the parent's total for a MIG slice, 0 where it could not be read. `ranks` is how many ranks of this command share the device:
    more than one only on a NUMA node of the CPU build.
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

    @property
    def unaccounted_bytes(self) -> int:
        """Occupied memory that no listed process explains: total - reserved - free - listed. Negative when processes share pages."""
        listed = sum(process.used_bytes or 0 for process in self.processes)
        return self.nvml_total_bytes - (self.driver_reserved_bytes or 0) - self.free_bytes - listed


def competitors(device: Device) -> tuple[GpuProcess, ...]:
    """Who else computes on a device, the largest first: graphics do not count, nor processes that have ended."""
    computing = [process for process in device.processes if process.kind != "graphics" and not process.exiting]
    return tuple(sorted(computing, key=lambda process: process.used_bytes or 0, reverse=True))


@dataclass(frozen=True, slots=True)
class Warn:
    """Something worth saying that does not change the verdict; `code` is stable."""

    code: str
    message: str


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


@dataclass(frozen=True, order=True, slots=True)
class Release:
    """A vLLM release as far as behaviour goes: suffixes, pre and post releases do not count."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


_RELEASE: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(.*)", re.DOTALL)


def parse_release(text: str | None) -> Release | None:
    """The release of a version such as `0.11.2`, `0.32.0+cpu`, `0.6.3.post1`; None when it is unknown.

    A shallow source build calls itself 0.1.dev or 0.0.0: that says nothing, so it is unknown too.
    """
    match = _RELEASE.fullmatch(text.strip()) if text else None
    if match is None:
        return None
    release = Release(int(match[1]), int(match[2]), int(match[3] or 0))
    return None if release < Release(0, 2) else release
