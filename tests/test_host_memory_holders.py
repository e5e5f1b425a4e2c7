"""Who holds host memory, from a tree as the kernel shows it and from this host."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from vllm_guard.facts import Host
from vllm_guard.host import memory_holders
from vllm_guard.host.memory_holders import with_amounts, with_memory_holders
from vllm_guard.host.processes import ProcessFacts
from vllm_guard.host.reading import read_facts
from vllm_guard.units import GIB, MIB

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
HOST = Host(memory_total_bytes=10 * GIB, memory_available_bytes=5 * GIB)


@pytest.fixture(autouse=True)
def _described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is asked for is called by pid: what the tree says of them is tested elsewhere. Pid 66 has ended meanwhile."""
    monkeypatch.setattr(memory_holders, "read_processes", lambda pids: {pid: ProcessFacts("unknown" if pid == 66 else f"p{pid}") for pid in pids})


def tree(root: Path, *held: tuple[int, int, str], nodes: int = 1) -> Path:
    """A /proc of processes: pid, resident MiB and title; pid 1 is there."""
    (root / "proc/net").mkdir(parents=True)
    for node in range(nodes):
        (root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
    for pid, mib, title in [(1, 0, "init"), *held]:
        folder = root / f"proc/{pid}"
        folder.mkdir()
        (folder / "statm").write_text(f"900000 {mib * MIB // PAGE_BYTES} 10 1 0 50 0\n")
        (folder / "cmdline").write_bytes(f"{title}\0\0".encode())
        (folder / "comm").write_text(f"{title[:15]}\n")
    return root


def test_large_ones_are_listed_largest_first(tmp_path: Path) -> None:
    """From 1 % of the host's memory on: 102.4 MiB here."""
    host = with_memory_holders(HOST, tree(tmp_path, (10, 103, "a"), (11, 102, "b"), (12, 4000, "c")))

    assert [(12, "p12", 4000 * MIB), (10, "p10", 103 * MIB)] == [(each.pid, each.name, each.used_bytes) for each in host.processes]
    assert host.processes_unreadable is None


def test_at_most_eight_others_are_listed(tmp_path: Path) -> None:
    """A line each is enough to see who it is."""
    host = with_memory_holders(HOST, tree(tmp_path, *((pid, pid, "x") for pid in range(200, 220))))

    assert list(range(219, 211, -1)) == [each.pid for each in host.processes]


def test_all_of_vllm_are_listed_beside_them(tmp_path: Path) -> None:
    """However many and however small."""
    others = [(pid, pid, "x") for pid in range(200, 220)]
    workers = [(pid, 50, "VLLM::Worker_TP0") for pid in range(300, 310)]
    host = with_memory_holders(HOST, tree(tmp_path, *others, *workers))

    assert [*range(219, 211, -1), *range(300, 310)] == [each.pid for each in host.processes]


def test_neither_this_process_nor_one_that_ended_is_listed(tmp_path: Path) -> None:
    """The guard's own memory goes with it; one that vanished between listing and reading holds nothing."""
    root = tree(tmp_path, (os.getpid(), 500, "vllm"), (66, 500, "x"), (67, 500, "x"))
    (root / "proc/67/statm").unlink()

    assert () == with_memory_holders(HOST, root).processes


def test_amounts_are_unknown_on_several_nodes(tmp_path: Path) -> None:
    """A resident size does not say on which node it lies."""
    host = with_memory_holders(HOST, tree(tmp_path, (10, 300, "a"), (11, 4000, "b"), nodes=2))

    assert [(11, None), (10, None)] == [(each.pid, each.used_bytes) for each in host.processes]


def test_amounts_of_all_nodes_together_are_known(tmp_path: Path) -> None:
    """For claims: what a process holds now; one that has ended holds nothing."""
    root = tree(tmp_path, (10, 4000, "x"), (11, 3000, "y"), nodes=2)
    host = with_memory_holders(HOST, root)
    shutil.rmtree(root / "proc/11")

    assert [(10, 4000 * MIB), (11, 0)] == [(each.pid, each.used_bytes) for each in with_amounts(host, root).processes]


def test_hidden_processes_are_said_to_be_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hidepid takes pid 1 away, or denies what is in its folder."""
    root = tree(tmp_path, (10, 300, "a"))
    monkeypatch.setattr(memory_holders, "_read", _denied)
    denied = with_memory_holders(HOST, root)
    monkeypatch.undo()
    for file in (root / "proc/1").iterdir():
        file.unlink()
    (root / "proc/1").rmdir()

    assert "hidden" in (denied.processes_unreadable or "")
    assert "hidden" in (with_memory_holders(HOST, tmp_path).processes_unreadable or "")


def _denied(path: Path) -> str:
    raise PermissionError(path)


def test_a_host_without_proc_has_no_holders(tmp_path: Path) -> None:
    """No process list is no reason to fail."""
    assert () == with_memory_holders(HOST, tmp_path).processes


def test_only_the_cpu_build_looks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process with an engine's title is found however small it is; any other build does not walk /proc."""
    monkeypatch.undo()
    with subprocess.Popen(["VLLM::EngineCore", "60"], executable=shutil.which("sleep")) as process:
        # Popen comes back a moment before the kernel shows the new command line.
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
            assert process.poll() is None
        walked = read_facts("0.32.0+cpu", "cpu", {})
        other = read_facts("0.32.0+xpu", "xpu", {})
        process.kill()

    assert [("sleep", "VLLM::EngineCore 60", True)] == [(each.name, each.command, each.vllm) for each in walked.host.processes if each.pid == process.pid]
    assert () == other.host.processes
