"""The short exclusive lock per card under which a guard reads free memory, decides and promises."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from vllm_guard.claims.folder import Folder
from vllm_guard.plain_file import why_not

AT_MOST_SECONDS: Final = 5.0
_INTERVAL_SECONDS: Final = 0.02
_ATTEMPTS: Final = 3
_READABLE: Final = 0o644
# Reading is enough for flock, so nobody needs to be able to write another user's file.
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@contextmanager
def locked(folder: Folder, uuids: Iterable[str], at_most_seconds: float = AT_MOST_SECONDS) -> Iterator[str | None]:
    """Holds the locks of these cards, taken in one order so that no two guards wait for each other. Yields None, or why they are not all held: the launch
    goes on then. They end with the block, at exec and with the process.
    """
    deadline = time.monotonic() + at_most_seconds
    with ExitStack() as stack:
        trouble = None
        for uuid in sorted(set(uuids)):
            name = f"{uuid.replace('/', '_')}.lock"
            try:
                descriptor = _open(folder, name)
                stack.callback(os.close, descriptor)
                take(descriptor, deadline)
            except OSError as error:
                trouble = f"{folder.path}/{name}: {why_not(error)}"
                break
        yield trouble


def take(descriptor: int, deadline: float) -> None:
    """Takes the exclusive lock of a file. Raises OSError where the file system has no locks, and when `deadline` on the monotonic clock has passed."""
    while not try_lock(descriptor, fcntl.LOCK_EX):
        if time.monotonic() >= deadline:
            raise OSError(errno.ETIMEDOUT, "another process holds this lock for too long")
        time.sleep(_INTERVAL_SECONDS)


def try_lock(descriptor: int, kind: int) -> bool:
    """Whether the lock of this kind was to be had at once. Raises OSError where the file system has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(folder: Folder, name: str) -> int:
    """The lock file, created where it is missing. Raises OSError.

    It is opened before it is created: the kernel keeps O_CREAT from another user's file in a sticky folder (fs.protected_regular).
    """
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            return _open_existing(folder, name)
        with suppress(FileExistsError):
            descriptor = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, _READABLE, dir_fd=folder.descriptor)
            os.fchmod(descriptor, _READABLE)  # whatever the umask says: it must open for other users
            return descriptor
    raise OSError(errno.EAGAIN, "it comes and goes")


def _open_existing(folder: Folder, name: str) -> int:
    try:
        descriptor = os.open(name, _FLAGS, dir_fd=folder.descriptor)
    except PermissionError:
        time.sleep(_INTERVAL_SECONDS)  # its creator may not have come to fchmod
        descriptor = os.open(name, _FLAGS, dir_fd=folder.descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return descriptor
