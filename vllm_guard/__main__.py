"""The console script: `mode=off` first, then everything else, and the last resort when the guard itself fails."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from vllm_guard.bypass import become_vllm, request_of
from vllm_guard.flags import mode_off
from vllm_guard.launch import handle_signals_as_pid_1
from vllm_guard.units import ExitCode

_PLUGINS: Final = "PYDANTIC_DISABLE_PLUGINS"


def run() -> NoReturn:
    """Runs the guard on this process's argv; exits with its code, or becomes vLLM."""
    handle_signals_as_pid_1()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupted check dies by the signal, as any program
    _fill_closed_streams()
    argv, invoked = sys.argv[1:], _invoked()
    try:
        code = _run(argv, invoked)
    except Exception:  # noqa: BLE001 - the last resort, around imports too: a bug of ours or a broken library must not stop vLLM
        with suppress(OSError, ValueError):
            traceback.print_exc()
        code = ExitCode.BUG if request_of(argv, invoked) is None else _start_all_the_same(argv, invoked)
    _leave(code)


def _invoked() -> str:
    """argv[0], absolute where it names a file: of `./vllm-guard` a Path would keep the bare name, which is looked up on PATH."""
    name = sys.argv[0]
    if os.sep in name:
        with suppress(OSError):  # the working folder may be gone
            return os.path.join(os.getcwd(), name)  # noqa: PTH109, PTH118 - pathlib is for what is no longer a word of a command line
    return name


def _run(argv: list[str], invoked: str) -> int:
    request = request_of(argv, invoked)
    if request == "pass" or (request is not None and mode_off(argv, os.environ)):
        return become_vllm(argv, invoked, os.environ)
    with _only_what_is_ours():
        from vllm_guard.cli import main  # noqa: PLC0415 - imports the libraries, which the above does not need

    return main(argv, invoked, os.environ)


@contextmanager
def _only_what_is_ours() -> Iterator[None]:
    """Imports without pydantic's plugins, which would be sought in every distribution beside vLLM and run here, and without a collector, which finds nothing.

    Afterwards the environment, which becomes vLLM's, is as it was, and the collector passes over what was imported.
    """
    given = os.environ.get(_PLUGINS)
    os.environ[_PLUGINS] = "__all__"
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        if given is None:
            del os.environ[_PLUGINS]
        else:
            os.environ[_PLUGINS] = given


def _start_all_the_same(argv: list[str], invoked: str) -> int:
    with suppress(OSError, ValueError):
        sys.stderr.write("vllm-guard: warning: the above is a bug of vllm-guard; starting vLLM with the command line as given\n")
    return become_vllm(argv, invoked, os.environ)


def _fill_closed_streams() -> None:
    """A stream that was closed (2>&-) is None to Python: there, what is said goes nowhere. The descriptors do not survive exec."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - as long as the process


def _leave(code: int) -> NoReturn:
    """Ends with this status, whatever a full disk or a closed pipe does to the streams: at a normal end Python would make it 120."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
