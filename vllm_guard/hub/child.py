"""Work that may hang anywhere (a name server, a connection, a server that drips): done in a child process, which a deadline ends."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NoReturn

Tell = Callable[[str], None]

_PART_BYTES: Final = 4096
_ORPHAN_SECONDS: Final = 1.0


def told_within(seconds: float, work: Callable[[Tell], None], environ: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    """The lines that `work` told, and whether it was over in time. The child is gone when this returns, and nothing of this process has changed.

    A child, because what the libraries of `work` print, leave in the environment or wait for must not reach vLLM; `environ` is the child's own.
    Raises OSError where there can be no child.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid == 0:
        _be_the_child(work, writer, seconds, environ)
    os.close(writer)
    try:
        data, in_time = _read(reader, time.monotonic() + seconds)
    finally:
        os.close(reader)
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return tuple(data.decode("utf-8", "replace").splitlines()), in_time


def _read(reader: int, until: float) -> tuple[bytes, bool]:
    """What came until the child closed its end, and True; or until the time was over, and False."""
    data = b""
    while (left := until - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        part = os.read(reader, _PART_BYTES)
        if not part:
            return data, True
        data += part
    return data, False


def _be_the_child(work: Callable[[Tell], None], writer: int, seconds: float, environ: Mapping[str, str]) -> NoReturn:
    """Works and ends. Should its parent die before, the kernel ends it soon after the deadline."""
    with suppress(BaseException):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, seconds + _ORPHAN_SECONDS)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        own = dict(environ)  # it may be os.environ itself
        os.environ.clear()
        os.environ.update(own)
        work(lambda line: _tell(writer, line))
    os._exit(0)


def _tell(writer: int, line: str) -> None:
    os.write(writer, line.encode("utf-8", "replace") + b"\n")
