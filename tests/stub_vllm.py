"""A stand-in for vLLM that reports what reached it. A shell script, because Python would change the very signals that it is to report."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Only builtins look at the shell's own descriptors and signals: a child would see, and a fork would change, something else.
_SCRIPT = r"""#!/bin/sh
if [ -n "$STUB_REPORT" ]; then
  for fd in /proc/$$/fd/*; do
    if [ -e "$fd" ] && ! [ "$fd" -ef "$0" ]; then echo "${fd##*/}" >> "$STUB_REPORT/descriptors"; fi
  done
  while read -r key value; do
    case "$key" in SigIgn:|SigBlk:) echo "$value" >> "$STUB_REPORT/${key%:}";; esac
  done < /proc/$$/status
  echo "$$" > "$STUB_REPORT/pid"
  umask > "$STUB_REPORT/umask"
  pwd -P > "$STUB_REPORT/folder"
  cat /proc/$$/cmdline > "$STUB_REPORT/argv"
  cat /proc/$$/environ > "$STUB_REPORT/environ"
fi
echo "stub vllm"
if [ -n "$STUB_SIGNAL" ]; then kill -s "$STUB_SIGNAL" $$; fi
exit "${STUB_EXIT:-0}"
"""


_OF_THE_C_LIBRARY: Final = frozenset(range(32, signal.SIGRTMIN))


@dataclass(frozen=True, slots=True)
class Report:
    """What reached the stub: argv from its own path on, the environment as NAME=VALUE in order, signal sets as numbers.

    Without the C library's own signals below the first real-time one: whoever started the tests may have left them ignored (make does).
    """

    pid: int
    argv: tuple[bytes, ...]
    environ: tuple[bytes, ...]
    descriptors: frozenset[int]
    ignored: frozenset[int]
    blocked: frozenset[int]
    umask: int
    folder: Path


def write_stub(folder: Path, name: str = "vllm") -> Path:
    """An executable stub. Set STUB_REPORT to an empty folder to get a report there, STUB_EXIT to a status or STUB_SIGNAL to a name (TERM) to end so."""
    stub = folder / name
    stub.write_text(_SCRIPT)
    stub.chmod(0o755)
    return stub


def read_report(folder: Path) -> Report:
    """What the stub wrote to STUB_REPORT."""

    def text(name: str) -> str:
        return (folder / name).read_text().strip()

    def entries(name: str) -> tuple[bytes, ...]:
        return tuple((folder / name).read_bytes().split(b"\0")[:-1])

    def signals(name: str) -> frozenset[int]:
        mask = int(text(name), 16)
        return frozenset(number for number in range(1, 65) if mask >> (number - 1) & 1) - _OF_THE_C_LIBRARY

    return Report(
        pid=int(text("pid")),
        argv=entries("argv")[1:],
        environ=entries("environ"),
        descriptors=frozenset(map(int, text("descriptors").split())),
        ignored=signals("SigIgn"),
        blocked=signals("SigBlk"),
        umask=int(text("umask"), 8),
        folder=Path(text("folder")),
    )
