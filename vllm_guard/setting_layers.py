"""The places that settings come from: the TOML file and the environment, as raw values with their origin."""

from __future__ import annotations

import os
import reprlib
import stat
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vllm_guard.errors import UsageError
from vllm_guard.facts import Warn
from vllm_guard.flags import SETTINGS, VARIABLE_PREFIX, flag_of, nearest, variable_of

CONFIG_PATH: Final = "/etc/vllm-guard/config.toml"
_CONFIG_VARIABLE: Final = "VLLM_GUARD_CONFIG"
_CONFIG_LIMIT_BYTES: Final = 1 << 20
# What Kubernetes injects for a service named vllm-guard or vllm-guard-something.
_INJECTED: Final = ("_PORT", "_SERVICE_")


class Given(NamedTuple):
    """A value as it was given, and where."""

    value: object
    origin: str


Layer = Mapping[str, Given]


def of_flags(flags: Mapping[str, str | bool]) -> Layer:
    """What `split_flags` found, without help and version, which are no settings."""
    return {name: Given(value, f"flag {flag_of(name)}") for name, value in flags.items() if name in SETTINGS}


def of_environment(environ: Mapping[str, str]) -> tuple[Layer, tuple[Warn, ...]]:
    """The settings in the environment, and one warning for every other VLLM_GUARD_ variable that Kubernetes does not inject by itself."""
    variables = {variable_of(name): name for name in SETTINGS}
    layer = {variables[variable]: Given(value, f"environment {variable}") for variable, value in environ.items() if variable in variables}
    strange = [
        variable
        for variable in environ
        if variable.startswith(VARIABLE_PREFIX) and variable not in (*variables, _CONFIG_VARIABLE) and not any(part in variable for part in _INJECTED)
    ]
    warnings = [
        Warn("unknown_variable", f"environment {variable} is no setting; the nearest known one is {nearest(variable, tuple(variables))}")
        for variable in strange
    ]
    return layer, tuple(warnings)


def of_file(environ: Mapping[str, str], command: str) -> tuple[Layer, tuple[Warn, ...]]:
    """The settings in the TOML file that VLLM_GUARD_CONFIG names (empty: no file), else in CONFIG_PATH where it exists.

    Raises UsageError for a file that is broken or cannot be read (in `serve` and `run` a warning, unless it was asked for by name) and for an unknown key.
    """
    named = environ.get(_CONFIG_VARIABLE)
    path = CONFIG_PATH if named is None else named
    try:
        document = _read_toml(path) if path else {}
    except (OSError, ValueError, RecursionError) as error:
        if named is None and isinstance(error, FileNotFoundError):
            return {}, ()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        message = f"cannot use the settings file {path!r}: {reason}"
        if named is None and command in ("serve", "run"):
            return {}, (Warn("config_unreadable", f"{message}; going on without it"),)
        raise UsageError(message, "repair the file" if named is None else f"repair the file, or correct {_CONFIG_VARIABLE}") from None
    for key in document:
        if key not in SETTINGS:
            message = f"unknown key {shown(key)} in file {path}; the nearest known one is {nearest(key, SETTINGS)}"
            raise UsageError(message, "correct the key; vllm-guard --help lists them all")
    return {key: Given(value, f"file {path} key {key}") for key, value in document.items()}, ()


def value_in_file(environ: Mapping[str, str], setting: str) -> str | None:
    """What the TOML file says of one setting, as text; None when it says nothing or cannot be used. Never raises, whatever else is broken."""
    try:
        path = environ.get(_CONFIG_VARIABLE, CONFIG_PATH)
        value = _read_toml(path).get(setting) if path else None
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def shown(value: object) -> str:
    """The repr of a value, shortened; a number too long to print is named by its type."""
    try:
        return repr(value) if isinstance(value, str) and len(value) <= 80 else reprlib.repr(value)  # noqa: PLR2004 - half a line
    except ValueError:
        return f"<{type(value).__name__}>"


def _read_toml(path: str) -> dict[str, Any]:
    """The document. Raises OSError, ValueError and RecursionError (deep nesting). Never waits: a pipe is refused, /dev/null is read."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            msg = "it is not a regular file"
            raise ValueError(msg)
        content = file.read(_CONFIG_LIMIT_BYTES + 1) or b""
    if len(content) > _CONFIG_LIMIT_BYTES:
        msg = f"it is longer than {_CONFIG_LIMIT_BYTES} bytes"
        raise ValueError(msg)
    if sys.version_info >= (3, 11):  # not before there is a file: 4 ms
        import tomllib  # noqa: PLC0415 - as the line before says
    else:
        import tomli as tomllib  # noqa: PLC0415 - as above
    document: dict[str, Any] = tomllib.loads(content.decode())
    return document
