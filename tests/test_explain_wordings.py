"""vLLM's messages in every release's wording, behind everything that may stand in front of them: the cause, the line and the numbers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator

import pytest
from log_styles import ENCODINGS, STYLES, by_release, raw_by_release
from start_messages import ENDS, FAILURES, INFORMATION, Wording

from vllm_guard.explain.diagnose import Diagnosis, diagnose
from vllm_guard.explain.signatures import read_signatures

SIGNATURES = read_signatures()
FRAMES = {"oom_at_load": '  File "/usr/lib/python3/vllm/model_loader.py", line 14, in load_model'}
FRAME = '  File "/usr/lib/python3/vllm/worker.py", line 42, in execute_method'
LAST = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


COLOURS = re.compile(r"\x1b\[[\d;]*m")


def names(wordings: tuple[Wording, ...]) -> list[str]:
    """Ids for a table of wordings."""
    return [f"{wording.message}, {wording.first} to {wording.last}" for wording in wordings]


def explained(text: str | bytes) -> Diagnosis:
    """The diagnosis of a log."""
    return diagnose([text.encode() if isinstance(text, str) else text], SIGNATURES)


def missed(found: Diagnosis, wording: Wording, numbers: dict[str, float]) -> str:
    """What is not as it was written; empty where all is."""
    wrong = {name: (value, found.numbers.get(name)) for name, value in numbers.items() if found.numbers.get(name) != value}
    return "" if found.cause == wording.cause and not wrong else f"{found.cause} {wrong}"


def starts(wording: Wording) -> Iterator[tuple[str, list[str], dict[str, float]]]:
    """A failed start of each release as its logger prints it, and as its interpreter does where that changed; the numbers change from one to the next."""
    for seed, release in enumerate(wording.releases()):
        written = wording.written(seed)
        lines = [FRAMES.get(wording.cause, FRAME), *written.text.split("\n")]
        head, last = [f"INFO 08-20 18:04:01 [api_server.py:1] vLLM API server version {release}"], [LAST]
        yield release, [*head, *by_release(lines, release), *last], dict(written.numbers)
        if seed == 0 or release in ("0.10.2", "0.32.0"):
            yield release, [*head, *raw_by_release(lines, release), *last], dict(written.numbers)


@pytest.mark.parametrize("wording", FAILURES, ids=names(FAILURES))
def test_a_message_is_recognised_in_every_release_behind_every_prefix(wording: Wording) -> None:
    """Cause, numbers and release, and the line that says so: the first release behind all prefixes, the others behind half of them in turn."""
    wrong = []
    for at, (release, lines, numbers) in enumerate(starts(wording)):
        for name, style in list(STYLES.items())[at % 2 :: 2 if at else 1]:
            log = style(lines)
            found = explained("\n".join(log))
            miss = missed(found, wording, numbers)
            line = len(lines) - 1 if len(log) == len(lines) else 1
            if miss or (release, line) != (found.vllm_version, found.line):
                wrong.append((release, name, found.line, found.vllm_version, miss))

    assert [] == wrong[:3]


def test_the_engine_echoes_what_a_worker_said() -> None:
    """Where only the echo is left: the same cause, the same numbers, and for certain but for what is out of memory at a stage that is not told."""
    wrong = []
    for wording in FAILURES:
        written = wording.written(0)
        echo = f"RuntimeError: Worker failed with error '{written.text.partition(': ')[2]}', please check the stack trace above for the root cause"
        found = explained("\n".join([*by_release([echo], wording.last), LAST]))
        miss = missed(found, wording, dict(written.numbers))
        if miss and wording.message not in {"util_pydantic", "cuda_oom_raw"}:  # the first is said before there are workers, the other has no stage here
            wrong.append((wording.message, miss))

    assert [] == wrong


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_message_is_recognised_in_every_encoding(name: str) -> None:
    """Of the first release that words it so, and of some later ones."""
    wrong = []
    for wording in FAILURES:
        for release, lines, numbers in list(starts(wording))[::3]:
            miss = missed(explained(ENCODINGS[name]("\n".join(lines) + "\n")), wording, numbers)
            if miss:
                wrong.append((wording.message, release, miss))

    assert [] == wrong[:3]


@pytest.mark.parametrize("wording", ENDS, ids=names(ENDS))
def test_the_end_of_a_parent_alone_asks_for_more_of_the_log(wording: Wording) -> None:
    """It is never a cause."""
    wrong = []
    for release in wording.releases():
        for name, style in STYLES.items():
            found = explained("\n".join(style(by_release([wording.template], release))))
            if ("log_incomplete", "likely") != (found.cause, found.confidence):
                wrong.append((release, name, found.cause))

    assert [] == wrong[:3]


@pytest.mark.parametrize("wording", INFORMATION, ids=names(INFORMATION))
def test_what_a_good_start_says_is_no_cause(wording: Wording) -> None:
    """Behind every prefix, at its own level and without any."""
    wrong = []
    for seed, release in enumerate((wording.first, wording.last)):
        lines = wording.written(seed).text.split("\n")
        for name, style in STYLES.items():
            found = explained("\n".join([*style(lines), *style([line.replace(" ERROR ", " INFO ") for line in by_release(lines, release)])]))
            if found.cause is not None:
                wrong.append((release, name, found.cause, found.text))

    assert [] == wrong[:3]


@pytest.mark.parametrize("wording", FAILURES, ids=names(FAILURES))
def test_a_message_that_is_cut_off_is_recognised_or_not_believed(wording: Wording) -> None:
    """Cut after any character: the cause where enough is left, and never another one for certain; no number that was cut itself."""
    wrong = []
    for seed, release in enumerate((wording.first, wording.last)):
        written = wording.written(seed)
        *before, last = by_release([FRAMES.get(wording.cause, FRAME), *written.text.split("\n")], release)
        length = len(written.text.split("\n")[-1])
        for cut in range(length):
            found = explained("\n".join([*before, last[: len(last) - cut]]))
            enough = written.enough is not None and length - cut >= written.enough
            right = found.cause == wording.cause or (not enough and (found.cause is None or "likely" == found.confidence))
            numbers = {name: value for name, value in written.numbers.items() if name in found.numbers}
            if not right or any(found.numbers[name] != value for name, value in numbers.items()):
                wrong.append((release, last[: len(last) - cut][-60:], found.cause, found.numbers))

    assert [] == wrong[:3]


def hard(line: str, width: int) -> list[str]:
    """As a terminal breaks a line: anywhere."""
    return [line[at : at + width] for at in range(0, len(line), width)]


def soft(line: str, width: int) -> list[str]:
    """As a chat tool breaks a line: between words."""
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)


@pytest.mark.parametrize("wrap", [hard, soft])
@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_message_that_was_wrapped_is_recognised_with_its_numbers(wrap: Callable[[str, int], list[str]], width: int) -> None:
    """Behind the longest prefix of a logger, and without one; the line is the first one that belongs to it."""
    wrong = []
    for wording in FAILURES:
        for seed, release in enumerate((wording.first, wording.last)):
            written = wording.written(seed)
            message = [FRAMES.get(wording.cause, FRAME), *written.text.split("\n")]
            for styled in (by_release(message, release), message):
                lines = [each for line in styled for each in wrap(COLOURS.sub("", line), width)]
                found = explained("\n".join([*lines, LAST]))
                numbers = {} if wording.message == "load_oom" else dict(written.numbers)  # torch's own words are in it: they have them or the line before
                miss = missed(found, wording, numbers)
                if miss:
                    wrong.append((wording.message, release, found.line, miss, lines))

    assert [] == wrong[:3]
