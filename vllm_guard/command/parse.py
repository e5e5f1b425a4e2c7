"""What the words after `vllm serve` mean to a release of vLLM. Pure: the text of a `--config` file comes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeVar

from vllm_guard.command.config_file import ConfigError, parse_config
from vllm_guard.command.launcher import SERVE, Entry
from vllm_guard.command.options import Option, options_of
from vllm_guard.command.tokens import Word, config_word, prepare
from vllm_guard.command.values import parse_value
from vllm_guard.command.walk import Use, Walk, walk
from vllm_guard.facts import Warn
from vllm_guard.release import Release

_MAX_REJECTION_CHARACTERS: Final = 200
_APPENDING: Final = frozenset({"middleware"})  # the only dest that collects its repetitions; of all others the last one counts

_Default = TypeVar("_Default")


@dataclass(frozen=True, slots=True)
class Given:
    """A value that the user gave: as vLLM reads it, as it was written (`true` and `false` for flags), and where."""

    value: object
    text: str
    source: Literal["argv", "yaml"]


@dataclass(frozen=True, slots=True)
class Command:
    """A vLLM command line understood, the words behind what `entry` names. `given` has what the user gave by dest, the last one where there are several.

    `model` is None when none is given or when it cannot be told from the value of an option in `unknown`. `rejection` says why vLLM will answer
    with an error; an unknown option alone never does, because the release may be newer than the guard.
    """

    argv: tuple[str, ...]
    model: str | None
    given: Mapping[str, Given]
    unknown: tuple[str, ...] = ()
    rejection: str | None = None
    asks_help: bool = False
    warnings: tuple[Warn, ...] = ()
    entry: Entry = SERVE

    def integer(self, dest: str, default: _Default) -> int | _Default:
        """The integer given for dest, else the default."""
        value = self._value(dest)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def number(self, dest: str) -> float | None:
        """The number given for dest; it may be nan or out of vLLM's range."""
        value = self._value(dest)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def text(self, dest: str) -> str | None:
        """The text given for dest."""
        value = self._value(dest)
        return value if isinstance(value, str) else None

    def flag(self, dest: str) -> bool | None:
        """True or False where the user gave the flag or its opposite."""
        value = self._value(dest)
        return value if isinstance(value, bool) else None

    def _value(self, dest: str) -> object:
        given = self.given.get(dest)
        return given.value if given else None


def config_path(argv: Sequence[str], release: Release | None) -> str | None:
    """The FILE of `--config FILE`, the only form that vLLM reads, so that the caller can pass its text to `parse`."""
    word = config_word(argv, release)
    return word.text if word else None


def parse(argv: Sequence[str], release: Release | None, config_text: str | None = None, entry: Entry = SERVE) -> Command:
    """What the words after `serve`, or after another entry, mean. Total: whatever vLLM would answer with an error ends in `rejection`, everything else
    is still understood; of a foreign program's words nothing is an error.

    `config_text` is what the file of `config_path` holds, None when it could not be read: then a warning says that its values are unknown.
    """
    problems: list[str] = []
    config_words = None
    if config_text is not None:
        try:
            config_words = parse_config(config_text, release)
        except ConfigError as error:
            problems.append(f"the --config file: {error}")
    serve = entry.grammar == "serve"
    prepared = prepare(argv, release, config_words, serve=serve)
    walked = walk(prepared.words, options_of(release, entry.grammar))
    given, bad_values = _given(walked.uses, release)
    model = walked.positionals[0].text if serve and walked.positionals else None
    if model is None and not (serve and walked.loose) and "model" in given:
        model = given["model"].text
    problems += [*prepared.problems, *walked.problems, *bad_values, *_strays(walked, taken=0 if entry.grammar == "engine" else 1)]
    unknown = tuple(name.key for name in walked.unknown)
    return Command(
        argv=tuple(argv),
        model=model,
        given=MappingProxyType(given),
        unknown=unknown,
        rejection=problems[0][:_MAX_REJECTION_CHARACTERS] if problems and entry.grammar != "foreign" else None,
        asks_help="help" in given or "--version" in unknown,
        warnings=()
        if entry.grammar == "foreign"
        else _warnings(
            given,
            unknown if entry.grammar in ("serve", "module") else (),
            release,
            config_unread=config_word(argv, release) is not None and config_text is None,
        ),
        entry=entry,
    )


def _given(uses: Sequence[Use], release: Release | None) -> tuple[dict[str, Given], list[str]]:
    given: dict[str, Given] = {}
    problems: list[str] = []
    for use in uses:
        option = use.option
        if option.arity in ("1", "+") and not use.values:
            continue
        try:
            value = _value_of(option, use.values, release)
        except ValueError as error:
            problems.append(f"{option.name}: {error}")
            continue
        if option.dest in _APPENDING and option.dest in given:
            value = (*_items(given[option.dest].value), *_items(value))
        text = " ".join(word.text for word in use.values) if option.arity != "0" else str(option.turns_on).lower()
        given[option.dest] = Given(value, text, "yaml" if use.flag.yaml else "argv")
    return given, problems


def _value_of(option: Option, words: Sequence[Word], release: Release | None) -> object:
    values = tuple(parse_value(option, word.text, release) for word in words)
    if option.arity == "0":
        return option.turns_on
    if option.arity == "+" or option.dest in _APPENDING:
        return values
    return values[0] if values else True  # a `?` without a value


def _items(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _strays(walked: Walk, *, taken: int) -> list[str]:
    """Words beyond the `taken` ones. They are not repeated: a second value of `--api-key=` would be one of them. Pythons differ about a spare `--`."""
    extra = sum(word.text != "--" for word in walked.positionals[taken:])
    return [f"{extra} word(s) beside the model belong to no option"] if extra > 0 else []


def _warnings(given: Mapping[str, Given], unknown: Sequence[str], release: Release | None, *, config_unread: bool) -> tuple[Warn, ...]:
    warnings: list[Warn] = []
    if unknown:
        names = ", ".join(name[:60] for name in unknown[:4]) + (" and more" if len(unknown) > 4 else "")  # noqa: PLR2004 - enough for a line
        warnings.append(Warn("unknown_option", f"not known to this guard as options of vLLM {release or '(release unknown)'}, left to vLLM: {names}"))
    if "config" in given:
        warnings.append(Warn("config_ignored", "vLLM reads a config file only as two words, --config FILE: this one is ignored"))
    if config_unread:
        warnings.append(Warn("config_unread", "the --config file was not read: what it sets is unknown"))
    return tuple(warnings)
