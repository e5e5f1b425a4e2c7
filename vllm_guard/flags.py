"""The grammar of the guard's own flags. Imports nothing heavy: `mode=off` is read here, before everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from vllm_guard.errors import UsageError

FLAG_PREFIX: Final = "--guard-"
VARIABLE_PREFIX: Final = "VLLM_GUARD_"
END_OF_FLAGS: Final = "--"

SWITCHES: Final = ("json", "dry_run", "help", "version")
VALUE_FLAGS: Final = (
    "mode",
    "margin",
    "start_overhead",
    "budget",
    "max_utilization",
    "min_utilization",
    "min_free",
    "min_kv_cache",
    "on_explicit",
    "batched_tokens",
    "levers",
    "competitors",
    "unmeasured",
    "wait",
    "settle",
    "claims",
    "claims_dir",
    "remote_metadata",
    "snapshot",
    "vllm",
    "vllm_version",
    "log_format",
    "termination_log",
)
SETTINGS: Final = (*VALUE_FLAGS, "json", "dry_run")


class _Flag(NamedTuple):
    """One flag of the guard as it was typed; `value` is None when none came with it."""

    spelling: str
    value: str | None


def flag_of(setting: str) -> str:
    """The flag of a setting, `--guard-dry-run` for `dry_run`."""
    return FLAG_PREFIX + setting.replace("_", "-")


def variable_of(setting: str) -> str:
    """The environment variable of a setting, `VLLM_GUARD_DRY_RUN` for `dry_run`."""
    return VARIABLE_PREFIX + setting.upper()


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name most like this one; there always is one, however unlike."""
    import difflib  # noqa: PLC0415 - only for a name that is wrong

    return difflib.get_close_matches(name[:80], known, n=1, cutoff=0.0)[0]


_SWITCH_FLAGS: Final = {flag_of(setting): setting for setting in SWITCHES}
_TAKES_VALUE: Final = {flag_of(setting): setting for setting in VALUE_FLAGS}
_KNOWN_FLAGS: Final = (*_TAKES_VALUE, *_SWITCH_FLAGS)


def split_flags(argv: Sequence[str]) -> tuple[dict[str, str | bool], list[str]]:
    """The guard's own flags by setting name (a switch is True, the last of several counts), and every other token in its order.

    A `--` ends the guard's flags; it and what follows are other tokens. Raises UsageError for an unknown flag, a switch with a value
    and a flag that lacks its value.
    """
    flags: dict[str, str | bool] = {}
    rest: list[str] = []
    for part in _scan(argv):
        if isinstance(part, str):
            rest.append(part)
        else:
            setting, value = _known(part)
            flags[setting] = value
    return flags, rest


def mode_off(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """True when flag or environment say `mode=off` (the flag counts before the variable, empty is off). Never raises, whatever else is broken."""
    mode = typed_value(argv, "mode")
    if mode is None:
        mode = environ.get(variable_of("mode"))
    return mode is not None and mode.strip().lower() in ("", "off")


def typed_value(argv: Sequence[str], setting: str) -> str | None:
    """What the last flag of this setting says, None without one. Never raises, whatever else is broken."""
    typed = [part.value for part in _scan(argv) if isinstance(part, _Flag) and part.spelling == flag_of(setting) and part.value is not None]
    return typed[-1] if typed else None


def strip_flags(argv: Sequence[str]) -> list[str]:
    """The argv without any `--guard-*` token before a `--`, nor the values of those that take one. An unknown flag goes alone: what it takes is not known."""
    return [part for part in _scan(argv) if isinstance(part, str)]


def _scan(argv: Sequence[str]) -> Iterator[str | _Flag]:
    """Every token that is not ours as it stands, and ours with their values, in order."""
    index = 0
    while index < len(argv):
        token = argv[index]
        if token == END_OF_FLAGS:
            yield from argv[index:]
            return
        index += 1
        if not token.startswith(FLAG_PREFIX):
            yield token
            continue
        spelling, equals, value = token.partition("=")
        if equals:
            yield _Flag(spelling, value)
        elif spelling in _TAKES_VALUE and index < len(argv) and argv[index] != END_OF_FLAGS:
            yield _Flag(spelling, argv[index])
            index += 1
        else:
            yield _Flag(spelling, None)


def _known(flag: _Flag) -> tuple[str, str | bool]:
    """Setting and value of a flag. Raises UsageError as `split_flags` says."""
    spelling, value = flag
    if spelling in _SWITCH_FLAGS:
        if value is not None:
            msg = f"{spelling} takes no value, {value!r} was given"
            raise UsageError(msg, f"write {spelling} alone, or leave it out")
        return _SWITCH_FLAGS[spelling], True
    if spelling not in _TAKES_VALUE:
        msg = f"unknown flag {spelling!r}; the nearest known one is {nearest(spelling, _KNOWN_FLAGS)}"
        raise UsageError(msg, "correct the flag; vllm-guard --help lists them all")
    if value is None:
        msg = f"{spelling} needs a value"
        raise UsageError(msg, f"write {spelling}=VALUE")
    return _TAKES_VALUE[spelling], value
