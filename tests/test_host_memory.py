"""Host memory from trees of files as kernels show them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from vllm_guard.facts import NumaNode
from vllm_guard.host.memory import HostMemory, read_host, read_host_memory
from vllm_guard.units import GIB, KIB, MIB

NODE = "sys/devices/system/node"
CGROUP = "sys/fs/cgroup"


def meminfo(*, total_mib: int, free_mib: int, node: int | None = None, available_mib: int | None = None) -> str:
    """A meminfo file whose page cache gives 300 MiB back and whose slab 4 MiB."""
    sizes = {"MemTotal": total_mib, "MemFree": free_mib, "Active(file)": 100, "Inactive(file)": 200, "SReclaimable": 4, "Active(anon)": 7000}
    if available_mib is not None:
        sizes["MemAvailable"] = available_mib
    prefix = "" if node is None else f"Node {node} "
    return "".join(f"{prefix}{name}:    {mib * KIB} kB\n" for name, mib in sizes.items()) + f"{prefix}HugePages_Total:     0\n"


def two_nodes(tmp_path: Path, **more: str) -> Path:
    """A machine of two nodes of 8 and 16 GiB with two processors each, and files by name."""
    files = {
        "proc/meminfo": meminfo(total_mib=24576, free_mib=9000, available_mib=10000),
        "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1\n",
        f"{NODE}/node0/meminfo": meminfo(total_mib=8192, free_mib=3000, node=0),
        f"{NODE}/node0/cpulist": "0-1\n",
        f"{NODE}/node1/meminfo": meminfo(total_mib=16384, free_mib=6000, node=1),
        f"{NODE}/node1/cpulist": "2,3\n",
    }
    return tree(tmp_path, {**files, **more})


def tree(tmp_path: Path, files: Mapping[str, str]) -> Path:
    """The files under a root of their own."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


FIRST = NumaNode(0, 8192 * MIB, 3304 * MIB)
SECOND = NumaNode(1, 16384 * MIB, 6304 * MIB)


def test_each_node_counts_what_the_kernel_gives_back(tmp_path: Path) -> None:
    """Free memory, page cache and reclaimable slab, in node order, and the machine's own figures."""
    host = read_host({}, two_nodes(tmp_path))
    assert (FIRST, SECOND) == host.nodes
    assert (24576 * MIB, 10000 * MIB, None) == (host.memory_total_bytes, host.memory_available_bytes, host.cgroup_limit_bytes)


@pytest.mark.parametrize(
    ("status", "environment", "expected"),
    [
        pytest.param("Mems_allowed_list:\t1\nCpus_allowed_list:\t0-3\n", {}, (SECOND,), id="a cpuset that allows one node"),
        pytest.param("Mems_allowed_list:\t0-1\nCpus_allowed_list:\t3\n", {}, (SECOND,), id="an affinity to the processors of one node"),
        pytest.param("Mems_allowed_list:\t0-1\n", {}, (FIRST, SECOND), id="an unknown affinity"),
        pytest.param("", {}, (FIRST,), id="a hidden status is node 0"),
        pytest.param(None, {"CPU_VISIBLE_MEMORY_NODES": "1"}, (SECOND,), id="vLLM's variable picks a node"),
        pytest.param(None, {"CPU_VISIBLE_MEMORY_NODES": "1,0"}, (SECOND, FIRST), id="vLLM's variable sets the order"),
        pytest.param(None, {"CPU_VISIBLE_MEMORY_NODES": ""}, (FIRST, SECOND), id="an empty variable is none"),
        pytest.param(None, {"CPU_VISIBLE_MEMORY_NODES": "1,7"}, (SECOND,), id="a node that is not there"),
        pytest.param(None, {"CPU_VISIBLE_MEMORY_NODES": "x"}, (), id="a variable that vLLM cannot read either"),
        pytest.param(None, {"CPU_VISIBLE_MEMORY_NODES": "1,1"}, (SECOND,), id="a node that is named twice"),
        pytest.param(None, {"VLLM_CPU_OMP_THREADS_BIND": "2,3"}, (SECOND,), id="threads bound to one node"),
        pytest.param(None, {"VLLM_CPU_OMP_THREADS_BIND": "3|0-1"}, (SECOND, FIRST), id="threads bound rank by rank"),
        pytest.param(None, {"VLLM_CPU_OMP_THREADS_BIND": "3,1"}, (FIRST,), id="threads bound to both nodes: the first counts"),
        pytest.param(None, {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}, (FIRST,), id="two ranks bound to one node"),
        pytest.param(None, {"VLLM_CPU_OMP_THREADS_BIND": "auto"}, (FIRST, SECOND), id="threads bound by vLLM"),
        pytest.param(None, {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}, (FIRST, SECOND), id="threads not bound"),
        pytest.param(None, {"VLLM_CPU_OMP_THREADS_BIND": "64-95"}, (FIRST, SECOND), id="threads bound to processors that are not there"),
        pytest.param(
            None, {"VLLM_CPU_OMP_THREADS_BIND": "0", "CPU_VISIBLE_MEMORY_NODES": "1"}, (SECOND,), id="threads bound beside the memory that may be used"
        ),
        pytest.param(None, {"CPU_VISIBLE_MEMORY_NODES": "1", "VLLM_CPU_SIM_MULTI_NUMA": "1"}, (FIRST, SECOND), id="simulated nodes switch it off"),
    ],
)
def test_nodes_are_those_that_the_ranks_may_take(tmp_path: Path, status: str | None, environment: dict[str, str], expected: tuple[NumaNode, ...]) -> None:
    """Allowed memory, then vLLM's variables, then a processor to run on."""
    files = {} if status is None else {"proc/self/status": status}
    assert expected == read_host(environment, two_nodes(tmp_path, **files)).nodes


def test_a_node_of_memory_alone_takes_no_rank(tmp_path: Path) -> None:
    """Memory expanders and GPU memory are nodes without processors."""
    assert (SECOND,) == read_host({}, two_nodes(tmp_path, **{f"{NODE}/node0/cpulist": "\n"})).nodes


@pytest.mark.parametrize(
    ("files", "limit_bytes", "nodes"),
    [
        pytest.param({"memory.max": "max\n", "memory.current": "5\n"}, None, (FIRST, SECOND), id="v2 without a limit"),
        pytest.param(
            {"memory.max": f"{4 * GIB}\n", "memory.current": f"{3 * GIB}\n"},
            4 * GIB,
            (NumaNode(0, 4 * GIB, GIB), NumaNode(1, 4 * GIB, GIB)),
            id="v2 below both nodes",
        ),
        pytest.param(
            {"memory.max": f"{12 * GIB}\n", "memory.current": f"{GIB}\n"},
            12 * GIB,
            (FIRST, NumaNode(1, 12 * GIB, 6304 * MIB)),
            id="v2 between the nodes, free memory less than what the limit leaves",
        ),
        pytest.param({"memory.max": f"{64 * GIB}\n"}, 64 * GIB, (FIRST, SECOND), id="v2 above both nodes"),
        pytest.param({"memory.max": f"{GIB}\n", "memory.current": f"{2 * GIB}\n"}, GIB, (NumaNode(0, GIB, 0), NumaNode(1, GIB, 0)), id="v2 overdrawn"),
        pytest.param({"memory.max": f"{GIB}\n"}, GIB, (NumaNode(0, GIB, GIB), NumaNode(1, GIB, GIB)), id="v2 without a usage file"),
        pytest.param(
            {"memory/memory.limit_in_bytes": f"{4 * GIB}\n", "memory/memory.usage_in_bytes": f"{GIB}\n"},
            4 * GIB,
            (NumaNode(0, 4 * GIB, 3 * GIB), NumaNode(1, 4 * GIB, 3 * GIB)),
            id="v1",
        ),
        pytest.param({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None, (FIRST, SECOND), id="v1 without a limit"),
        pytest.param({"memory.max": "-1\n"}, None, (FIRST, SECOND), id="a limit that is no number of bytes"),
        pytest.param({"memory.max": "9" * 5000}, None, (FIRST, SECOND), id="a limit of five thousand digits"),
    ],
)
def test_the_cgroup_bounds_the_nodes(tmp_path: Path, files: dict[str, str], limit_bytes: int | None, nodes: tuple[NumaNode, ...]) -> None:
    """Total is at most the limit, and free at most what the limit leaves, as vLLM 0.32.0 reckons."""
    host = read_host({}, two_nodes(tmp_path, **{f"{CGROUP}/{name}": text for name, text in files.items()}))
    assert (limit_bytes, nodes) == (host.cgroup_limit_bytes, host.nodes)


def test_a_machine_without_nodes_is_node_0(tmp_path: Path) -> None:
    """Kernels without NUMA show no node files: vLLM takes the machine's figures, past the cgroup."""
    root = tree(tmp_path, {"proc/meminfo": meminfo(total_mib=4000, free_mib=900, available_mib=1000), f"{CGROUP}/memory.max": f"{GIB}\n"})
    assert (NumaNode(0, 4000 * MIB, 1000 * MIB),) == read_host({}, root).nodes


def test_a_hidden_meminfo_is_the_sum_of_the_nodes(tmp_path: Path) -> None:
    """ProcSubset=pid of systemd hides /proc/meminfo and leaves /sys."""
    root = two_nodes(tmp_path)
    (root / "proc/meminfo").unlink()
    assert HostMemory(24576 * MIB, 9608 * MIB) == read_host_memory(root)


def test_an_old_kernel_has_no_available_memory(tmp_path: Path) -> None:
    """Before Linux 3.14 it is counted from what can be given back."""
    root = tree(tmp_path, {"proc/meminfo": meminfo(total_mib=4000, free_mib=900)})
    assert HostMemory(4000 * MIB, 1204 * MIB) == read_host_memory(root)


def test_nothing_readable_is_the_kernels_own_count(tmp_path: Path) -> None:
    """With no file at all sysinfo says how many pages there are, and nothing else is claimed."""
    host = read_host({}, tmp_path)
    assert os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") == host.memory_total_bytes
    assert 0 < host.memory_available_bytes <= host.memory_total_bytes
    assert (None, False, False) == (host.cgroup_limit_bytes, host.wsl, host.pid_namespace_initial)


@pytest.mark.parametrize(
    "text", ["", "MemTotal: many kB\n", "\x00\xff" * 50_000, "MemTotal:" + "9" * 5000 + " kB\n"], ids=["empty", "words", "binary", "digits"]
)
def test_a_meminfo_of_another_kind_is_as_hidden(tmp_path: Path, text: str) -> None:
    """What cannot be understood is not counted."""
    root = two_nodes(tmp_path, **{"proc/meminfo": text})
    assert HostMemory(24576 * MIB, 9608 * MIB) == read_host_memory(root)


@pytest.mark.parametrize(
    ("name", "text", "wsl"),
    [
        pytest.param("proc/version", "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@x)\n", True, id="a kernel of WSL2"),
        pytest.param("proc/version", "Linux version 4.4.0-19041-Microsoft (x)\n", True, id="a kernel of WSL1"),
        pytest.param("dev/dxg", "", True, id="the device of WSL's GPU"),
        pytest.param("proc/version", "Linux version 6.8.0-generic (x)\n", False, id="another kernel"),
    ],
)
def test_windows_is_recognised(tmp_path: Path, name: str, text: str, *, wsl: bool) -> None:
    """Under WSL other programs' memory is not listed and a bigger margin is due."""
    assert wsl == read_host({}, tree(tmp_path, {name: text})).wsl


def test_this_host_is_read() -> None:
    """The real files give what psutil gives, and at least one node."""
    before = psutil.virtual_memory().total
    host = read_host({})
    # Some virtual machines are given memory while they run.
    assert before <= host.memory_total_bytes <= psutil.virtual_memory().total
    assert 0 < host.memory_available_bytes < host.memory_total_bytes
    assert host.nodes
    assert all(0 < node.available_bytes <= node.total_bytes for node in host.nodes)
