"""The table of causes: every row matches what it says, nothing that is near it, and is seen by the reader of logs; every cause and action has words."""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Iterable
from typing import Any

import pytest

from vllm_guard.explain.diagnose import _AFTER_READY, _OOM_AT, _STAGE_OF, diagnose
from vllm_guard.explain.fixes import FLAGS
from vllm_guard.explain.remedies import BY_NUMBERS
from vllm_guard.explain.signatures import Signature, read_signatures
from vllm_guard.explain.stages import _STAGE_OF_FRAME
from vllm_guard.explain.tokens import JOINED, TOKENS
from vllm_guard.explain.wrap import LONGEST_TEXT
from vllm_guard.render.explain import _ACTIONS, _CAUSES

SIGNATURES = read_signatures()
IDS = [signature.id for signature in SIGNATURES]
EXAMPLES = [pytest.param(signature, example, id=f"{signature.id}: {example[:50]}") for signature in SIGNATURES for example in signature.examples]
NEAR = [pytest.param(signature, near, id=f"{signature.id}: {near[:50]}") for signature in SIGNATURES for near in signature.near]
PARSER = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
OOM = frozenset(_OOM_AT.values()) | {"oom"}


def alike(cause: str, other: str) -> bool:
    """Whether these are one cause; which of those out of memory it is, the stage tells."""
    return cause == other or {cause, other} <= OOM


def test_ids_are_unique() -> None:
    """They are the names of the rows."""
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize("signature", SIGNATURES, ids=IDS)
def test_a_row_has_an_example_and_a_near_miss(signature: Signature) -> None:
    """A pattern without either cannot be judged."""
    assert signature.examples
    assert signature.near


@pytest.mark.parametrize(("signature", "example"), EXAMPLES)
def test_an_example_is_matched_by_its_row_first(signature: Signature, example: str) -> None:
    """Or by one of the same cause, which says no less for certain."""
    first = next(each for each in SIGNATURES if each.pattern.search(example))

    assert signature.pattern.search(example)
    assert (True, True) == (alike(signature.cause, first.cause), first.sure >= signature.sure)


@pytest.mark.parametrize(("signature", "near"), NEAR)
def test_a_near_miss_is_no_match(signature: Signature, near: str) -> None:
    """What looks like it and is not, or is a line of the program's code."""
    found = diagnose([f"ERROR 08-20 18:04:22 [core.py:700] {near}".encode()], (signature,))

    assert found.cause is None or not alike(signature.cause, found.cause)


@pytest.mark.parametrize(("signature", "example"), EXAMPLES)
def test_an_example_is_a_line_that_the_reader_looks_at(signature: Signature, example: str) -> None:
    """It holds a token; the line before a rejected value need not."""
    tokens = (*TOKENS, JOINED) if signature.joined else TOKENS

    assert any(token in example.encode() for token in tokens)


@pytest.mark.parametrize(("signature", "example"), EXAMPLES)
def test_an_example_alone_is_a_log_with_its_cause(signature: Signature, example: str) -> None:
    """Through the reader, behind a logger at level ERROR, with what the row says helps."""
    found = diagnose([f"ERROR 08-20 18:04:22 [core.py:700] {example}".encode()], SIGNATURES)

    assert found.cause is not None
    assert alike(signature.cause, found.cause)
    assert found.fixes


@pytest.mark.parametrize("signature", [each for each in SIGNATURES if not each.info], ids=[each.id for each in SIGNATURES if not each.info])
def test_what_is_quoted_at_level_info_is_no_cause(signature: Signature) -> None:
    """A prompt that is about CUDA, logged by a server that works."""
    for example in (each for each in signature.examples if not re.match(r"ERROR \d\d-\d\d", each)):  # whole records are records, quoted or not
        found = diagnose([f"INFO 08-20 18:04:22 [logger.py:41] Received request cmpl-1: prompt: '{example.strip()}', params: x".encode()], SIGNATURES)
        assert found.cause is None, example


def ways(parsed: Iterable[tuple[Any, Any]]) -> set[str]:
    """The shortest texts that a parsed pattern matches, one for each way through its branches; | stands for anything else."""
    texts = {""}
    for operation, argument in parsed:
        name = str(operation)
        if name == "LITERAL":
            options = {chr(argument)}
        elif name == "SUBPATTERN":
            options = ways(argument[-1])
        elif name == "BRANCH":
            options = set().union(*map(ways, argument[1]))
        elif name in {"MAX_REPEAT", "MIN_REPEAT"}:
            options = ways(argument[2]) if argument[0] else {""}
        elif name == "IN":
            options = {chr(value) if str(kind) == "LITERAL" else "|" for kind, value in argument}
        else:
            options = {""} if name in {"AT", "ASSERT", "ASSERT_NOT"} else {"|"}
        texts = {text + option for text in texts for option in options}
    return texts


@pytest.mark.parametrize("signature", SIGNATURES, ids=IDS)
def test_every_way_of_matching_holds_a_token(signature: Signature) -> None:
    """Whichever branch of the pattern a line takes, the reader of logs looks at it."""
    tokens = (*TOKENS, JOINED) if signature.joined else TOKENS
    unseen = [text for text in ways(PARSER.parse(signature.pattern.pattern)) if not any(token in text.encode() for token in tokens)]

    assert [] == unseen


@pytest.mark.parametrize("signature", SIGNATURES, ids=IDS)
def test_a_pattern_does_not_take_longer_and_longer(signature: Signature) -> None:
    """On the longest text that is searched, which begins like its own words again and again: well under a tenth of a second."""
    for example in (*signature.examples, *signature.near):
        text = "".join(example[:length] for length in range(len(example), 0, -1) for _ in range(3))[: LONGEST_TEXT - 1] + "\x00"
        began = time.process_time()
        signature.pattern.search(text)
        assert time.process_time() - began < 0.1


def test_every_cause_has_words() -> None:
    """Those of the table, and those that no row names."""
    causes = {signature.cause for signature in SIGNATURES} - {"oom"} | set(_OOM_AT.values()) | set(_STAGE_OF) | set(BY_NUMBERS) | {"log_incomplete"}

    assert set() == causes - set(_CAUSES)
    assert set() == (_AFTER_READY - {"oom"}) - causes


def test_every_action_of_a_row_has_words_or_a_flag() -> None:
    """Nobody reads an id."""
    actions = {action for signature in SIGNATURES for action in signature.fixes} | {"more_log", "wait"}

    assert set() == actions - set(_ACTIONS) - {action for action, (flag, _) in FLAGS.items() if flag}


def test_every_stage_of_a_frame_names_a_cause() -> None:
    """What is out of memory there is named after it."""
    assert set() == set(_STAGE_OF_FRAME.values()) - set(_OOM_AT)
