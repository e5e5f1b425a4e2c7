"""Where a process belongs by its cgroups: a container, a Kubernetes pod, a systemd unit, a SLURM job. The names are what the runtimes write by default."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path("/")
_READ_LIMIT: Final = 1 << 16
_SHORT: Final = 12  # how docker, podman and crictl print an ID
_ID: Final = r"[0-9a-f]{64}"
# systemd escapes the pod's UID with underscores; a static pod's is a plain hash.
_POD: Final = re.compile(r"kubepods[^/]*?[-/](?:[a-z]+/)?pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})")
_IN_POD: Final = re.compile(rf"(?:[-/:]|^)({_ID})(?![0-9a-f])")
_RUNTIMES: Final = (
    ("docker", re.compile(rf"(?:^|/)docker[-/]({_ID})(?:\.scope)?(?:/|$)")),
    ("podman", re.compile(rf"(?:^|/)libpod-(?:payload-)?({_ID})(?:\.scope)?(?:/|$)")),
    ("containerd", re.compile(rf"(?:^|[/:])(?:cri-containerd|nerdctl)[-:]({_ID})(?:\.scope)?(?:/|$)")),
    ("cri-o", re.compile(rf"(?:^|[/:])crio[-:]({_ID})(?:\.scope)?(?:/|$)")),
    ("container", re.compile(rf"(?:^|/)({_ID})(?:/|$)")),
)
_JOB: Final = re.compile(r"(?:^|/)(?:slurm[^/]*|[^/]*slurmstepd\.scope)(?:/[^/]+)?/job_(\d{1,12})(?:/|$)")
_UNIT: Final = re.compile(r"[A-Za-z0-9:_.\\@-]{1,110}\.(?:service|scope)")
# Units that a container's cgroup may lie in, and that say nothing about it.
_OF_RUNTIME: Final = re.compile(rf"(?:docker|containerd|crio|podman|k3s|rke2-\w+|kubelet|user@\d+)\.service|.*{_ID}\.scope")


class Place(NamedTuple):
    """What a process belongs to, as people name it: `docker 3f1c9a2e77d0`, `kubernetes pod <uid> 3f1c9a2e77d0`; `vllm@qwen.service`, `slurm job 123`."""

    container: str | None = None
    unit: str | None = None


def read_place(pid: int, root: Path = _ROOT) -> Place:
    """Where this process belongs; nothing for one that is gone, hidden, or outside the cgroup namespace of the reader."""
    try:
        descriptor = os.open(f"{root}/proc/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)  # once a process, and cheaper than a file object
    except OSError:
        return Place()
    try:
        return parse_place(os.read(descriptor, _READ_LIMIT).decode("ascii", "replace"))
    except OSError:
        return Place()
    finally:
        os.close(descriptor)


@lru_cache(maxsize=512)  # the processes of a container or unit share the text
def parse_place(text: str) -> Place:
    """The text of /proc/PID/cgroup, of v1, v2 or both. Where hierarchies differ, those of systemd count first: the others may not follow a process."""
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") > 1]
    lines.sort(key=lambda line: line[1] not in {"", "name=systemd"})
    paths = [path.removesuffix(" (deleted)") for _, _, path in lines]
    container = next(filter(None, map(_container, paths)), None)
    job = next(filter(None, map(_JOB.search, paths)), None)
    if job:
        return Place(container, f"slurm job {job[1]}")
    return Place(container, next(filter(None, (_unit(path, contained=container is not None) for path in paths)), None))


def _container(path: str) -> str | None:
    pod = _POD.search(path)
    if pod:
        inner = _IN_POD.search(path, pod.end())
        return f"kubernetes pod {pod[1].replace('_', '-')}" + (f" {inner[1][:_SHORT]}" if inner else "")
    return next((f"{name} {match[1][:_SHORT]}" for name, pattern in _RUNTIMES if (match := pattern.search(path))), None)


def _unit(path: str, *, contained: bool) -> str | None:
    """The outermost unit of a path; below a user's manager that manager's own unit. A pod's runtime is not where the pod belongs."""
    if _POD.search(path):
        return None
    units = [part for part in path.split("/") if _UNIT.fullmatch(part)]
    if contained:
        units = [unit for unit in units if not _OF_RUNTIME.fullmatch(unit)]
    if len(units) > 1 and units[0].startswith("user@"):
        return units[1]
    return units[0] if units else None
