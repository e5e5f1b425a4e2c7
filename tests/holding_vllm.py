"""A stand-in for vLLM that stays: it waits, alone or with a child that was forked or spawned, until it is killed; or becomes a guard once more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from guard_process import GUARD, MODEL, Host

Child = Literal["none", "fork", "spawn"]

# A shell script, because the interpreter of the tests may be closed to other users; exec keeps the pid. Python forks and spawns as vLLM does.
_SCRIPT = """#!/bin/sh
if [ -n "$HOLD_AGAIN" ]; then again=$HOLD_AGAIN; unset HOLD_AGAIN; export VLLM_GUARD_CLAIMS_DIR="$HOLD_CLAIMS"; exec "$again" "$@"; fi
if [ "$HOLD_CHILD" != none ]; then exec "$HOLD_PYTHON" -SE "$HOLD_PYTHON_SCRIPT" "$@"; fi
for word in -1 "$@"; do echo "$word"; done > "$HOLD_READY/$$.new"
mv "$HOLD_READY/$$.new" "$HOLD_READY/$$"
exec sleep 600
"""
_PYTHON_SCRIPT = """
import os, subprocess, sys, time
child = os.fork() if os.environ["HOLD_CHILD"] == "fork" else subprocess.Popen(["sleep", "600"]).pid
if child:
    ready = os.environ["HOLD_READY"] + "/" + str(os.getpid())
    with open(ready + ".new", "w") as file:
        file.write("\\n".join([str(child), *sys.argv[1:]]))
    os.rename(ready + ".new", ready)
time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class Started:
    """A guard that became the stand-in. `pid` is its pid as the stand-in sees it, `child` that of its child, or -1."""

    process: subprocess.Popen[bytes]
    pid: int
    child: int
    argv: tuple[str, ...]
    stderr: str

    @property
    def utilization(self) -> float:
        """The fraction that reached it, vLLM's default without one."""
        words = [word for each in self.argv for word in each.split("=")]
        flag = "--gpu-memory-utilization"
        return float(words[words.index(flag) + 1]) if flag in words else 0.92

    def kill(self) -> None:
        """SIGKILL to the stand-in alone."""
        self.process.kill()
        self.process.wait(10)


class Stage:
    """Starts guards in front of the stand-in on one host, and leaves no process behind."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.ready = host.folder / "ready"
        self.ready.mkdir()
        self.ready.chmod(0o777)
        stub = host.folder / "bin" / "vllm"
        stub.write_text(_SCRIPT)
        (host.folder / "hold.py").write_text(_PYTHON_SCRIPT)
        self._stderr: list[IO[bytes]] = []
        self._begun: list[subprocess.Popen[bytes]] = []

    def begin(
        self, *words: str, child: Child = "none", environ: Mapping[str, str | None] | None = None, wrapper: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """A guard on its way, in a session of its own."""
        hold: dict[str, str | None] = {
            "HOLD_CLAIMS": str(self.host.claims),
            "HOLD_CHILD": child,
            "HOLD_READY": str(self.ready),
            "HOLD_PYTHON": sys.executable,
            "HOLD_PYTHON_SCRIPT": str(self.host.folder / "hold.py"),
        }
        hold = {**hold, "VLLM_GUARD_LOG_FORMAT": "console", **(environ or {})}
        stderr = (self.host.folder / f"stderr-{len(self._begun)}").open("w+b")
        argv = [*wrapper, str(GUARD), "serve", MODEL, *words]
        process = subprocess.Popen(
            argv, env=self.host.environment(hold), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
        )
        self._stderr.append(stderr)
        self._begun.append(process)
        return process

    def started(self, process: subprocess.Popen[bytes], seconds: float = 20) -> Started | int:
        """What a guard became, or the code with which it ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            started = self.poll(process)
            if started is not None:
                return started
            time.sleep(0.01)
        msg = f"the guard did not start within {seconds} s: {self.said(process)}"
        raise AssertionError(msg)

    def poll(self, process: subprocess.Popen[bytes]) -> Started | int | None:
        """The same, None while it is still a guard."""
        code = process.poll()
        for pid in _family(process.pid):
            ready = self.ready / str(pid)
            if ready.exists():
                child, *argv = ready.read_text().splitlines()
                return Started(process, pid, int(child), tuple(argv), self.said(process))
        return code

    def start(self, *words: str, **options: object) -> Started:
        """A guard that has become the stand-in."""
        started = self.started(self.begin(*words, **options))  # type: ignore[arg-type]  # of several types
        assert isinstance(started, Started), started
        return started

    def said(self, process: subprocess.Popen[bytes]) -> str:
        """What a guard wrote to stderr so far."""
        return Path(self._stderr[self._begun.index(process)].name).read_text()

    def claims(self, **options: object) -> list[dict[str, object]]:
        """The claims that `vllm-guard gpus` shows."""
        claims = self.host.run("gpus", "--guard-json", **options).document["claims"]  # type: ignore[arg-type]  # of several types
        assert isinstance(claims, list)
        return claims

    def close(self) -> None:
        """Kills whatever is left, each group by the pid that leads it."""
        for process, stderr in zip(self._begun, self._stderr, strict=True):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            stderr.close()


@contextmanager
def staged(host: Host) -> Iterator[Stage]:
    """A stage that is cleared at the end."""
    stage = Stage(host)
    try:
        yield stage
    finally:
        stage.close()


def _family(pid: int) -> Iterator[int]:
    """The process, and under a wrapper its child as it sees itself (the last number of NSpid)."""
    for each in (pid, *_children(pid)):
        with suppress(OSError):
            status = Path(f"/proc/{each}/status").read_text()
            yield int(status.partition("\nNSpid:")[2].partition("\n")[0].split()[-1])


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
