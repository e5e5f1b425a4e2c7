"""Host memory: of the machine, of the cgroup, and of each NUMA node as the CPU build of vLLM counts it. Linux files only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vllm_guard.facts import Host, NumaNode
from vllm_guard.host.pid_namespace import pid_namespace_initial
from vllm_guard.units import KIB

_ROOT: Final = Path("/")
_READ_LIMIT: Final = 64 * KIB
_UNLIMITED: Final = 1 << 62  # cgroup v1 says "no limit" with a number near 2**63
# /proc/meminfo, and the same after "Node 0" in /sys/devices/system/node/node0/meminfo.
_MEMINFO_LINE: Final = re.compile(r"^(?:Node +\d+ +)?([\w()]+): +(\d{1,15}) kB$", re.MULTILINE)
# What the kernel gives back at once, with MemFree (vllm/utils/cpu_resource_utils.py get_memory_node_info, 0.32.0).
_GIVEN_BACK: Final = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
_CGROUP_FILES: Final = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


class HostMemory(NamedTuple):
    """The kernel's MemTotal and MemAvailable."""

    total_bytes: int
    available_bytes: int


class _Cgroup(NamedTuple):
    limit_bytes: int
    used_bytes: int


def read_host(environment: Mapping[str, str], root: Path = _ROOT) -> Host:
    """The machine around the cards, in bytes. Unreadable files never raise: without /proc/meminfo the nodes, else sysinfo, stand in.

    `nodes` are in the order in which vLLM's CPU ranks take them, `CPU_VISIBLE_MEMORY_NODES` of `environment` included. `cgroup_limit_bytes` is what vLLM
    sees: the limit of the cgroup that is mounted as /sys/fs/cgroup, a container's own.
    """
    memory, cgroup = read_host_memory(root), _read_cgroup(root)
    return Host(
        memory_total_bytes=memory.total_bytes,
        memory_available_bytes=memory.available_bytes,
        cgroup_limit_bytes=cgroup and cgroup.limit_bytes,
        wsl="microsoft" in _read(root / "proc/version").lower() or (root / "dev/dxg").exists(),
        pid_namespace_initial=pid_namespace_initial(root),
        nodes=tuple(_read_node(root, node, memory, cgroup) for node in _worker_nodes(environment, root)),
    )


def read_host_memory(root: Path = _ROOT) -> HostMemory:
    """Total and available memory of the machine in bytes; available is rounded down where the kernel hides /proc/meminfo."""
    found = _parse_meminfo(_read(root / "proc/meminfo"))
    if "MemTotal" in found:
        return HostMemory(found["MemTotal"], found.get("MemAvailable", _given_back(found)))
    # ProcSubset=pid hides /proc/meminfo, not /sys.
    nodes = [_parse_meminfo(_read(path / "meminfo")) for path in _node_folders(root).values()]
    if nodes:
        return HostMemory(sum(node.get("MemTotal", 0) for node in nodes), sum(map(_given_back, nodes)))
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return HostMemory(os.sysconf("SC_PHYS_PAGES") * page_bytes, os.sysconf("SC_AVPHYS_PAGES") * page_bytes)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_READ_LIMIT).decode("ascii", "replace")
    except OSError:
        return ""


def _read_number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if re.fullmatch(r"\d{1,20}", text, re.ASCII) else None


def _parse_meminfo(text: str) -> dict[str, int]:
    return {name: int(kib) * KIB for name, kib in _MEMINFO_LINE.findall(text)}


def _given_back(meminfo: Mapping[str, int]) -> int:
    return sum(meminfo.get(name, 0) for name in _GIVEN_BACK)


def _read_cgroup(root: Path) -> _Cgroup | None:
    """Limit and usage of the cgroup mounted at /sys/fs/cgroup, v2 before v1, None without a limit: exactly the files that vLLM reads."""
    folder = root / "sys/fs/cgroup"
    for limit_file, usage_file in _CGROUP_FILES:
        limit_bytes = _read_number(folder / limit_file)
        if limit_bytes is not None:
            return _Cgroup(limit_bytes, _read_number(folder / usage_file) or 0) if limit_bytes < _UNLIMITED else None
    return None


def _node_folders(root: Path) -> dict[int, Path]:
    try:
        folders = [path for path in (root / "sys/devices/system/node").iterdir() if re.fullmatch(r"node\d{1,4}", path.name, re.ASCII)]
    except OSError:
        return {}
    return dict(sorted((int(path.name[4:]), path) for path in folders))


def _worker_nodes(environment: Mapping[str, str], root: Path) -> list[int]:
    """The nodes that vLLM's ranks take, in their order: a worker counts the node of its first CPU (v1/worker/cpu_worker.py), if it may use that node's
    memory, and VLLM_CPU_OMP_THREADS_BIND gives each rank its CPUs (utils/ompmultiprocessing.py, 0.32.0), else each takes a node that has CPUs for it.
    """
    folders = _node_folders(root)
    status = _read(root / "proc/self/status")
    may_use = _member_of(_status_list(status, "Mems_allowed_list"))
    may_run = _parse_ranges(_status_list(status, "Cpus_allowed_list"))
    allowed = [node for node in folders if may_use(node)] or [0]
    wanted = environment.get("CPU_VISIBLE_MEMORY_NODES", "")
    if wanted and "VLLM_CPU_SIM_MULTI_NUMA" not in environment:
        named = [int(word) for word in wanted.split(",") if re.fullmatch(r"\s*\d{1,4}\s*", word, re.ASCII)]
        allowed = [node for node in named if node in allowed]
    cpus = {node: _parse_ranges(_read(folders[node] / "cpulist")) for node in folders}
    with_cpu = [node for node in allowed if node in folders and _overlap(cpus[node], may_run)]
    bound = [_node_of_first(_parse_ranges(each), cpus) for each in environment.get("VLLM_CPU_OMP_THREADS_BIND", "").split("|")]
    taken = [node if node in allowed else allowed[0] for node in bound if node is not None] if allowed else []
    return list(dict.fromkeys(taken or with_cpu or allowed))


def _node_of_first(cpus: Sequence[tuple[int, int]], by_node: Mapping[int, Sequence[tuple[int, int]]]) -> int | None:
    """The node of the lowest of these CPUs; None where there are none (`auto`, `nobind`) or no node has it."""
    first = min((first for first, _ in cpus), default=-1)
    return next((node for node, ranges in by_node.items() if _overlap(ranges, [(first, first)])), None)


def _status_list(status: str, name: str) -> str:
    match = re.search(rf"^{name}:\s*(\S*)$", status, re.MULTILINE)
    return match[1] if match else ""


def _parse_ranges(text: str) -> list[tuple[int, int]]:
    """First and last of each part of a kernel list such as `0-3,8`."""
    return [(int(first), int(last or first)) for first, last in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", text)]


def _member_of(text: str) -> Callable[[int], bool]:
    ranges = _parse_ranges(text)
    return lambda number: any(first <= number <= last for first, last in ranges)


def _overlap(these: Iterable[tuple[int, int]], those: Iterable[tuple[int, int]]) -> bool:
    return any(first <= other_last and other_first <= last for first, last in these for other_first, other_last in those)


def _read_node(root: Path, node: int, memory: HostMemory, cgroup: _Cgroup | None) -> NumaNode:
    """vllm/utils/cpu_resource_utils.py get_memory_node_info (0.32.0): the machine's figures, not bound by the cgroup, where there are no node files."""
    found = _parse_meminfo(_read(root / f"sys/devices/system/node/node{node}/meminfo"))
    if "MemTotal" not in found:
        return NumaNode(node, memory.total_bytes, memory.available_bytes)
    total_bytes, available_bytes = found["MemTotal"], _given_back(found)
    if cgroup is None or cgroup.limit_bytes >= total_bytes:
        return NumaNode(node, total_bytes, available_bytes)
    return NumaNode(node, cgroup.limit_bytes, max(0, min(available_bytes, cgroup.limit_bytes - cgroup.used_bytes)))
