"""The commands of vllm-guard: wires readers, decision and voice together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from vllm_guard import __version__, speak
from vllm_guard.bypass import asks_serve, become_vllm, raw_value, request_of, termination_log
from vllm_guard.cli.call import Call, print_line
from vllm_guard.cli.check import check
from vllm_guard.cli.serve import serve
from vllm_guard.errors import GuardError, UsageError
from vllm_guard.flags import nearest, split_flags
from vllm_guard.settings import Loaded, load
from vllm_guard.units import ExitCode

COMMANDS: Final = ("serve", "check", "run", "gpus", "estimate", "explain", "snapshot", "demo")


def main(argv: Sequence[str], invoked: str, environ: Mapping[str, str]) -> int:
    """The exit code of the guard; `serve` and `run` return only when nothing was started. Raises only what is a bug."""
    call = Call(tuple(argv), invoked, environ, time.perf_counter())
    try:
        return _dispatch(call)
    except GuardError as error:
        if isinstance(error, UsageError) and request_of(argv, invoked) is not None and (raw_value(argv, environ, "mode") or "").strip().lower() == "off":
            return become_vllm(argv, invoked, environ)  # the settings file says off, whatever else is wrong in it
        speak.say_error(error, raw_value(argv, environ, "log_format"))
        speak.write_termination_log(termination_log(argv, environ), speak.error_lines(error))
        return speak.code_of(error)


def _dispatch(call: Call) -> int:
    flags, words = split_flags(call.argv)
    if "help" in flags or words[:1] in (["--help"], ["-h"], ["help"]):
        from vllm_guard.help import help_text  # noqa: PLC0415 - imports by need

        print_line(help_text())
        return ExitCode.OK
    if "version" in flags or words[:1] == ["--version"]:
        print_line(f"vllm-guard {__version__}")
        return ExitCode.OK
    if asks_serve(words):
        return serve(call, load(flags, call.environ, command="serve"), words[1:] if words[0] == "serve" else words)
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name not in COMMANDS:
        msg = f"unknown command {name!r}; the nearest known one is {nearest(name, COMMANDS)}" if name else "no command given"
        raise UsageError(msg, "vllm-guard serve MODEL ..., or vllm-guard --help")
    return _run(name, call, load(flags, call.environ, command=name), rest)


def _run(name: str, call: Call, loaded: Loaded, words: Sequence[str]) -> int:
    """One of the other commands; each is imported only when it is asked for."""
    match name:
        case "check":
            return check(call, loaded, words)
        case "run":
            from vllm_guard.cli.run import run  # noqa: PLC0415 - imports by need

            return run(call, loaded, words)
        case "gpus":
            from vllm_guard.cli.gpus import gpus  # noqa: PLC0415 - imports by need

            return gpus(call, loaded, words)
        case "estimate":
            from vllm_guard.cli.estimate import estimate  # noqa: PLC0415 - imports by need

            return estimate(call, loaded, words)
        case "explain":
            from vllm_guard.cli.explain import explain  # noqa: PLC0415 - imports by need

            return explain(call, loaded, words)
        case "snapshot":
            from vllm_guard.cli.snapshot import snapshot  # noqa: PLC0415 - imports by need

            return snapshot(call, loaded, words)
        case _:
            from vllm_guard.demo.show import show  # noqa: PLC0415 - imports by need

            return show(loaded.settings)
