"""vLLM's messages in every release's wording, behind everything that may stand in front of them: the cause, the line and the numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from log_styles import ENCODINGS, STYLES, by_release, raw_by_release
from start_messages import ENDS, FAILURES, INFORMATION, Wording

from vllm_guard.explain.diagnose import Diagnosis, diagnose
from vllm_guard.explain.signatures import read_signatures

SIGNATURES = read_signatures()
FRAMES = ("Traceback (most recent call last):", '  File "/usr/lib/python3/vllm/model_loader.py", line 14, in load_model', "    self.model = loader.load_model(")
LAST = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


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
        lines = [*FRAMES, *written.text.split("\n")]
        head, last = [f"INFO 08-20 18:04:01 [api_server.py:1] vLLM API server version {release}"], [LAST]
        yield release, [*head, *by_release(lines, release), *last], dict(written.numbers)
        if seed == 0 or release in ("0.10.2", "0.32.0"):
            yield release, [*head, *raw_by_release(lines, release), *last], dict(written.numbers)


@pytest.mark.parametrize("wording", FAILURES, ids=names(FAILURES))
def test_a_message_is_recognised_in_every_release_behind_every_prefix(wording: Wording) -> None:
    """Cause, numbers and release; the line that proves it holds the message."""
    wrong = []
    for release, lines, numbers in starts(wording):
        for name, style in STYLES.items():
            log = style(lines)
            found = explained("\n".join(log))
            miss = missed(found, wording, numbers)
            line = len(lines) - 1 if len(log) == len(lines) else 1
            if miss or (release, line) != (found.vllm_version, found.line):
                wrong.append((release, name, found.line, found.vllm_version, miss))

    assert [] == wrong[:3]


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_message_is_recognised_in_every_encoding(name: str) -> None:
    """Of every release, as its logger prints it."""
    wrong = []
    for wording in FAILURES:
        for release, lines, numbers in starts(wording):
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
    for seed, release in enumerate(wording.releases()):
        lines = wording.written(seed).text.split("\n")
        for name, style in STYLES.items():
            for log in (style(lines), style([line.replace(" ERROR ", " INFO ") for line in by_release(lines, release)])):
                found = explained("\n".join(log))
                if found.cause is not None:
                    wrong.append((release, name, found.cause, found.text))

    assert [] == wrong[:3]
