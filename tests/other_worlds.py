"""Other places for slow tests: a booted systemd and a podman container on this host's /usr (as root), a copy of the checkout."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

T = TypeVar("T")

PACKAGES: Final = {
    "systemd-nspawn": "systemd-container",
    "podman": "podman",
    "crun": "crun",
    "debootstrap": "debootstrap",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}


@contextmanager
def booted_systemd(*shared: Path) -> Iterator[list[str]]:
    """The words that run a command inside a systemd of its own, on this host's /usr and these folders; it ends with the test."""
    need("systemd-nspawn", "nsenter")
    options = ["--volatile=yes", "--boot", "--register=no", "--keep-unit", "--console=pipe", "--directory=/"]
    options += [f"--bind={folder}" for folder in shared]
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


# podman wants v2 alone, so it gets a mount namespace with that. Privileged and without a limit of pids: nothing here may load a device filter or has
# the controller. The container ends when stdin does.
_PODMAN: Final = """
umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup
podman() { command podman --root "$0/root" --runroot "$0/run" --storage-driver vfs --runtime crun --cgroup-manager cgroupfs "$@"; }
podman run --detach --privileged --pids-limit=-1 --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --network=none --no-healthcheck --log-driver none \\
  --volume /usr:/usr:ro --rootfs "$0/rootfs" sleep 61.82 || exit
cat
podman rm --all --force --time 0
"""


@contextmanager
def container() -> Iterator[str]:
    """The ID of a running container on this host's /usr. Its folder's path is short: podman wants that of its sockets within 50 characters."""
    need("podman", "crun", "unshare")
    with tempfile.TemporaryDirectory(prefix="vg-", ignore_cleanup_errors=True) as folder:
        Path(folder, "rootfs/usr").mkdir(parents=True)
        for name in ("bin", "lib", "lib64"):
            Path(folder, "rootfs", name).symlink_to(f"usr/{name}")
        with subprocess.Popen(["unshare", "--mount", "sh", "-c", _PODMAN, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
            assert shell.stdout is not None
            try:
                yield shell.stdout.readline().strip()
            finally:
                shell.communicate()


def copy_checkout(to: Path) -> None:
    """The project as a fresh clone has it, but for its history: nothing that was made or installed here."""
    made = shutil.ignore_patterns(".git*", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "*.egg-info")
    shutil.copytree(Path(__file__).parent.parent, to, ignore=made)


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
