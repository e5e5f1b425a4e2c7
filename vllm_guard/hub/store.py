"""Where what came from a hub is kept: a folder that nobody else can change. What lies in it is checked when it is read, as anybody's data."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from vllm_guard.plain_file import read_plain_file
from vllm_guard.units import MIB

LARGEST_LISTING_BYTES: Final = 16 * MIB
_LISTING: Final = "sizes.json"
_WHOLE: Final = "whole"
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_LARGEST_SIZE: Final = 1 << 53
_OTHERS_MAY_WRITE: Final = 0o022


@contextmanager
def private_folder(environ: Mapping[str, str]) -> Iterator[Path]:
    """vllm-guard/hub in the user's cache, else a temporary folder that is removed afterwards. Raises OSError when there can be neither.

    The path goes through an open descriptor: who may rename the folders above cannot lead it elsewhere.
    """
    try:
        descriptor = _open_cache(environ)
    except OSError:
        import tempfile  # noqa: PLC0415 - only where there is no cache

        with tempfile.TemporaryDirectory(prefix="vllm-guard-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def keep(path: Path, data: bytes) -> None:
    """The file, whole from its first moment. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_bytes(data)
    draft.replace(path)


def keep_sizes(folder: Path, sizes_bytes: Mapping[str, int]) -> None:
    """What the hub lists of the repository. Raises OSError."""
    keep(folder / _LISTING, json.dumps(sizes_bytes).encode())


def kept_sizes(folder: Path) -> dict[str, int] | None:
    """The sizes of the repository's files by name; None when they were not kept."""
    data = read_plain_file(folder / _LISTING, LARGEST_LISTING_BYTES)
    try:
        listed = None if isinstance(data, str) else json.loads(data)
    except (ValueError, RecursionError):
        return None
    return {name: size for name, size in listed.items() if is_size(size)} if isinstance(listed, dict) else None


def keep_whole(folder: Path) -> None:
    """Remembers that nothing more is to be had of this commit. Raises OSError."""
    keep(folder / _WHOLE, b"")


def is_whole(folder: Path) -> bool:
    """Whether all that is to be had of this commit was kept."""
    return (folder / _WHOLE).exists()


def is_commit(text: object) -> bool:
    """Whether this is a commit's whole name, which no branch has."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def is_size(value: object) -> bool:
    """Whether this is a number of bytes that a file may have."""
    return type(value) is int and 0 <= value < _LARGEST_SIZE


def _open_cache(environ: Mapping[str, str]) -> int:
    """The descriptor of a folder that is this user's own and that nobody else may write to. Raises OSError when there is none."""
    home = environ.get("XDG_CACHE_HOME", "")
    if not home.startswith("/"):  # as the XDG specification has it
        home = os.path.expanduser("~/.cache")  # noqa: PTH111 - Path.expanduser raises for a user without a home
    with suppress(OSError):
        os.mkdir(home, 0o700)  # noqa: PTH102 - as above, a plain string
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in ("vllm-guard", "hub"):
        above = descriptor
        try:
            descriptor = _open_own(above, name)
        finally:
            os.close(above)
    return descriptor


def _open_own(above: int, name: str) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=above)
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    status = os.fstat(descriptor)
    writable = os.access(f"/proc/self/fd/{descriptor}", os.W_OK)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & _OTHERS_MAY_WRITE or not writable:
        os.close(descriptor)
        raise PermissionError(name)
    return descriptor
