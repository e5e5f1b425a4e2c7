"""The records in a folder: those of others are read, our own is written. A record counts as long as somebody holds the lock on its file.

The lock lives on a descriptor that survives exec: the kernel drops it when vLLM and its forked children are gone. It is exclusive on a file that is one
guard's alone, so that readers ask with a shared lock and never disturb each other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final

from vllm_guard.claims.folder import Folder, Folders
from vllm_guard.claims.lock import take, try_lock
from vllm_guard.claims.reckon import Held, Here, claims_on, spots
from vllm_guard.claims.record import LARGEST_BYTES, Owner, Promise, Record, from_bytes, to_bytes
from vllm_guard.facts import Claim, Facts
from vllm_guard.host.lineage import read_kin
from vllm_guard.host.pid_namespace import pid_namespace_initial
from vllm_guard.host.printable import printable
from vllm_guard.plain_file import read_up_to, why_not

_NAME: Final = re.compile(r"[0-9]{1,10}-[0-9a-f]{16}\.claim")
_MOST_FILES: Final = 4096
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READABLE: Final = 0o644
_ATTEMPTS: Final = 4
_HOLD_SECONDS: Final = 1.0
# Above what scripts in front of vLLM use by number (exec 3>file), which would close it.
_LOWEST_INHERITED: Final = 64


def read_claims(folders: Folders, facts: Facts) -> tuple[Claim, ...]:
    """What other guards promised on the cards or nodes of this reading. Raises OSError where /proc does not tell who we are."""
    held = [each for folder in folders.readable for each in _held(folder)]
    if not held:
        return ()
    if facts.vllm_device == "cpu":
        from vllm_guard.host.memory_holders import with_amounts  # noqa: PLC0415 - other builds never walk /proc

        facts = replace(facts, host=with_amounts(facts.host))
    return claims_on(spots(facts), held, read_here(), cache(read_kin))


def read_here() -> Here:
    """Our process and the moment. Raises OSError where /proc does not tell."""
    kin = read_kin(os.getpid())
    if kin is None:
        raise OSError(errno.ENOENT, "/proc does not show this process")
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    owner = Owner(kin.pid, kin.started_ticks, os.stat("/proc/self/ns/pid").st_ino, boot_id)  # noqa: PTH116 - followed, which readlink is not
    return Here(owner, time.clock_gettime(time.CLOCK_BOOTTIME), pid_namespace_initial())


def write_claim(folder: Folder, world: int, promises: Sequence[Promise]) -> str | None:
    """Promises, until this process and its forked children are gone, whatever it becomes; in place of what it promised before. None, or why not."""
    try:
        here = read_here()
        data = to_bytes(Record(here.owner, here.seconds, world, tuple(promises)))
        for _ in range(_ATTEMPTS):
            name = f"{here.owner.pid}-{os.urandom(8).hex()}.claim"
            if _write(folder, name, data):
                _remove_leftovers(folder, here.owner, but=name)
                return None
    except (OSError, ValueError) as error:
        return f"{folder.path}: {why_not(error)}"
    return f"{folder.path}: somebody removes our claims"


def _held(folder: Folder) -> Iterator[Held]:
    """The records of a folder that count; what else lies there is passed over."""
    for name in _names(folder):
        with suppress(OSError):
            descriptor = os.open(name, _READ, dir_fd=folder.descriptor)
            try:
                status = os.fstat(descriptor)
                record = _live_record(descriptor, status)
            finally:
                os.close(descriptor)
            if record is not None:
                yield Held(record, _user_name(status.st_uid))


def _names(folder: Folder) -> list[str]:
    """The names of claims in a folder, among its first 4096 entries."""
    try:
        with os.scandir(folder.descriptor) as entries:
            return [entry.name for entry in islice(entries, _MOST_FILES) if _NAME.fullmatch(entry.name)]
    except OSError:
        return []


def _live_record(descriptor: int, status: os.stat_result) -> Record | None:
    """The record of a file whose lock somebody holds. Raises OSError."""
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_BYTES or not _is_held(descriptor):
        return None
    return from_bytes(read_up_to(descriptor, LARGEST_BYTES))


def _is_held(descriptor: int) -> bool:
    return not try_lock(descriptor, fcntl.LOCK_SH)  # given back when the descriptor is closed


def _remove_leftovers(folder: Folder, ours: Owner, but: str) -> None:
    """Removes the files that nobody holds any more, and what this very process promised before; only files of our own, or any for root."""
    for name in (name for name in _names(folder) if name != but):
        with suppress(OSError):
            descriptor = os.open(name, _READ, dir_fd=folder.descriptor)
            try:
                status = os.fstat(descriptor)
                removable = stat.S_ISREG(status.st_mode) and os.geteuid() in {0, status.st_uid}
                if removable and (not _is_held(descriptor) or _is_of(descriptor, ours)):
                    os.unlink(name, dir_fd=folder.descriptor)
            finally:
                os.close(descriptor)


def _is_of(descriptor: int, owner: Owner) -> bool:
    record = from_bytes(read_up_to(descriptor, LARGEST_BYTES + 1))
    return record is not None and record.owner == owner


def _write(folder: Folder, name: str, data: bytes) -> bool:
    """The file, whole and locked, its descriptor left open for vLLM. False where another guard took it for a leftover before it was locked; raises OSError,
    and then nothing is left.
    """
    descriptor = os.open(name, _CREATE, _READABLE, dir_fd=folder.descriptor)
    try:
        take(descriptor, time.monotonic() + _HOLD_SECONDS)  # a reader may be asking whether it is held
        if os.fstat(descriptor).st_nlink == 0:
            return False
        os.fchmod(descriptor, _READABLE)  # whatever the umask says: other users must read it
        _write_whole(descriptor, data)
        fcntl.fcntl(descriptor, fcntl.F_DUPFD, _LOWEST_INHERITED)  # the copy shares the lock and is inherited
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder.descriptor)
        raise
    finally:
        os.close(descriptor)
    return True


def _write_whole(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@cache
def _user_name(uid: int) -> str:
    try:
        return printable(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)
