"""Who a pid is: name, user, age, where it belongs, and whether it is a vLLM process that has lost its parent. Reads /proc through psutil."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Final, TypeVar

import psutil

from vllm_guard.command.mask import name_of
from vllm_guard.facts import GpuProcess
from vllm_guard.host.cgroups import read_place
from vllm_guard.host.lineage import Family, ReadKin, find_family, read_kin
from vllm_guard.host.pid_namespace import pid_namespace_initial
from vllm_guard.host.printable import printable
from vllm_guard.host.titles import is_engine, is_vllm

T = TypeVar("T")

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


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
    container: str | None = None
    unit: str | None = None
    server: str | None = None
    end_command: str | None = None

    def of(self, process: GpuProcess) -> GpuProcess:
        """The process as it is listed, described."""
        # not asdict, which copies deeply: three times the price
        return replace(process, **{each.name: getattr(self, each.name) for each in fields(self)})


def read_processes(pids: Iterable[int]) -> Mapping[int, ProcessFacts]:
    """Each pid described; never raises for one that has vanished, is hidden or belongs to somebody else.

    `exiting` is said of a zombie and of a pid that no longer exists although all pids of the host are seen from here.
    """
    world = _World(pid_namespace_initial(), time.clock_gettime(time.CLOCK_BOOTTIME), cache(read_kin))
    return {pid: _read_process(pid, world) for pid in pids}


@dataclass(frozen=True, slots=True)
class _World:
    """What one pass over the pids shares. `read` remembers parents: all workers of an engine have the same."""

    initial: bool
    uptime_seconds: float
    read: ReadKin


def _read_process(pid: int, world: _World) -> ProcessFacts:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return _describe(process, world)
    except (psutil.Error, OSError):
        return ProcessFacts("unknown", exiting=world.initial and _is_gone(pid))


def _is_gone(pid: int) -> bool:
    """Whether there is no such process; one that /proc hides (hidepid, ProtectProc) still answers "not permitted" to signal 0."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _describe(process: psutil.Process, world: _World) -> ProcessFacts:
    name = process.name()
    argv = _readable(process.cmdline) or []
    uids = _readable(process.uids)
    place, kin = read_place(process.pid), world.read(process.pid)
    family = _read_family(process.pid, world) if is_engine(name, argv) else Family()
    return ProcessFacts(
        name=printable(name),
        user=None if uids is None else _user_name(uids.real),
        command=(printable(name_of(argv)) or None) if argv else None,
        # not create_time: for each process it reads the whole of /proc/stat, which grows with the processors and interrupts of the machine
        age_seconds=None if kin is None else max(0.0, world.uptime_seconds - kin.started_ticks / _TICKS_PER_SECOND),
        vllm=is_vllm(name, argv),
        orphan=family.orphan,
        exiting=process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD},
        container=place.container,
        unit=place.unit,
        server=family.server,
        end_command=family.end_command,
    )


def _read_family(pid: int, world: _World) -> Family:
    kin = world.read(pid)
    return Family() if kin is None else find_family(kin, world.read, read_kin, initial=world.initial)


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
