"""Whose processes can be seen from here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_INITIAL: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel


def pid_namespace_initial(root: Path = Path("/")) -> bool:
    """Whether this process sees all processes of the host; False in a container without the host's pid namespace, and when it cannot be told."""
    try:
        return str((root / "proc/self/ns/pid").readlink()) == _INITIAL
    except OSError:
        return False
