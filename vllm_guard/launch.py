"""The last steps before exec: after them the guard is gone and its process is vLLM."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from vllm_guard.errors import LaunchError
from vllm_guard.flags import VARIABLE_PREFIX
from vllm_guard.units import ExitCode

# Python ignores these two when it starts, and exec would hand that on.
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_HANDLED: Final = (signal.SIGINT, signal.SIGTERM)
# What Python sets LC_CTYPE to in the C locale (PEP 538).
_COERCED_LOCALES: Final = ("C.UTF-8", "C.utf8", "UTF-8")
_FULL_PATH: Final = "pass the full path, for example --guard-vllm=/opt/vllm/bin/vllm"


def launch(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Never returns: this process becomes argv, a bare name being looked up in the PATH of `environ`.

    The program gets the environment without any VLLM_GUARD_ variable and with the LC_CTYPE that this process was started with; argv, working
    folder, umask, signal mask and inherited descriptors as they are; SIGPIPE and SIGXFSZ with their default action. Raises LaunchError: 127
    when the program is not found, 126 when it cannot be run, which includes a script whose interpreter is missing, as in bash.
    """
    environment = child_environment(environ, _initial_environment())
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # None, a closed pipe, a closed file: the launch matters more
            stream.flush()
    replaced = {number: handler for number in (*_IGNORED_BY_PYTHON, *_HANDLED) if _is_ours(number, handler := signal.getsignal(number))}
    for number in replaced:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), environment)  # noqa: S606 - no shell is the point
    except OSError as error:
        for number, handler in replaced.items():
            signal.signal(number, handler)
        raise _launch_error(argv[0], environment, error) from error


def require_program(program: str, environ: Mapping[str, str]) -> None:
    """Raises the LaunchError that `launch` would end in where that is plain to see, so that it is said before a verdict and not after."""
    located = shutil.which(program, mode=os.F_OK, path=environ.get("PATH", os.defpath))
    if located is None:
        raise _launch_error(program, environ, OSError(errno.ENOENT, os.strerror(errno.ENOENT)))
    if not os.access(located, os.X_OK) or Path(located).is_dir():
        raise _launch_error(program, environ, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    interpreter = _interpreter(Path(located))
    if interpreter:
        try:
            Path(interpreter).stat()
        except OSError as error:
            raise _launch_error(program, environ, error) from error


def child_environment(environ: Mapping[str, str], initial: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """The environment for vLLM: without VLLM_GUARD_ variables, which vLLM would warn about, and with LC_CTYPE as it was at the start where Python set it.

    `initial` is None when it cannot be read: then LC_CTYPE stays.
    """
    environment = {name: value for name, value in environ.items() if not name.startswith(VARIABLE_PREFIX)}
    if initial is not None and environment.get("LC_CTYPE") in _COERCED_LOCALES:
        original = initial.get(b"LC_CTYPE")
        if original is None:
            del environment["LC_CTYPE"]
        else:
            environment["LC_CTYPE"] = os.fsdecode(original)
    return environment


def handle_signals_as_pid_1() -> None:
    """Makes TERM and INT end the process at once (143, 130) when it is PID 1, where the kernel drops signals that have no handler.

    Elsewhere nothing changes: the default is right, and a Python handler could lose a signal at exec.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _exit_at_once)
        signal.signal(signal.SIGINT, _exit_at_once)


def _is_ours(number: signal.Signals, handler: object) -> bool:
    """True for what Python or we changed; a TERM or INT that was ignored before we started stays ignored, as nohup wants it."""
    return number in _IGNORED_BY_PYTHON or callable(handler)


def _exit_at_once(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(ExitCode.TERMINATED if number == signal.SIGTERM else ExitCode.INTERRUPTED)


def _initial_environment() -> Mapping[bytes, bytes] | None:
    """The environment that the kernel gave to this process, before Python changed it."""
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in block.split(b"\0"))
    return {name: value for name, _, value in pairs}


def _launch_error(program: str, environment: Mapping[str, str], error: OSError) -> LaunchError:
    """Why exec failed. The kernel says "no such file" of a script too, when what is missing is its interpreter."""
    if error.errno == errno.ENOEXEC:
        return LaunchError(126, f"cannot run {program!r}: it is neither a program for this machine nor a script with a #! line", _FULL_PATH)
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        return LaunchError(126, f"cannot run {program!r}: {error.strerror}", "make the file executable, or " + _FULL_PATH)
    found = program if "/" in program else shutil.which(program, path=environment.get("PATH"))
    if found is None or not Path(found).exists():
        where = "no such file" if "/" in program else "not found on PATH"
        return LaunchError(127, f"cannot run {program!r}: {where}", _FULL_PATH)
    return LaunchError(126, f"cannot run {found!r}: {_missing_interpreter(Path(found))} is missing", "reinstall vLLM in its environment, or " + _FULL_PATH)


def _missing_interpreter(script: Path) -> str:
    interpreter = _interpreter(script)
    return "its program loader" if interpreter is None else f"its interpreter {interpreter!r}"


def _interpreter(script: Path) -> str | None:
    """What stands behind the #! of a script, the empty word too; None of a program."""
    with suppress(OSError), script.open("rb") as file:
        first_line = file.readline(256)
        if first_line.startswith(b"#!"):
            return os.fsdecode(first_line[2:].split()[0]) if first_line[2:].split() else ""
    return None
