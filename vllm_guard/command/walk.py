"""Which words are options, which are their values, and which belong to nobody: what argparse does, with places instead of effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_guard.command.options import Named, Option, Options
from vllm_guard.command.tokens import Word


@dataclass(frozen=True, slots=True)
class Use:
    """One option as it stands on the command line, and its values; a value behind an `=` has the place of its flag."""

    option: Option
    flag: Word
    values: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """A command line taken apart. `loose` words follow an unknown option and may be its values; `separator` is the first `--`."""

    uses: tuple[Use, ...]
    positionals: tuple[Word, ...]
    loose: tuple[Word, ...]
    unknown: tuple[Named, ...]
    separator: Word | None
    problems: tuple[str, ...]


def walk(words: Sequence[Word], options: Options) -> Walk:
    """The words taken apart, in order. Total: what argparse would answer with an error is in `problems`."""
    end = next((index for index, word in enumerate(words) if word.text == "--"), len(words))
    named = [options.named(word.text) for word in words[:end]]
    uses: list[Use] = []
    positionals: list[Word] = []
    loose: list[Word] = []
    unknown: list[Named] = []
    problems: list[str] = []
    index = 0
    while index < end:
        word, name = words[index], named[index]
        index += 1
        if name is None:
            positionals.append(word)
            continue
        run = index
        while run < end and named[run] is None:
            run += 1
        if name.option is None:
            if name.candidates:
                problems.append(f"{name.key[:60]!r} could be {', '.join(option.name for option in name.candidates[:4])}")
            else:
                unknown.append(name)
            if name.inline is None:
                loose += words[index:run]
                index = run
            continue
        values, problem = _values(name, word, words[index:run])
        uses.append(Use(name.option, word, values))
        if problem:
            problems.append(problem)
        if name.inline is None:
            index += len(values)
    positionals += words[end + 1 :]
    return Walk(tuple(uses), tuple(positionals), tuple(loose), tuple(unknown), words[end] if end < len(words) else None, tuple(problems))


def _values(name: Named, flag: Word, run: Sequence[Word]) -> tuple[tuple[Word, ...], str | None]:
    """The values that an option takes out of the run of words behind it, and what argparse has against them."""
    option = name.candidates[0]
    if name.inline is not None:
        if option.arity == "0":
            return (), f"{option.name} takes no value"
        return (flag._replace(text=name.inline),), None
    match option.arity:
        case "0":
            return (), None
        case "?":
            return tuple(run[:1]), None
        case "1":
            return tuple(run[:1]), None if run else f"no value stands after {name.key[:60]!r}"
        case "+":
            return tuple(run), None if run else f"no value stands after {name.key[:60]!r}"
