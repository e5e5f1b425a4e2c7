"""Becoming vLLM with the untouched argv: for `mode=off`, for what a link named vllm passes on, and when the guard itself fails. Needs no library."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NoReturn

from vllm_guard.command.entrypoint import behind_entrypoint, model_first, names_model
from vllm_guard.command.launcher import split_launcher
from vllm_guard.errors import LaunchError
from vllm_guard.flags import END_OF_FLAGS, strip_flags, typed_value, variable_of
from vllm_guard.host.vllm_install import find_executable, leads_to_guard, read_install
from vllm_guard.launch import launch
from vllm_guard.release import parse_release
from vllm_guard.setting_layers import value_in_file

Request = Literal["serve", "run", "pass"]

COMMAND_FIX: Final = "correct the command behind the -- of vllm-guard run"
_LINK: Final = "vllm"
_TERMINATION_LOG: Final = "/dev/termination-log"
_OFF: Final = ("", "off", "none")


def request_of(argv: Sequence[str], invoked: str) -> Request | None:
    """What these words ask to start, the guard's flags taken out; None for a command of the guard's own.

    Under the name `vllm` only `serve` is ours, everything else is passed on.
    """
    words = strip_flags(argv)
    if Path(invoked).name == _LINK:
        return "serve" if words[:1] == ["serve"] else "pass"
    if asks_serve(words):
        return "serve"
    return "run" if launched(words) else None


def asks_serve(words: Sequence[str]) -> bool:
    """Whether these words, the guard's flags taken out, are a server to start: `serve ...`, or options of vLLM from `--model` on."""
    return words[:1] == ["serve"] or (bool(words) and words[0].startswith("--model"))


def launched(words: Sequence[str]) -> list[str]:
    """The command behind `run ... --`; empty when there is none."""
    return list(words[words.index(END_OF_FLAGS) + 1 :]) if words[:1] == ["run"] and END_OF_FLAGS in words else []


def become_vllm(argv: Sequence[str], invoked: str, environ: Mapping[str, str]) -> int:
    """Executes vLLM, or what stands behind `run --`, with this argv but for the guard's own flags; returns 126 or 127, said in full, when that is
    impossible.
    """
    words = strip_flags(argv)
    request = request_of(argv, invoked)
    try:
        if request == "run":
            launch_command(around_guard(launched(words), argv, invoked, environ), environ)
        vllm = _vllm(argv, invoked, environ)
        launch([*vllm, *(_served(words, vllm) if request == "serve" else words)], environ)
    except LaunchError as error:
        from vllm_guard import speak  # noqa: PLC0415 - a launch needs no words

        speak.say(lines := speak.error_lines(error))
        speak.write_termination_log(termination_log(argv, environ), lines)
        return error.exit_code


def _served(words: Sequence[str], vllm: Sequence[str]) -> list[str]:
    """`serve` and what stands behind it in a form that this vLLM takes."""
    asked = list(words[1:] if words[0] == "serve" else words)
    with suppress(Exception):  # the last resort: what a bug of ours cannot read is vLLM's to answer
        behind = behind_entrypoint(asked)
        release = parse_release(read_install(vllm).version) if names_model(behind) else None
        return ["serve", *model_first(behind, release)]
    return ["serve", *asked]


def launch_command(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Becomes the command of `run`. Raises LaunchError as `launch`, with a fix for this case."""
    try:
        launch(command, environ)
    except LaunchError as error:
        raise LaunchError(error.exit_code, error.message, COMMAND_FIX) from error


def around_guard(command: Sequence[str], argv: Sequence[str], invoked: str, environ: Mapping[str, str]) -> list[str]:
    """The command of `run`, and where its `vllm` is a link to a guard the real one in its place: it would only come back here.

    Raises LaunchError as `find_executable` when there is no other.
    """
    launcher = split_launcher(command)
    at = launcher.program
    path = launcher.environment.get("PATH", environ.get("PATH", os.defpath))
    if at is None or not launcher.runs_script or launcher.finds_own_vllm or not leads_to_guard(command[at], invoked=Path(invoked), path=path):
        return list(command)
    return [*command[:at], *_vllm(argv, invoked, environ), *command[at + 1 :]]


def _vllm(argv: Sequence[str], invoked: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    setting = raw_value(argv, environ, "vllm")
    return find_executable(setting if setting not in {None, "auto", *_OFF} else None, invoked=Path(invoked), path=environ.get("PATH", os.defpath))


def termination_log(argv: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Where an error goes while the settings may be what is wrong."""
    path = raw_value(argv, environ, "termination_log")
    return _TERMINATION_LOG if path is None else path if path not in _OFF else None


def raw_value(argv: Sequence[str], environ: Mapping[str, str], setting: str) -> str | None:
    """What flag, environment or file say of a setting, unchecked, while the settings as a whole may be broken. None when nobody does."""
    typed = typed_value(argv, setting)
    if typed is None:
        typed = environ.get(variable_of(setting))
    return value_in_file(environ, setting) if typed is None else typed
