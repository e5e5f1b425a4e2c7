"""The user's argv with the guard's values in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm_guard.command.launcher import Grammar
from vllm_guard.command.options import Options, options_of
from vllm_guard.command.tokens import prepare
from vllm_guard.command.walk import Walk, walk
from vllm_guard.release import Release


def rewrite(argv: Sequence[str], values: Mapping[str, str], release: Release | None, grammar: Grammar = "serve") -> tuple[str, ...]:
    """The argv with these values by dest (options of one value): every occurrence changed where the user wrote it, else added before any `--`.

    The user's spelling stays and no other word changes; rewriting twice is rewriting once. What only the `--config` file says is overridden by
    adding the option, because argv beats it. Where vLLM would not read the added words (after an option whose value is missing) nothing is added.
    Raises KeyError for a dest that this release has no option for.
    """
    options = options_of(release, grammar)
    words = list(argv)
    for dest, value in values.items():
        words = _with_value(words, dest, value, options, release)
    return tuple(words)


def _with_value(words: list[str], dest: str, value: str, options: Options, release: Release | None) -> list[str]:
    walked = _walk(words, options, release)
    changed = list(words)
    found = False
    for use in walked.uses:
        if use.option.dest != dest or use.flag.at is None:
            continue
        found = True
        for old in use.values:
            if old.at is not None:  # behind an = or glued to its flag, the value is the end of its word
                changed[old.at] = words[old.at][: len(words[old.at]) - len(old.text)] + value
    if found:
        return changed
    place = len(words) if walked.separator is None or walked.separator.at is None else walked.separator.at
    added = [*words[:place], options.by_name["--" + dest.replace("_", "-")].name, value, *words[place:]]
    return added if _adds_only(place, walked, _walk(added, options, release)) else words


def _adds_only(place: int, before: Walk, after: Walk) -> bool:
    """True when vLLM reads the two added words as an option and its value, and has nothing against the line that it did not have before."""
    read = any((use.flag.at, *(value.at for value in use.values)) == (place, place + 1) for use in after.uses)
    return read and len(after.problems) <= len(before.problems)


def _walk(words: Sequence[str], options: Options, release: Release | None) -> Walk:
    return walk(prepare(words, release, config_words=None).words, options)
