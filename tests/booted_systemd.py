"""A systemd of its own on this host's /usr, for tests that need units and a journal; and what such tests need of the machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

T = TypeVar("T")

PACKAGES: Final = {"systemd-nspawn": "systemd-container", "podman": "podman", "crun": "crun", "unshare": "util-linux", "nsenter": "util-linux"}


@contextmanager
def booted_systemd(*folders: Path) -> Iterator[list[str]]:
    """The words that run a command inside it; `folders` are there too, to read. It ends with the test."""
    need("systemd-nspawn", "nsenter")
    options = ["--volatile=yes", "--boot", "--register=no", "--keep-unit", "--console=pipe", "--directory=/", *(f"--bind-ro={folder}" for folder in folders)]
    boot = ["systemd.unit=multi-user.target", "systemd.mask=systemd-firstboot.service"]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(["systemd-nspawn", "--quiet", *options, *boot], **quiet) as nspawn:
        try:
            leader = wait_for(lambda: Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children").read_text().split())[0]
            inside = ["nsenter", "--target", leader, "--all", "--root", "--wd"]
            wait_for(
                lambda: subprocess.run([*inside, "systemctl", "is-system-running"], check=False, capture_output=True).stdout in {b"running\n", b"degraded\n"}
            )
            yield inside
        finally:
            nspawn.send_signal(signal.SIGTERM)  # the machine powers off
            try:
                nspawn.wait(20)
            except subprocess.TimeoutExpired:
                nspawn.kill()


def need(*programs: str) -> None:
    """Fails, and says which package is missing: a tool that is not there must not look like a test that passed."""
    missing = [PACKAGES[program] for program in programs if shutil.which(program) is None]
    if missing:
        pytest.fail(f"missing: apt install {' '.join(missing)}", pytrace=False)
    if os.geteuid() != 0:
        pytest.fail("this test boots a machine or a container: run it as root", pytrace=False)


def wait_for(found: Callable[[], T], seconds: float = 10) -> T:
    """What is found within this time."""
    deadline = time.monotonic() + seconds
    while not (it := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return it
