"""Where claims lie, and whether what lies there may be trusted. Everything in a folder is reached through its descriptor, so that nobody moves it away."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vllm_guard.plain_file import why_not

_SHARED: Final = ("/run/vllm-guard", "/run/lock/vllm-guard")
_ANYBODY: Final = 0o1777  # sticky: everybody may add, only its owner may remove
_OURS: Final = 0o700
_OTHERS_WRITE: Final = 0o022
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that may hold claims. `mode` is what it is created with, None where it is somebody else's to create; `named`: the operator chose it."""

    path: str
    mode: int | None
    named: bool = False


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of claims that is there and may be trusted."""

    path: str
    descriptor: int
    writable: bool


@dataclass(frozen=True, slots=True)
class Folders:
    """All folders that can be read; the one for our own claims is the first that can be written, `trouble` says why there is none."""

    readable: tuple[Folder, ...]
    trouble: str

    @property
    def home(self) -> Folder | None:
        """The folder for locks and our own claims."""
        return next((folder for folder in self.readable if folder.writable), None)


def places(setting: str | None, environ: Mapping[str, str], user: int) -> tuple[Place, ...]:
    """Where claims may lie for this user id, the best first. Only root creates a shared folder; in the user's own run-time folder everybody does."""
    mode = _ANYBODY if user == 0 else None
    if setting is not None:
        return (Place(setting, mode or _OURS, named=True),)
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    private = (Place(f"{runtime}/vllm-guard", _OURS),) if runtime.startswith("/") and _is_own(runtime, user) else ()
    return (*(Place(path, mode) for path in _SHARED), *private)


@contextmanager
def opened(wanted: Sequence[Place], *, create: bool) -> Iterator[Folders]:
    """The folders that are there. With `create` the first place that takes one gets it, unless there is one to write to before."""
    found: list[Folder] = []
    troubles: list[str] = []
    try:
        for place in wanted:
            folder = _try_open(place, create=create and not any(folder.writable for folder in found))
            if isinstance(folder, Folder):
                found.append(folder)
            if isinstance(folder, str) or not folder.writable:
                troubles.append(folder if isinstance(folder, str) else f"{folder.path}: it cannot be written to")
        yield Folders(tuple(found), troubles[0] if troubles else "")
    finally:
        for folder in found:
            os.close(folder.descriptor)


def _try_open(place: Place, *, create: bool) -> Folder | str:
    try:
        return _open(place, create=create)
    except (OSError, ValueError) as error:
        return f"{place.path}: {why_not(error)}"


def _open(place: Place, *, create: bool) -> Folder:
    """The folder, created where it is missing. Raises OSError when it cannot be had or may not be trusted, ValueError for a name that none can have."""
    created = False
    if create and place.mode is not None:
        with suppress(FileExistsError):
            Path(place.path).mkdir(_OURS)
            created = True
    descriptor = os.open(place.path, _FLAGS)
    try:
        if created and place.mode != _OURS:
            os.fchmod(descriptor, place.mode or _OURS)
        _require_trust(descriptor, place)
        writable = os.access(".", os.W_OK | os.X_OK, dir_fd=descriptor, effective_ids=True)
    except BaseException:
        os.close(descriptor)
        raise
    return Folder(place.path, descriptor, writable)


def _require_trust(descriptor: int, place: Place) -> None:
    untrusted = why_untrusted(os.fstat(descriptor), os.geteuid(), named=place.named)
    if untrusted is not None:
        raise OSError(errno.EPERM, untrusted)


def why_untrusted(status: os.stat_result, user: int, *, named: bool) -> str | None:
    """Why this user id does not trust a folder: others can change what lies in it, or root would act on what a user prepared."""
    if status.st_uid not in {0, user} and (user == 0 or not named):
        return "it belongs to another user"
    if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        return "others may remove what lies in it (chmod 1777 mends that)"
    return None


def _is_own(path: str, user: int) -> bool:
    try:
        return os.stat(path).st_uid == user  # noqa: PTH116 - Path.stat is not for a name with a NUL
    except (OSError, ValueError):
        return False
