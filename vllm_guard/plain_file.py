"""Reading files that anybody may have put there: bounded, and without ever waiting."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_plain_file(path: Path | str, at_most_bytes: int) -> bytes | str:
    """All bytes of a plain file that is not larger than this, or why they were not read. A pipe, a device or a folder is not read; links are followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "it is not a plain file"
        if status.st_size > at_most_bytes:
            return f"it is larger than {at_most_bytes} bytes"
        data = b""
        while len(data) < at_most_bytes and (part := os.read(descriptor, at_most_bytes - len(data))):
            data += part
    except OSError as error:
        return error.strerror or str(error)
    else:
        return data
    finally:
        os.close(descriptor)
