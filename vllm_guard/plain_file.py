"""Reading files that anybody may have put there: bounded, and without ever waiting."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def read_plain_file(path: Path | str, at_most_bytes: int) -> bytes | str:
    """All bytes of a plain file that is not larger than this, or why they were not read. A pipe, a device or a folder is not read; links are followed."""
    try:
        with open_plain_file(path) as (descriptor, size_bytes):
            return read_up_to(descriptor, at_most_bytes) if size_bytes <= at_most_bytes else f"it is larger than {at_most_bytes} bytes"
    except (OSError, ValueError) as error:
        return why_not(error)


@contextmanager
def open_plain_file(path: Path | str) -> Iterator[tuple[int, int]]:
    """A descriptor and the size of a plain file; links are followed. Raises OSError, and ValueError for a name that no file can have."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def read_up_to(descriptor: int, size_bytes: int) -> bytes:
    """As many bytes, fewer where the file ends before. Raises OSError."""
    data = b""
    while len(data) < size_bytes and (part := os.read(descriptor, size_bytes - len(data))):
        data += part
    return data


def why_not(error: OSError | ValueError) -> str:
    """The reason without the path, which the caller names."""
    return getattr(error, "strerror", None) or str(error)
