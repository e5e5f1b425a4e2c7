"""Real holders named by the shipped command: of another user, behind a pid namespace, in a unit of a booted systemd, in a podman container."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from guard_process import NEIGHBOUR, Host
from other_worlds import booted_systemd, container, wait_for
from standin_driver import Card, Listed

from vllm_guard.host.pid_namespace import pid_namespace_initial

T = TypeVar("T")

CONSOLE: Final = {"VLLM_GUARD_LOG_FORMAT": "console"}
PID_NAMESPACE: Final = ("unshare", "--fork", "--pid", "--mount-proc", *(() if os.geteuid() == 0 else ("--map-root-user",)))


def holder(host: Host, pid: int, **options: Any) -> dict[str, Any]:
    """What the document says of this pid, which holds 50,000 MiB of a card."""
    host.cards(Card(free_mib=30_000, processes=(Listed(pid, 50_000),)))
    (process,) = host.check("--guard-json", environ=CONSOLE, **options).document["devices"][0]["processes"]
    assert isinstance(process, dict)
    return process


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of somebody else")
def test_a_process_of_another_user_is_named(host: Host) -> None:
    """With its user and two words of its command line."""
    with subprocess.Popen(["sleep", "61.8"], user=65534) as process:
        found = holder(host, process.pid)
        process.kill()

    assert ("sleep", "sleep 61.8", False, None) == tuple(found[key] for key in ("name", "command", "vllm", "end_command"))
    assert found["user"] in {"nobody", "65534"}


@pytest.mark.parametrize("title", ["evil\x1b]0;owned\x07\x1b[2J", "evil\nvllm-guard: launch: forged", "evil\r\u202e\u2028"])
def test_a_title_reaches_no_terminal(host: Host, title: str) -> None:
    """Whatever a process calls itself, on the screen it stays on its line and moves nothing."""
    with subprocess.Popen([title, "61.8"], executable=shutil.which("sleep")) as process:
        wait_for(lambda: bool(Path(f"/proc/{process.pid}/cmdline").read_bytes()))
        host.cards(Card(free_mib=300, processes=(Listed(process.pid, 80_000),)))
        ended = host.check(environ=CONSOLE)
        process.kill()

    assert all(line.isprintable() for line in ended.lines)
    assert 1 == sum(line.startswith("vllm-guard: ") for line in ended.lines)
    assert any("evil" in line for line in ended.lines)


def test_behind_a_pid_namespace_nobody_is_accused(host: Host) -> None:
    """A container without the host's pids sees used memory and no holders, or pids that mean nothing there: it says so, and what to do."""
    wrapper = (*PID_NAMESPACE, "--")
    if os.geteuid() != 0 and subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("only root may make a PID namespace here (a chroot, a container)")
    host.cards(Card(free_mib=300, processes=(Listed(NEIGHBOUR, 80_000),)))
    ended = host.check("--guard-json", environ=CONSOLE, wrapper=wrapper)
    (process,) = ended.document["devices"][0]["processes"]
    host.cards(Card(free_mib=300))
    empty = host.check(environ=CONSOLE, wrapper=wrapper)

    assert (75, 75) == (ended.code, empty.code)
    assert ("unknown", None, None, False, False) == tuple(process[key] for key in ("name", "user", "command", "orphan", "vllm"))
    assert ["holders_incomplete"] == [warning["code"] for warning in ended.document["warnings"]]
    assert any("processes outside this container cannot be named from here: start it with --pid=host" in line for line in empty.lines)


@pytest.mark.skipif(not pid_namespace_initial(), reason="in a container no command is given")
def test_an_orphan_is_named_with_its_end(host: Host) -> None:
    """Its server is gone and an init has inherited it: the fix is the command that ends it."""
    with _orphaned("VLLM::EngineCore") as engine:
        found = holder(host, engine)
        host.cards(Card(free_mib=300, processes=(Listed(engine, 80_000),)))
        lines = host.check(environ=CONSOLE).lines

    assert (True, True, f"kill {engine}") == tuple(found[key] for key in ("vllm", "orphan", "end_command"))
    assert f"  fix: end the orphaned engine: kill {engine} (frees 80000 MiB)" in lines


_ORPHAN: Final = """
import os, sys
pid = os.fork()
if pid:
    print(pid, flush=True)
    os._exit(0)
for stream in (1, 2):  # whoever waits for the end of the pipes need not wait for it
    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
os.execvp("sleep", [sys.argv[1], "61.8"])
"""


@contextmanager
def _orphaned(title: str) -> Iterator[int]:
    """The pid of a sleeping process with this title whose parent is gone."""
    pid = int(subprocess.run([sys.executable, "-S", "-c", _ORPHAN, title], check=True, capture_output=True, text=True).stdout)
    try:
        wait_for(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title.encode()))
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_unit_of_systemd_is_named(host: Host) -> None:
    """A service of a booted systemd, seen from the host."""
    with booted_systemd() as inside:
        subprocess.run([*inside, "systemd-run", "--quiet", "--unit=vllm@qwen.service", "sleep", "61.81"], check=True)
        pid = wait_for(lambda: _pid_of("sleep", "61.81"))
        assert pid is not None
        found = holder(host, pid)

    assert ("vllm@qwen.service", None) == (found["unit"], found["container"])


@pytest.mark.slow
def test_a_podman_container_is_named(host: Host) -> None:
    """By runtime and the ID that podman prints."""
    with container() as name:
        assert name, "podman did not start it, see stderr"
        pid = wait_for(lambda: _pid_of("sleep", "61.82"))
        assert pid is not None
        found = holder(host, pid)

    assert (f"podman {name[:12]}", None) == (found["container"], found["unit"])


def _pid_of(*argv: str) -> int | None:
    """The process with exactly this command line, as this pid namespace numbers it."""
    wanted = "".join(f"{word}\0" for word in argv).encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cmdline").read_bytes().rpartition(b"/")[2] == wanted:
                return int(folder.name)
    return None
