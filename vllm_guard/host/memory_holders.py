"""Who holds host memory, for the CPU build of vLLM: one walk of /proc. Resident sizes count pages that are shared more than once."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from vllm_guard.facts import GpuProcess, Host
from vllm_guard.host.processes import read_processes
from vllm_guard.host.titles import is_vllm

_ROOT: Final = Path("/")
_READ_LIMIT: Final = 1 << 12
_LARGE_FRACTION: Final = 0.01
_MOST_OTHERS: Final = 8
_HIDDEN: Final = "processes of other users are hidden here (hidepid, ProtectProc)"
_STATM: Final = re.compile(r"\d+ (\d{1,15}) .*", re.DOTALL)


class _Resident(NamedTuple):
    pid: int
    size_bytes: int
    vllm: bool


def with_memory_holders(host: Host, root: Path = _ROOT) -> Host:
    """The host with the processes that hold its memory, largest first: those of vLLM, and up to 8 others from 1 % of it on; this process is not told.

    Amounts are unknown where the machine has several NUMA nodes: a resident size does not say on which.
    """
    pids = _pids(root)
    found = {pid: _read_resident(pid, root) for pid in pids if pid != os.getpid()}
    held = sorted((each for each in found.values() if isinstance(each, _Resident)), key=lambda each: (-each.size_bytes, each.pid))
    others = [each for each in held if not each.vllm and each.size_bytes >= host.memory_total_bytes * _LARGE_FRACTION][:_MOST_OTHERS]
    shown = [each for each in held if each.vllm or each in others]
    known = read_processes(each.pid for each in shown)
    told = _node_count(root) <= 1
    listed = (GpuProcess(each.pid, "compute", "unknown", used_bytes=each.size_bytes if told else None) for each in shown)
    processes = tuple(known[process.pid].of(process) for process in listed)
    hidden = 1 not in pids or any(isinstance(each, PermissionError) for each in found.values())
    return replace(
        host,
        processes=tuple(process for process in processes if process.name != "unknown"),  # ended between the two readings
        processes_unreadable=_HIDDEN if hidden else None,
    )


def with_amounts(host: Host, root: Path = _ROOT) -> Host:
    """The host with what each of its holders has of all nodes together now: 0 for one that has ended, None for one that may not be looked at."""
    return replace(host, processes=tuple(replace(process, used_bytes=_amount(process.pid, root)) for process in host.processes))


def _amount(pid: int, root: Path) -> int | None:
    found = _read_resident(pid, root)
    return None if isinstance(found, PermissionError) else 0 if found is None else found.size_bytes


def _pids(root: Path) -> list[int]:
    """Every process that can be seen."""
    try:
        return [int(name) for name in os.listdir(root / "proc") if name.isdecimal() and name.isascii()]  # noqa: PTH208 - names, no paths
    except OSError:
        return []


def _read_resident(pid: int, root: Path) -> _Resident | PermissionError | None:
    """What a process holds; None for kernel threads and those that have just ended, the error for one that may not be looked at."""
    folder = root / "proc" / str(pid)
    try:
        match = _STATM.fullmatch(_read(folder / "statm"))
        pages = int(match[1]) if match else 0
        if pages == 0:
            return None
        argv = [word for word in _read(folder / "cmdline").split("\0") if word]
        return _Resident(pid, pages * os.sysconf("SC_PAGE_SIZE"), is_vllm(_read(folder / "comm").rstrip("\n"), argv))
    except PermissionError as error:
        return error
    except OSError:
        return None


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_READ_LIMIT).decode("utf-8", "replace")


def _node_count(root: Path) -> int:
    return sum(1 for _ in (root / "sys/devices/system/node").glob("node[0-9]*"))
