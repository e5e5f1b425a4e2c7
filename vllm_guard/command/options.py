"""Which options a release of `vllm serve` has, and which one a word of the command line means."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from vllm_guard.command.launcher import Grammar
from vllm_guard.release import Release, parse_release

Arity = Literal["0", "1", "?", "+"]
Kind = Literal["flag", "bool", "int", "float", "str", "human_int", "human_int_or_auto", "json", "json_or_str", "config"]

_TABLE: Final = Path(__file__).with_name("options.tsv")
# argparse reads a word such as -1 or -.5 as a value because no option of vLLM looks like a number.
_NEGATIVE_NUMBER: Final = re.compile(r"-\d+|-\d*\.\d+")


class Option(NamedTuple):
    """One spelling of an option: `name` as argparse registers it, `dest` as vLLM calls the value.

    `nullable`: the texts "" and "None" mean no value.
    """

    name: str
    dest: str
    arity: Arity
    kind: Kind
    nullable: bool

    @property
    def turns_on(self) -> bool:
        """True where the bare flag sets its dest, False for `--no-x` and, from 0.33.0, `--disable-x` of an `enable_x` and the reverse."""
        return not self.name.startswith("--") or self.name[2:].replace("-", "_") == self.dest


class Named(NamedTuple):
    """An option word taken apart: the options it may mean (none: unknown, several: ambiguous), its key as spelled and what stands behind the `=`."""

    candidates: tuple[Option, ...]
    key: str
    inline: str | None

    @property
    def option(self) -> Option | None:
        """The one option that it means."""
        return self.candidates[0] if len(self.candidates) == 1 else None


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one release by name."""

    by_name: Mapping[str, Option]
    abbreviations: bool = True

    def named(self, text: str) -> Named | None:
        """What a word before any `--` names; None when argparse takes it for a value (`ArgumentParser._parse_optional`)."""
        if not text.startswith("-") or text == "-":
            return None
        exact = self.by_name.get(text)
        if exact is not None:
            return Named((exact,), text, None)
        key, equals, value = text.partition("=")
        inline = value if equals else None
        exact = self.by_name.get(key)
        if exact is not None:
            return Named((exact,), key, inline)
        if not self.abbreviations:
            return Named((), key, inline)
        if text.startswith("--"):
            candidates = tuple(option for name, option in self.by_name.items() if name.startswith(key))
            glued = None
        else:
            candidates = tuple(option for name, option in self.by_name.items() if name.startswith(text))
            glued = self.by_name.get(text[:2])
        if glued is not None:  # -qawq
            return Named((glued, *candidates), text[:2], text[2:])
        if not candidates and (_NEGATIVE_NUMBER.fullmatch(text) or " " in text):
            return None
        return Named(candidates, key, inline)


def options_of(release: Release | None, grammar: Grammar) -> Options:
    """The options that words of this grammar may mean.

    `vllm bench` has two of its own that would pass for abbreviations here. In words of a foreign program only whole names count, and none of one
    letter: `-n 3` is its own business.
    """
    options = read_options(release)
    match grammar:
        case "engine":
            return Options(
                {
                    **options.by_name,
                    "--n": Option("--n", "n", "1", "str", nullable=False),
                    "--profile": Option("--profile", "profile", "0", "flag", nullable=False),
                }
            )
        case "foreign":
            return Options({name: option for name, option in options.by_name.items() if len(name) > len("-x")}, abbreviations=False)
        case _:
            return options


@functools.lru_cache(maxsize=4)
def read_options(release: Release | None) -> Options:
    """The options of a release: both neighbours' between two inspected ones, the last's beyond the last and when the release is unknown."""
    rows = [line.split("\t") for line in _TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    releases = {text: parsed for text in {row[1] for row in rows} | {row[2] for row in rows} if (parsed := parse_release(text))}
    inspected = sorted(releases.values())
    below = max((known for known in inspected if release is None or known <= release), default=inspected[0])
    above = min((known for known in inspected if release is not None and known >= release), default=inspected[-1])
    by_name: dict[str, Option] = {}
    for name, first, last, dest, arity, kind in rows:  # rows of one name go by age: the newer neighbour's stays
        if any(releases[first] <= known <= releases[last] for known in (below, above)):
            by_name[name] = Option(name, dest, arity, kind.rstrip("?"), kind.endswith("?"))  # type: ignore[arg-type]  # the table's words, held by a test
    return Options(by_name)
