"""The line of parents of a vLLM engine: its server, or that the server is gone, and then the command that ends the engine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vllm_guard.command.mask import name_of
from vllm_guard.host.titles import is_engine, is_vllm, server_name

_ROOT: Final = Path("/")
_READ_LIMIT: Final = 1 << 14
_GENERATIONS: Final = 8
# Programs that inherit processes whose parent died, and that never start an engine themselves: only a Python process does.
_REAPER: Final = re.compile(
    r"(?:systemd|init|tini|dumb-init|docker-init|catatonit|podman-init|pause|sh|bash|dash|ash|busybox|sleep|tail|conmon|slurmstepd|s6-svscan|runsvdir"
    r"|containerd-shim.*)"
)
_STAT: Final = re.compile(r"\d+ \((.*)\) \S (\d+)(?: \S+){17} (\d+) .*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Kin:
    """A process in a line of parents. Two readings are equal only when pid, title, start and parent are the same."""

    pid: int
    parent: int
    name: str
    argv: tuple[str, ...]
    started_ticks: int

    @property
    def is_engine(self) -> bool:
        """Whether it is an engine or a worker."""
        return is_engine(self.name, self.argv)


@dataclass(frozen=True, slots=True)
class Family:
    """Whom an engine belongs to. `end_command` ends the whole family of an orphan: workers go with their engine."""

    server: str | None = None
    orphan: bool = False
    end_command: str | None = None


ReadKin = Callable[[int], Kin | None]


def read_kin(pid: int, root: Path = _ROOT) -> Kin | None:
    """The process of this pid, None when it is gone or hidden; argv is empty for one that has ended and for a command line that is hidden."""
    folder = f"{root}/proc/{pid}"
    stat = _STAT.fullmatch(_read(f"{folder}/stat"))
    if stat is None:
        return None
    argv = tuple(word for word in _read(f"{folder}/cmdline").split("\0") if word)
    return Kin(pid, int(stat[2]), stat[1], argv, int(stat[3]))


def _read(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # for every process that is listed, and half the price of a file object
    except OSError:
        return ""
    try:
        return os.read(descriptor, _READ_LIMIT).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def find_family(engine: Kin, read: ReadKin, reread: ReadKin, *, initial: bool) -> Family:
    """The family of an engine or worker, through `read`, which may remember; what is to be killed is looked at again through `reread`.

    It is an orphan when an init or subreaper inherited the topmost engine of its line. The host's pid 1 starts no engine, a container's may (a script
    that uses vllm.LLM). An engine below any other program (such a script, Ray) is not an orphan, nor is one whose parent cannot be seen.
    """
    line = [engine, *_ancestors(engine, read)]
    engines = next((at for at, kin in enumerate(line) if not kin.is_engine), len(line))
    if engines == len(line):
        return Family()
    parent, top = line[engines], line[engines - 1]
    if not (initial and parent.pid == 1) and _REAPER.fullmatch(parent.name) is None:
        return Family(server=_server(line[engines:]))
    same = initial and is_engine("", top.argv) and all(reread(kin.pid) == kin for kin in line[: engines + 1])
    return Family(orphan=True, end_command=f"kill {top.pid}" if same else None)


def _ancestors(kin: Kin, read: ReadKin) -> Iterator[Kin]:
    """The parents that can be seen, nearest first."""
    for _ in range(_GENERATIONS):
        parent = read(kin.parent)
        if parent is None:
            return
        yield parent
        kin = parent


def _server(ancestors: list[Kin]) -> str | None:
    """The command that started the server, else the nearest process with a title of vLLM."""
    for kin in ancestors:
        name = server_name(kin.argv)
        if name is not None:
            return f"pid {kin.pid} {name}"
    return next((f"pid {kin.pid} {name_of(kin.argv[:1])}" for kin in ancestors if is_vllm(kin.name, kin.argv)), None)
