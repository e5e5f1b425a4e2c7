"""A world where NUMA node 0 has the memory that a test wants: vLLM's CPU worker believes what the kernel says about the node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

NODE_MEMINFO: Final = "/sys/devices/system/node/node0/meminfo"

# A mount namespace of its own: the file goes over the kernel's, shared memory is private, and both end with the last process. PIDs stay the machine's.
_ENTER: Final = f'mount --bind "$0" {NODE_MEMINFO} && mount -t tmpfs tmpfs /dev/shm && exec "$@"'


def write_meminfo(path: Path, *, total_mib: int, free_mib: int) -> None:
    """The five figures that vLLM 0.32.0 reads (utils/cpu_resource_utils.py). Nothing is cache, so available = free, and it never moves by itself.

    All files have one length: one that is there is written over in one step, and whoever reads meanwhile gets a whole one.
    """
    figures = {"MemTotal": total_mib, "MemFree": free_mib, "Active(file)": 0, "Inactive(file)": 0, "SReclaimable": 0}
    with path.open("r+b" if path.exists() else "wb", buffering=0) as file:
        file.write("".join(f"Node 0 {name}: {mib * 1024:12} kB\n" for name, mib in figures.items()).encode())


def in_fake_memory(meminfo: Path, command: Sequence[str]) -> list[str]:
    """The argv that becomes `command` with that node, by exec, so the PID is the started one's. Needs root or user namespaces."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--mount", *as_root, "sh", "-c", _ENTER, str(meminfo), *command]
