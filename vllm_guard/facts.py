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
    """What another guard promised its vLLM on a card, and how much of it that has taken. One that has `ended`, by use or after 10 minutes, does not count."""

    uuid: str
    promised_bytes: int
    used_bytes: int
    pid: int
    user: str | None = None
    age_seconds: float | None = None
    ended: bool = False

    @property
    def outstanding_bytes(self) -> int:
        """The part of the promise that is not used memory yet."""
        return 0 if self.ended else max(0, self.promised_bytes - self.used_bytes)


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
class Warn:
    """Something worth saying that does not change the verdict; `code` is stable."""

    code: str
    message: str
