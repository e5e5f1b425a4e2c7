"""Who a pid is: name, user, age, and whether it is a vLLM process that has lost its parent. Reads /proc through psutil."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

import psutil

from vllm_guard.command.mask import name_of
from vllm_guard.facts import GpuProcess

T = TypeVar("T")

_INITIAL_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel
_TEXT_LIMIT: Final = 120
_GENERATIONS: Final = 8
# Titles that vLLM gives its processes (utils/system_utils.py set_process_title); /proc/PID/comm cuts them at 15 characters.
_TITLE: Final = re.compile(r"VLLM::|EngineCore|VllmWorker")
_ENGINE: Final = re.compile(r"VLLM::(?:EngineCor|Worker)|EngineCore|VllmWorker")
# Programs that inherit processes whose parent died, and that never start an engine themselves: only a Python process does.
_REAPER: Final = re.compile(
    r"(?:systemd|init|tini|dumb-init|docker-init|catatonit|podman-init|pause|sh|bash|dash|ash|busybox|sleep|tail|conmon|slurmstepd|s6-svscan|runsvdir"
    r"|containerd-shim.*)"
)


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What is known of a pid; `None` is "cannot be read from here". `name` is "unknown" for a pid that is not visible."""

    name: str
    user: str | None = None
    command: str | None = None
    age_seconds: float | None = None
    vllm: bool = False
    orphan: bool = False
    exiting: bool = False

    def of(self, process: GpuProcess) -> GpuProcess:
        """The process as NVML lists it, described."""
        return replace(
            process,
            name=self.name,
            user=self.user,
            command=self.command,
            age_seconds=self.age_seconds,
            vllm=self.vllm,
            orphan=self.orphan,
            exiting=self.exiting,
        )


def pid_namespace_initial(root: Path = Path("/")) -> bool:
    """Whether this process sees all processes of the host; False in a container without the host's pid namespace, and when it cannot be told."""
    try:
        return str((root / "proc/self/ns/pid").readlink()) == _INITIAL_NAMESPACE
    except OSError:
        return False


def printable(text: str) -> str:
    """The text on one line without control characters, escapes or broken encoding, at most 120 characters."""
    return "".join(character if character.isprintable() else "?" for character in text[:_TEXT_LIMIT])


def read_processes(pids: Iterable[int]) -> Mapping[int, ProcessFacts]:
    """Each pid described; never raises for one that has vanished, is hidden or belongs to somebody else.

    `exiting` is said of a zombie and of a pid that no longer exists although all pids of the host are seen from here.
    """
    initial, now_seconds = pid_namespace_initial(), time.time()
    return {pid: _read_process(pid, initial, now_seconds) for pid in pids}


def _read_process(pid: int, initial: bool, now_seconds: float) -> ProcessFacts:  # noqa: FBT001 - a fact, not an option
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return _describe(process, initial, now_seconds)
    except (psutil.Error, OSError):
        return ProcessFacts("unknown", exiting=initial and _is_gone(pid))


def _is_gone(pid: int) -> bool:
    """Whether there is no such process; one that /proc hides (hidepid, ProtectProc) still answers "not permitted" to signal 0."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _describe(process: psutil.Process, initial: bool, now_seconds: float) -> ProcessFacts:  # noqa: FBT001 - as above
    name = process.name()
    argv = _readable(process.cmdline) or []
    started = _readable(process.create_time)
    uids = _readable(process.uids)
    engine = _is_engine(name, argv)
    return ProcessFacts(
        name=printable(name),
        user=None if uids is None else _user_name(uids.real),
        command=(printable(name_of(argv)) or None) if argv else None,
        age_seconds=None if started is None else max(0.0, now_seconds - started),
        vllm=engine or _is_vllm(name, argv),
        orphan=engine and _has_lost_its_parent(process, initial),
        exiting=process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD},
    )


def _readable(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (psutil.AccessDenied, psutil.ZombieProcess, OSError):
        return None


@lru_cache(maxsize=256)
def _user_name(uid: int) -> str:
    try:
        return printable(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)


def _is_engine(name: str, argv: Sequence[str]) -> bool:
    return any(_ENGINE.match(title) for title in (name, *argv[:1]))


def _is_vllm(name: str, argv: Sequence[str]) -> bool:
    """A vLLM title, `vllm serve` behind any interpreter, or a module of vllm.entrypoints."""
    if any(_TITLE.match(title) for title in (name, *argv[:1])):
        return True
    return any(
        (second == "serve" and os.path.basename(first) == "vllm")  # noqa: PTH119 - a word of a foreign argv, not a path of ours
        or (first == "-m" and second.startswith("vllm.entrypoints"))
        for first, second in pairwise(argv[:8])
    )


def _has_lost_its_parent(process: psutil.Process, initial: bool) -> bool:  # noqa: FBT001 - as above
    """Whether the engine that this process belongs to was inherited by an init or subreaper: its API server is gone.

    A worker's parent is its engine, so the line of engines is followed up. The host's pid 1 starts no engine, a container's may (a script that uses
    vllm.LLM). An engine below any other program (such a script, Ray) is not an orphan, nor is one whose parent cannot be seen.
    """
    for _ in range(_GENERATIONS):
        try:
            parent = psutil.Process(process.ppid())
            name = parent.name()
            engine = _is_engine(name, _readable(parent.cmdline) or [])
        except (psutil.Error, OSError):
            return False
        if not engine:
            return (initial and parent.pid == 1) or _REAPER.fullmatch(name) is not None
        process = parent
    return False
