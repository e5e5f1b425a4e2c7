"""Whatever bytes a log holds: explain ends, says the same however they come, and is certain of nothing that no line says."""

from __future__ import annotations

import itertools
import json
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st
from log_styles import ENCODINGS, STYLES, by_release
from start_messages import ENDS, FAILURES, INFORMATION, RELEASES

from vllm_guard.explain.clean import pieces
from vllm_guard.explain.diagnose import Diagnosis, diagnose
from vllm_guard.explain.signatures import read_signatures
from vllm_guard.render.explain import explain_document, explain_lines

SIGNATURES = read_signatures()
FRAGMENTS = [example_ for signature in SIGNATURES for example_ in (*signature.examples, *signature.near)]
JOINTS = ["\n", "\n", "\n", "\r\n", "\r", "", " ", "\0", "\n\n", "\x1b[31m", '{"log": "', '"}', "\x0c", "\x85", "\u2028", "\ufeff"]
HUGE = "9" * 5000


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Messages of every kind behind every prefix, spliced, cut off and mixed with noise."""
    parts: list[str] = []
    for _ in range(draw(st.integers(0, 6))):
        wording = draw(st.sampled_from((*FAILURES, *ENDS, *INFORMATION)))
        text = draw(st.one_of(st.just(wording.written(draw(st.integers(0, 3))).text), st.sampled_from(FRAGMENTS), st.text(max_size=30)))
        text = text[draw(st.integers(0, 8)) : len(text) - draw(st.integers(0, 8))]
        lines = by_release(text.split("\n"), draw(st.sampled_from(RELEASES))) if draw(st.booleans()) else text.split("\n")
        parts += ["\n".join(STYLES[draw(st.sampled_from(sorted(STYLES)))](lines)), draw(st.sampled_from(JOINTS))]
    encoded = ENCODINGS[draw(st.sampled_from(("UTF-8", "UTF-8", "UTF-16 as PowerShell writes it", "UTF-16 without its mark")))]("".join(parts))
    noise = draw(st.binary(max_size=12))
    at = draw(st.integers(0, len(encoded)))
    return encoded[:at] + noise + encoded[at:]


def explained(data: bytes) -> Diagnosis:
    """The diagnosis of these bytes at once."""
    return diagnose([data], SIGNATURES)


def decoded(data: bytes) -> bytes:
    """The log in UTF-8, without NULs."""
    for mark, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if data.startswith(mark):
            data = data[2:].decode(encoding, "replace").encode("utf-8", "replace")
    return data.replace(b"\0", b"")


def letters(text: str) -> str:
    """Nothing but what no prefix, JSON or colour changes."""
    return re.sub(r"[^A-Za-z]", "", text)


def said_at(data: bytes, line: int) -> str:
    """All that this line and the ones that may go on with it say, with what stands in front of each line and without."""
    lines = decoded(data).split(b"\n")[max(0, line - 2) : line + 6]
    said = [piece for each in lines for part in each.split(b"\r") for piece in pieces(part)]
    return letters(" ".join(piece.text for piece in said)) + "." + letters(" ".join(piece.words for piece in said))


@settings(max_examples=300)
@given(logs())
@example(f"ValueError: World size ({HUGE}) is larger than the number of available GPUs ({HUGE}) in this node.".encode())
@example(f"args: max_num_seqs={HUGE}\nRuntimeError: CUDA out of memory occurred when warming up sampler with {HUGE} dummy requests.".encode())
@example(f"Free memory on device ({HUGE}.{HUGE}/1e-{HUGE} GiB) on startup is less than desired GPU memory utilization (0.9, {HUGE}e99 GiB).".encode())
@example(b"Free memory on device (0/0 GiB) on startup is less than desired GPU memory utilization (0, 0 GiB).")
@example(f"{{'max_num_seqs': {HUGE[:15]}e9}}\nmax_num_batched_tokens=9.9.9.9\ntorch.OutOfMemoryError: CUDA out of memory.".encode())
@example(b"  Input should be x [type=y, input_value=nan\nGot inf")
@example(
    b"2026-08-20T18:04:22.1Z pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig\n2026-08-20T18:04:22.1Z gpu_memory_utilization\n"
    b"2026-08-20T18:04:22.1Z   Input should be less than or equal to 1 [type=less_than_equal, input_value=79.0, input_type=float]\n"
)
def test_any_log_is_explained_and_certain_is_what_a_line_says(data: bytes) -> None:
    """The line that is named exists and says it, a sure signature of that cause matches it; both ways of showing it work."""
    found = explained(data)
    document = json.loads(json.dumps(explain_document(found), allow_nan=False))
    shown = list(explain_lines(found))

    assert all(line.isprintable() for line in shown)
    assert document["cause"] == found.cause
    assert (found.line is None) == (found.cause is None) == (found.text is None)
    if found.line is not None:
        assert 1 <= found.line <= decoded(data).count(b"\n") + 1
        assert letters((found.text or "").rpartition(": ")[2])[:40] in said_at(data, found.line)
    if "certain" == found.confidence:
        stages = ("oom",) if (found.cause or "").startswith("oom") else ()
        assert any(each.sure and each.cause in (found.cause, *stages) and each.pattern.search(found.text or "") for each in SIGNATURES)


@given(st.binary(max_size=400))
def test_any_bytes_are_explained(data: bytes) -> None:
    """Nothing in them is certain, for no message is."""
    assert "likely" == explained(data).confidence


@settings(max_examples=200)
@given(logs(), st.lists(st.integers(0, 4000), max_size=12))
def test_the_chunks_in_which_a_log_comes_change_nothing(data: bytes, cuts: list[int]) -> None:
    """Also none of the bytes of a mark, a line's end or a character apart."""
    at = [0, *sorted(cuts), len(data)]

    assert explained(data) == diagnose([data[start:end] for start, end in itertools.pairwise(at)], SIGNATURES)


@settings(max_examples=30)
@given(logs())
def test_a_log_may_come_byte_by_byte(data: bytes) -> None:
    """The smallest chunks."""
    assert explained(data) == diagnose([data[at : at + 1] for at in range(len(data))], SIGNATURES)


def test_json_that_is_made_to_hurt_is_text() -> None:
    """Deep, with huge numbers, endless strings, keys of every type, and messages that are no text."""
    hostile = (
        *("[" * 20_000, '{"log":' * 20_000, '{"message": ' + HUGE + "}", '{"message": "' + "error " * 20_000, '{"MESSAGE":[300, -1]}'),
        *('{"MESSAGE":[1.5]}', '{"message": null}', '{"message": {"message": {"message": {"message": {"message": {"message": "error"}}}}}}', '{"log": []}'),
        *(
            '{"message": "\\ud800 error"}',
            '{"level": 3, "message": "error"}',
            '{"jsonPayload": "error"}',
            '{"message": "' + "error\\n" * 5000 + '"}',
            '{"log": 1e999}',
        ),
    )
    found = explained("\n".join((*hostile, "ValueError: No available memory for the cache blocks.")).encode())

    assert ("gate_cache_blocks", len(hostile) + 1) == (found.cause, found.line)
