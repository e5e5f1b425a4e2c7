"""Becoming vLLM with the untouched argv: for `mode=off`, and when the guard itself fails. Needs none of the libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from vllm_guard.errors import LaunchError
from vllm_guard.flags import strip_flags, typed_value, variable_of
from vllm_guard.host.vllm_install import find_executable
from vllm_guard.launch import launch
from vllm_guard.setting_layers import value_in_file

_TERMINATION_LOG: Final = "/dev/termination-log"
_OFF: Final = ("", "off", "none")


def asks_serve(words: Sequence[str]) -> bool:
    """Whether these words, the guard's flags taken out, are a server to start: `serve ...`, or options of vLLM from `--model` on."""
    return words[:1] == ["serve"] or (bool(words) and words[0].startswith("--model"))


def become_vllm(argv: Sequence[str], invoked: str, environ: Mapping[str, str]) -> int:
    """Executes vLLM with this argv but for the guard's own flags; returns 126 or 127, said in full, when that is impossible."""
    rest = strip_flags(argv)
    words = rest[1:] if rest[:1] == ["serve"] else rest
    setting = raw_value(argv, environ, "vllm")
    try:
        start = find_executable(setting if setting not in {None, "auto", *_OFF} else None, invoked=Path(invoked), path=environ.get("PATH", os.defpath))
        launch([*start, "serve", *words], environ)
    except LaunchError as error:
        from vllm_guard import speak  # noqa: PLC0415 - a launch needs no words

        speak.say(lines := speak.error_lines(error))
        speak.write_termination_log(termination_log(argv, environ), lines)
        return error.exit_code


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
