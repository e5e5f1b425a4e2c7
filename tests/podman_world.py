"""The image of the Dockerfile, built without a network on a base made here, and podman to run it. As root, for slow tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from other_worlds import need
from stub_vllm import write_stub

BASE: Final = "localhost/base"
IMAGE: Final = "localhost/vllm-guard"
# A release with which the guard's requirements are met, and which is not the newest: the build must leave it alone.
PINNED: Final = "pydantic==2.10.6"
VERSION: Final = "0.32.0"

# podman wants cgroup v2 alone, so it gets a mount namespace with that, in which all its commands run. It ends when stdin does.
_NAMESPACE: Final = "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && echo ready && cat"
# Nothing here may set the limits of a cgroup, nor raise those of this process.
_CONTAINER: Final = (
    "--cgroups=disabled",
    "--network=none",
    "--ulimit=nofile=1024:1024",
    "--ulimit=nproc=1024:1024",
    "--no-healthcheck",
    "--log-driver=k8s-file",
)
_BASE_FILE: Final = f"""
FROM scratch
ADD rootfs.tar /
COPY wheelhouse /wheelhouse
RUN python3 -m pip install --break-system-packages --no-cache-dir --no-index --find-links /wheelhouse {PINNED} && rm -r /wheelhouse
COPY vllm /usr/local/bin/vllm
COPY METADATA SITE/vllm-{VERSION}.dist-info/METADATA
COPY api_server.py SITE/vllm/entrypoints/openai/
ENTRYPOINT ["vllm", "serve"]
"""
_MODULE: Final = 'import os, sys\n\nos.execv("/usr/local/bin/vllm", ["vllm", "module", *sys.argv[1:]])\n'


@dataclass(frozen=True, slots=True)
class Podman:
    """podman with images and containers in a folder of its own."""

    folder: Path
    namespace: int
    driver: str

    def __call__(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """What became of `podman WORDS`, without a network."""
        store = ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "run"), "--storage-driver", self.driver]
        front = ["nsenter", "--target", str(self.namespace), "--mount", "--wd", "unshare", "--net"]
        command = [*front, "podman", *store, "--runtime", "crun", "--cgroup-manager", "cgroupfs", *words]
        return subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout, cwd=self.folder)

    def build(self, context: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """A build without a network, whose steps leave no images of their own."""
        return self("build", "--isolation=chroot", "--layers=false", "--pull=never", *options, str(context), timeout=300)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A container, to its end; it is gone afterwards. What it said comes from its log: of a short life `podman run` may miss some."""
        container = self.start(*words)
        code = int(self("wait", container).stdout)
        said = self("logs", container)
        self("rm", "--force", container)
        return subprocess.CompletedProcess(words, code, said.stdout, said.stderr)

    def start(self, *words: str) -> str:
        """The ID of a container that runs on."""
        started = self("run", "--detach", *_CONTAINER, *words)
        assert started.returncode == 0, started.stderr
        return started.stdout.strip()


@contextmanager
def podman_world() -> Iterator[Podman]:
    """podman with an empty store. Its folder's path is short: podman wants that of its sockets within 50 characters."""
    need("podman", "crun", "unshare", "nsenter", "debootstrap")
    with (
        tempfile.TemporaryDirectory(prefix="vg-", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(["unshare", "--mount", "sh", "-c", _NAMESPACE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell,
    ):
        assert shell.stdout is not None
        try:
            assert shell.stdout.readline() == "ready\n"
            nested = _do(["stat", "--file-system", "--format=%T", folder]).strip() == "overlayfs"
            podman = Podman(Path(folder), shell.pid, "vfs" if nested else "overlay")  # vfs copies the image for every container: ten times slower
            yield podman
            podman("rm", "--all", "--force", "--time", "0")
        finally:
            shell.communicate()


def make_base(podman: Podman, tag: str) -> None:
    """An image like vLLM's own: a Python with packages, one of them pinned, and a stub of vLLM, on a Debian like this host's."""
    context = podman.folder / "base"
    context.mkdir()
    rootfs = podman.folder / "rootfs"
    suite = next(line.partition("=")[2] for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("VERSION_CODENAME="))
    _do(["debootstrap", "--variant=minbase", "--include=python3,python3-pip", suite, str(rootfs)])
    python = _do(["chroot", str(rootfs), "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    kept = ["--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*", "--exclude=./var/cache/apt", "--exclude=./var/lib/apt/lists"]
    _do(["tar", "--directory", str(rootfs), *kept, "--create", "--file", str(context / "rootfs.tar"), "."])
    shutil.rmtree(rootfs)
    download("download", "--only-binary=:all:", "--python-version", python, "--dest", "wheelhouse", PINNED, cwd=context)
    write_stub(context)
    (context / "api_server.py").write_text(_MODULE)
    (context / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    (context / "Dockerfile").write_text(_BASE_FILE.replace("SITE", f"/usr/local/lib/python{python}/dist-packages"))
    built = podman.build(context, "--tag", tag)
    assert built.returncode == 0, built.stderr
    shutil.rmtree(context)


def download(*words: str, cwd: Path) -> None:
    """`pip WORDS`: the only step with a network."""
    _do([sys.executable, "-m", "pip", "--quiet", *words], cwd=cwd)


def _do(command: Sequence[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout
