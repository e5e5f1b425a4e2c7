"""Prints its own descriptors from 3 up as JSON; `descriptors.py shut|open UUID` reads NVML first, prints them then too, and becomes the plain form by exec."""

from __future__ import annotations

import fcntl
import json
import os
import sys


def open_descriptors() -> list[dict[str, object]]:
    """Number, target, and whether exec closes it."""
    found = []
    for name in sorted(os.listdir("/proc/self/fd"), key=int):  # noqa: PTH208 - plain names are wanted
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - no path: pipes and sockets too
            closes = bool(fcntl.fcntl(int(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC)
        except OSError:
            continue  # the folder that was just read
        if int(name) > 2:  # noqa: PLR2004 - stdin, stdout, stderr
            found.append({"fd": int(name), "target": target, "closed_by_exec": closes})
    return found


def main() -> None:
    """One line, or one before and one after exec."""
    if sys.argv[1:2] in (["shut"], ["open"]):
        import pynvml  # noqa: PLC0415 - the plain form needs none

        pynvml.nvmlInit()
        pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(sys.argv[2]))
        if sys.argv[1] == "shut":
            pynvml.nvmlShutdown()
        sys.stdout.write(json.dumps(open_descriptors()) + "\n")
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, __file__])  # noqa: S606 - exec is what is looked at
    sys.stdout.write(json.dumps(open_descriptors()) + "\n")


if __name__ == "__main__":
    main()
