"""The walk over a command line agrees with the argparse of this interpreter, which is what vLLM's parser is made of."""

from __future__ import annotations

import argparse
from typing import NoReturn

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_guard.command.options import read_options
from vllm_guard.command.tokens import Word
from vllm_guard.command.walk import Walk, walk
from vllm_guard.release import Release

OPTIONS = read_options(Release(0, 32))


class _Refused(Exception):  # noqa: N818  # argparse's answer, not a fault
    pass


class _Reference(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def _reference() -> argparse.ArgumentParser:
    """A plain argparse parser with vLLM's options, every value kept as text."""
    parser = _Reference(prog="vllm serve", add_help=False)
    parser.add_argument("model_tag", nargs="?")
    for option in OPTIONS.by_name.values():
        if option.arity == "0":
            parser.add_argument(option.name, dest=option.dest, action="store_const", const=[], default=None)
        elif option.arity == "?":
            parser.add_argument(option.name, dest=option.dest, nargs="?", const=[])
        else:
            parser.add_argument(option.name, dest=option.dest, nargs=None if option.arity == "1" else option.arity)
    return parser


REFERENCE = _reference()
# A part of the table, so that options meet each other's prefixes and repetitions; all kinds of arity.
NAMES = sorted(name for name in OPTIONS.by_name if name.startswith(("--ma", "--gpu", "--enf", "--api", "--hf", "--served", "-")) and name != "--help")
PREFIXES = st.sampled_from(NAMES).flatmap(lambda name: st.integers(2, len(name)).map(lambda length: name[:length]))
VALUES = st.sampled_from(
    ["m", "0.5", "-1", "-.5", "-1e5", "", "-", "two words", "-two words", "a=b", "--nope", "--nope=1", "-x", "-tp2", "-qawq", "-n=2", "--"]
)
WORDS = st.one_of(VALUES, VALUES, st.sampled_from(NAMES), PREFIXES, st.tuples(PREFIXES, VALUES.filter(lambda value: value != "--")).map("=".join))


def _as_argparse(words: list[str]) -> tuple[dict[str, list[str]], list[str]] | None:
    """What argparse sets (model_tag included) and leaves over; None where it refuses."""
    try:
        namespace, extras = REFERENCE.parse_known_args(words)
    except _Refused:
        return None
    values = {dest: value if isinstance(value, list) else [value] for dest, value in vars(namespace).items() if value is not None}
    return values, extras


def _as_walked(walked: Walk) -> tuple[dict[str, list[str]], bool] | None:
    if walked.problems:
        return None
    values = {use.option.dest: [word.text for word in use.values] for use in walked.uses}
    if walked.positionals:
        values["model_tag"] = [walked.positionals[0].text]
    return values, len(walked.positionals) > 1


@settings(max_examples=400, deadline=None)
@given(st.lists(WORDS, max_size=7).filter(lambda words: words.count("--") < 2))
def test_the_walk_takes_a_command_line_apart_as_argparse_does(words: list[str]) -> None:
    """Both refuse, or both give the same values to the same options and agree whether words are left over.

    A `--` left over is not compared: releases of Python differ about it.
    """
    walked = walk([Word(text) for text in words], OPTIONS)
    expected, actual = _as_argparse(words), _as_walked(walked)
    if expected is None or actual is None:
        assert (expected is None) == (actual is None)
        return
    values, extras = expected
    if not walked.unknown:
        assert (values, any(extra != "--" for extra in extras)) == actual
        return
    # Behind an unknown option the guard does not guess what argparse would take for the model.
    assert {**values, "model_tag": []} == {**actual[0], "model_tag": []}
    assert extras
