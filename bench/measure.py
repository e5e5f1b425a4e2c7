"""Runs the command behind this file's name once and prints its own CPU seconds and peak memory in KiB.

A process of its own, and a small one: a child's peak memory begins with that of the process which forked it.
"""

import os
import sys


def main() -> None:
    """The command gets nothing on stdin, and what it says goes nowhere."""
    pid = os.fork()
    if pid == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        try:
            os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - what is measured is this program and no shell
        finally:
            os._exit(127)
    _, status, usage = os.wait4(pid, 0)
    sys.stdout.write(f"{usage.ru_utime + usage.ru_stime} {usage.ru_maxrss} {os.waitstatus_to_exitcode(status)}\n")


main()
