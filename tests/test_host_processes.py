"""Real processes of this host, described: names, titles, zombies, and engines that lost their parent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from vllm_guard.facts import GpuProcess
from vllm_guard.host import processes
from vllm_guard.host.pid_namespace import pid_namespace_initial
from vllm_guard.host.printable import printable
from vllm_guard.host.processes import ProcessFacts, read_processes

SLEEP = shutil.which("sleep") or "/bin/sleep"


def read_one(pid: int) -> ProcessFacts:
    """What is known of this pid."""
    return read_processes([pid])[pid]


Start = Callable[..., int]


@pytest.fixture(name="start")
def _start() -> Iterator[Start]:
    """Starts a sleeping process with this command line, which ends with the test; gives its pid."""
    running = []

    def start(*argv: str, executable: str = SLEEP) -> int:
        process = subprocess.Popen(argv, executable=executable)
        running.append(process)
        # Popen comes back a moment before the kernel shows the new command line.
        deadline = time.monotonic() + 5
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
            assert time.monotonic() < deadline
        return process.pid

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_a_process_is_described(start: Start) -> None:
    """Name, user, masked command and age are told; nothing else is claimed."""
    known = read_one(start("sleep", "60"))
    assert known.age_seconds is not None
    assert 0 <= known.age_seconds < 60
    assert ("sleep", psutil.Process().username(), "sleep 60") == (known.name, known.user, known.command)
    assert (False, False, False) == (known.vllm, known.orphan, known.exiting)


def test_each_pid_is_described_once() -> None:
    """Every pid that was asked for is answered, whatever it is."""
    assert {os.getpid(), 2**22 + 7, 2**32 - 1} == set(read_processes([os.getpid(), 2**22 + 7, os.getpid(), 2**32 - 1]))


@pytest.mark.parametrize(("initial", "exiting"), [(True, True), (False, False)], ids=["all pids are seen", "another pid namespace"])
def test_a_vanished_process_is_exiting_only_where_all_pids_are_seen(monkeypatch: pytest.MonkeyPatch, *, initial: bool, exiting: bool) -> None:
    """In a container an unknown pid may be the host's, so it is not called gone."""
    monkeypatch.setattr(processes, "pid_namespace_initial", lambda: initial)
    process = subprocess.Popen([SLEEP, "0"])
    process.wait()
    assert ProcessFacts("unknown", exiting=exiting) == read_one(process.pid)


def test_a_hidden_process_is_unknown_and_not_gone(monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
    """With hidepid the kernel shows nothing of a process that lives."""
    pid = start("sleep", "60")

    def hidden(pid: int) -> None:
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(processes, "pid_namespace_initial", lambda: True)
    monkeypatch.setattr(psutil, "Process", hidden)
    assert ProcessFacts("unknown") == read_one(pid)


@pytest.mark.parametrize(("pid", "error"), [(1, PermissionError), (2**40, OverflowError)])
def test_a_process_that_cannot_be_signalled_is_not_gone(monkeypatch: pytest.MonkeyPatch, pid: int, error: type[Exception]) -> None:
    """Another user's process answers "not permitted", which says that it is there."""

    def refuse(pid: int, signal: int) -> None:
        raise error(pid, signal)

    monkeypatch.setattr(os, "kill", refuse)
    assert not processes._is_gone(pid)  # noqa: SLF001 - needs a second user otherwise


@pytest.mark.parametrize("error", [psutil.AccessDenied(1), psutil.ZombieProcess(1), PermissionError()], ids=["denied", "zombie", "EACCES"])
def test_a_command_line_that_is_denied_leaves_the_rest(monkeypatch: pytest.MonkeyPatch, start: Start, error: Exception) -> None:
    """ProtectProc=noaccess and other users hide the command line and show the name."""
    pid = start("sleep", "60")

    def denied(_: psutil.Process) -> list[str]:
        raise error

    monkeypatch.setattr(psutil.Process, "cmdline", denied)
    known = read_one(pid)
    assert ("sleep", None, psutil.Process().username()) == (known.name, known.command, known.user)


def test_a_zombie_is_exiting() -> None:
    """A process that ended and was not collected still counts until the driver has let go."""
    process = subprocess.Popen([SLEEP, "0"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    known = read_one(process.pid)
    process.wait()
    assert ("sleep", None, True) == (known.name, known.command, known.exiting)


@pytest.mark.parametrize(
    "title",
    [
        pytest.param("evil\x1b[31m\x1b]0;owned\x07", id="escape sequences"),
        pytest.param("evil\nvllm-guard: launch: forged", id="a forged line"),
        pytest.param("evil\r\u202e\u2028", id="carriage return, bidi override, line separator"),
        pytest.param("evil\udcff\udcfe", id="bytes that are no text"),
        pytest.param("evil" + "x" * 100_000, id="a hundred thousand letters"),
    ],
)
def test_hostile_titles_stay_on_one_short_line(start: Start, title: str) -> None:
    """What another user calls a process never reaches a terminal raw."""
    known = read_one(start(title, "60"))
    for text in (known.name, known.command or ""):
        assert text.isprintable()
        assert len(text) <= 120
    assert (known.command or "").startswith("evil")


def test_a_hostile_name_stays_on_one_line(start: Start, tmp_path: Path) -> None:
    """The kernel's name of a process is its file's name, whatever is in that."""
    program = tmp_path / "a\x1b[2J\nb"
    shutil.copy(SLEEP, program)
    known = read_one(start("evil", "60", executable=str(program)))
    assert "a?[2J?b" == known.name


def test_secrets_of_a_command_line_are_not_kept(start: Start) -> None:
    """Only the program and two words of a foreign command line are kept, masked."""
    known = read_one(start("serve --api-key sesame", "60"))
    assert (known.command or "").startswith("serve --api-key")
    assert "sesame" not in (known.command or "")


# An init whose child, the API server, starts a line of processes, parents first, and dies.
# Titles are set as setproctitle does: over the own argv, with zeros behind.
_FAMILY = textwrap.dedent(
    """
    import ctypes, os, signal, sys
    libc = ctypes.CDLL(None)
    start, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[45:47])

    def retitle(title, last=False):
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, title.encode(), len(title))
        libc.prctl(15, title.encode(), 0, 0, 0)  # PR_SET_NAME
        os.write(writing, f"{'@' * last}{os.getpid()} ".encode())

    reading, writing = os.pipe()
    reaper, *line = sys.argv[1:]
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    retitle(reaper)
    if os.fork() == 0:
        if os.fork() == 0:
            while len(line) > 1 and os.fork() == 0:
                del line[0]
            retitle(line[0], last=len(line) == 1)
            signal.pause()
        os._exit(0)
    os.wait()
    titled = ""
    while titled.count(" ") < len(line) + 1:
        titled += os.read(reading, 100).decode()
    print(titled.partition("@")[2].split()[0], flush=True)
    sys.stdin.read()
    """
)


def read_last(reaper: str, *line: str) -> ProcessFacts:
    """The last process of a line of processes whose first was inherited by an init of this name."""
    process = subprocess.Popen([sys.executable, "-S", "-c", _FAMILY, reaper, *line], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        try:
            return read_one(pid)
        finally:
            for member in psutil.Process(process.pid).children(recursive=True):
                member.kill()
            process.communicate()


def test_a_rewritten_title_is_name_and_command() -> None:
    """setproctitle leaves one word and hundreds of empty ones; the kernel keeps 15 letters."""
    known = read_last("tini", "VLLM::EngineCore")
    assert ("VLLM::EngineCore", "VLLM::EngineCore", True) == (known.name, known.command, known.vllm)


@pytest.mark.parametrize(
    ("reaper", "titles", "orphan"),
    [
        pytest.param("tini", ["VLLM::EngineCore"], True, id="an engine inherited by an init"),
        pytest.param("containerd-shim", ["VLLM::EngineCore"], True, id="an engine inherited by a container's shim"),
        pytest.param("systemd", ["VLLM::EngineCore", "VLLM::Worker_TP1"], True, id="a worker below an engine inherited by a user's systemd"),
        pytest.param("python3", ["VLLM::EngineCore"], False, id="an engine below a script that uses vllm.LLM"),
        pytest.param("raylet", ["VLLM::EngineCore"], False, id="an engine below Ray"),
        pytest.param("tini", ["VLLM::APIServer_0", "VLLM::EngineCore"], False, id="an engine whose API server lives"),
        pytest.param("tini", ["train"], False, id="not an engine"),
    ],
)
def test_an_orphan_is_an_engine_whose_server_is_gone(reaper: str, titles: list[str], *, orphan: bool) -> None:
    """Only an engine, or a worker of one, that an init or subreaper had to inherit."""
    assert orphan == read_last(reaper, *titles).orphan


def test_the_pid_namespace_is_read_from_proc(tmp_path: Path) -> None:
    """The initial namespace has a fixed number; another one, and none, are not it."""
    folder = tmp_path / "proc/self/ns"
    folder.mkdir(parents=True)
    answers = [pid_namespace_initial(tmp_path)]
    for target in ("pid:[4026531836]", "pid:[4026532181]"):
        (folder / "pid").unlink(missing_ok=True)
        (folder / "pid").symlink_to(target)
        answers.append(pid_namespace_initial(tmp_path))
    assert [False, True, False] == answers


def test_a_listed_process_keeps_what_the_driver_said() -> None:
    """The description adds to pid, kind and bytes and changes none of them."""
    listed = GpuProcess(7, "mps", "unknown", used_bytes=5)
    known = ProcessFacts("x", "root", "x y", 3.0, orphan=True, container="docker 3f1c9a2e77d0", unit="x.service", server="pid 6 vllm serve m")
    expected = GpuProcess(7, "mps", "x", "root", "x y", 5, 3.0, container="docker 3f1c9a2e77d0", unit="x.service", orphan=True, server="pid 6 vllm serve m")
    assert expected == known.of(listed)


@pytest.mark.parametrize(("text", "expected"), [("plain", "plain"), ("a\tb\x00c", "a?b?c"), ("é漢", "é漢"), ("", "")])
def test_printable_text_is_kept(text: str, expected: str) -> None:
    """Letters of any script stay; what moves a cursor goes."""
    assert expected == printable(text)
