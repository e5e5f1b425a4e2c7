"""One real server under test: started, waited for, asked, ended, and never left behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest

_READY_SECONDS: Final = 240  # 25 s on two quiet cores
_END_SECONDS: Final = 30  # under 1 s when ready; a SIGTERM during the start can hang for good
_REFUSAL_SECONDS: Final = 180
_TAIL_CHARACTERS: Final = 4000


@dataclass(frozen=True, slots=True)
class Server:
    """A started command that will serve on `port`, and all that it printed."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def text(self) -> str:
        """What it printed so far, on stdout and stderr."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> tuple[int, str]:
        """Status and text of one HTTP exchange."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()

    def wait_until_ready(self) -> None:
        """Returns when /health answers 200; fails the test when the process ends or the time is over."""
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail(f"ended with {self.process.returncode} before it was ready:\n{self.text()[-_TAIL_CHARACTERS:]}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.request("GET", "/health")[0] == 200:
                    return
            time.sleep(0.2)
        pytest.fail(f"not ready after {_READY_SECONDS} s:\n{self.text()[-_TAIL_CHARACTERS:]}")

    def wait_until_printed(self, *texts: str) -> str:
        """The first of `texts` that the log holds; fails the test when none comes."""
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            log = self.text()
            for text in texts:
                if text in log:
                    return text
            if ended:
                break
            time.sleep(0.2)
        pytest.fail(f"none of {texts} was printed:\n{self.text()[-_TAIL_CHARACTERS:]}")

    def wait_until_ended(self) -> int:
        """The exit status of a command that is expected to give up by itself."""
        return self.process.wait(_REFUSAL_SECONDS)

    def terminate(self) -> int:
        """The exit status after SIGTERM; fails the test when that does not end it."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still there {_END_SECONDS} s after SIGTERM:\n{self.text()[-_TAIL_CHARACTERS:]}")

    def listening_pids(self) -> set[int | None]:
        """Who listens on the port."""
        return {it.pid for it in psutil.net_connections("tcp") if it.status == psutil.CONN_LISTEN and it.laddr and it.laddr.port == self.port}

    def remaining(self) -> list[str]:
        """Command lines of this session's processes that still live, after a moment in which they may go; empty when all are gone."""
        deadline = time.monotonic() + 5
        while (left := _session_members(self.process.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left


def _session_members(session: int) -> list[str]:
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(f"{process.pid} {' '.join(process.cmdline())}")
    return members


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def started(command: Sequence[str], *, port: int, environment: Mapping[str, str], log: Path) -> Iterator[Server]:
    """The running command, in a session of its own; whatever is left of it is killed at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True)
    try:
        yield Server(process, port, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
