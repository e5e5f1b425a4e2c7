"""Why not everybody who holds a device's memory can be named from here. Nobody is blamed for what was not seen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from vllm_guard.devices import Device
from vllm_guard.facts import Facts, GpuProcess
from vllm_guard.units import GIB, MIB

_UNEXPLAINED_BYTES: Final = 256 * MIB
# Where the driver does not tell its own part (some 250 to 900 MiB, by card), or the kernel holds some.
_UNEXPLAINED_WITH_OWN_PART_BYTES: Final = GIB

_CAN_SEE: Final = {
    "cuda": "update the driver, or run fuser -v /dev/nvidia* as root on the host",
    "cpu": "run vllm-guard check as root",
}


def why_incomplete(facts: Facts, device: Device) -> str | None:
    """One line: why, and what to do. None where what is held is explained by the processes that are listed, or nothing here hides any."""
    nameless = [process for process in device.processes if process.name == "unknown" and not process.exiting]
    own_part = device.driver_reserved_bytes is None
    allowed = _UNEXPLAINED_WITH_OWN_PART_BYTES if own_part else _UNEXPLAINED_BYTES
    if not nameless and device.unaccounted_bytes <= allowed:
        return None
    if device.kind == "cuda" and facts.host.wsl:
        return "WSL2 tells neither Windows' programs nor amounts per process: look at GPU memory in the Task Manager of Windows"
    if not facts.host.pid_namespace_initial:
        return "processes outside this container cannot be named from here: start it with --pid=host, or run vllm-guard gpus on the host"
    if device.processes_unreadable is not None:
        return f"{device.processes_unreadable}: {_CAN_SEE[device.kind]}"
    if device.kind == "cuda" and (device.uuid or "").startswith("MIG-"):
        return "the driver lists processes of a MIG device only in part: run vllm-guard gpus as root on the host"
    return f"{_pids(nameless)} hidden from this user (hidepid, ProtectProc): run vllm-guard gpus as root" if nameless else None


def _pids(processes: Iterable[GpuProcess]) -> str:
    pids = [str(process.pid) for process in processes]
    return f"pid {pids[0]} is" if len(pids) == 1 else f"{len(pids)} processes (pid {pids[0]} is one) are"
