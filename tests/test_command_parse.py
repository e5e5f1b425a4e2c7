"""What the words after `vllm serve` mean: the answers of the real 0.32.0 parser, and everything that it was not asked."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_guard.command.config_file import MAX_CONFIG_CHARACTERS
from vllm_guard.command.options import read_options
from vllm_guard.command.parse import Command, config_path, parse
from vllm_guard.release import Release

DATA = Path(__file__).with_name("data")
V0_32 = Release(0, 32)
ROWS = [json.loads(line) for line in (DATA / "parser_conformance.jsonl").read_text().splitlines()]
TAKEN = [row for row in ROWS if "set" in row]
REJECTED = [row for row in ROWS if "rejected" in row]

# vLLM rejects these for what the guard does not know: the fields of a config object, the choices of a value, a file that is not there,
# and a spare `--`, about which releases of Python differ.
UNSEEN = {
    ("m", "--compilation-config", '{"level":3}'),
    ("m", "--compilation-config", '{"nope":3}'),
    ("m", "--compilation-config", "3"),
    ("m", "--dtype", "zzz"),
    ("m", "--kv-cache-dtype", "zzz"),
    ("m", "--config", "missing.yaml"),
    ("m", "--port", "9000", "--"),
}


def parsed(argv: list[str], release: Release | None = V0_32) -> Command:
    """The command, with the file of its --config read from the tests' data where it is there."""
    path = config_path(argv, release)
    file = DATA / "yaml" / path if path else None
    return parse(argv, release, file.read_text() if file and file.is_file() else None)


def as_json(value: object) -> Any:
    """A value as the table has it: tuples as lists."""
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("row", TAKEN, ids=lambda row: " ".join(row["argv"]))
def test_what_vllm_takes_has_the_same_values_here(row: dict[str, Any]) -> None:
    """For every dest that the real 0.32.0 parser set. In the table config objects are the JSON of the fields that differ from their defaults."""
    command = parsed(row["argv"])
    expected = dict(row["set"])
    model = expected.pop("model_tag", None) or expected.get("model")
    assert (None, (), model) == (command.rejection, command.unknown, command.model)
    actual = {dest: as_json(command.given[dest].value) for dest in expected}
    assert repr(expected) == repr(actual)  # repr, because nan differs from nan


@pytest.mark.parametrize("row", REJECTED, ids=lambda row: " ".join(row["argv"]))
def test_what_vllm_rejects_is_seen_or_unknown_here(row: dict[str, Any]) -> None:
    """An error is named, an option that the release does not have is unknown, help is help."""
    command = parsed(row["argv"])
    seen = (command.rejection is not None) or bool(command.unknown) or command.asks_help
    assert seen == (tuple(row["argv"]) not in UNSEEN)


def test_the_table_is_whole() -> None:
    """297 command lines; 85 of the 120 rejected ones have a reason, the rest have unknown options, ask for help or are in UNSEEN."""
    reasons = sum(parsed(row["argv"]).rejection is not None for row in REJECTED)
    assert (len(ROWS), len(TAKEN), len(REJECTED), reasons) == (297, 177, 120, 85)


def test_options_of_a_newer_release_are_unknown_and_the_rest_is_understood() -> None:
    """They are neither rejected nor guessed at, abbreviations and JSON keys included."""
    argv = ["m", "--warp-drive", "9", "--gpu-mem", "0.5", "--hyper_space=1", "--max-model-len", "16k", "--flux.capacity", "3"]
    command = parse(argv, Release(0, 99))
    assert (command.model, command.unknown, command.rejection) == ("m", ("--warp-drive", "--hyper-space", "--flux"), None)
    assert (command.number("gpu_memory_utilization"), command.integer("max_model_len", None)) == (0.5, 16000)


@pytest.mark.parametrize(
    ("argv", "model"),
    [
        pytest.param(["--warp", "m"], None, id="the word behind an unknown option may be its value"),
        pytest.param(["--warp", "9", "m"], None, id="two words behind it may be too"),
        pytest.param(["--warp=9", "m"], "m", id="a value behind = leaves the next word alone"),
        pytest.param(["m", "--warp", "9"], "m", id="a model before it is the model"),
        pytest.param(["--warp", "9", "--port", "1", "m"], "m", id="a word elsewhere is the model"),
        pytest.param(["--warp", "--", "m"], "m", id="a separator ends its values"),
        pytest.param(["--warp", "--port", "1"], None, id="no model at all"),
    ],
)
def test_the_model_beside_an_unknown_option(argv: list[str], model: str | None) -> None:
    """It is known only where no reading of the unknown option changes it."""
    command = parse(argv, Release(0, 99))
    assert (model, None) == (command.model, command.rejection)


@pytest.mark.parametrize(
    ("release", "argv", "expected"),
    [
        pytest.param(Release(0, 12), ["m", "--max-model-len", "1t"], None, id="t is no suffix in 0.12.0"),
        pytest.param(Release(0, 15, 1), ["m", "--max-model-len", "1t"], 10**12, id="t is one from 0.15.1"),
        pytest.param(Release(0, 12), ["m", "--max-model-len", "auto"], None, id="auto is no length in 0.12.0"),
        pytest.param(Release(0, 13), ["m", "--max-model-len", "auto"], -1, id="auto may be one between 0.12.0 and 0.15.1"),
        pytest.param(Release(0, 6, 3), ["m", "--max-model-len", "1k"], None, id="plain integers in 0.6.3"),
        pytest.param(None, ["m", "--max-model-len", "1k"], 1000, id="an unknown release reads as the last one"),
    ],
)
def test_values_are_read_by_release(release: Release | None, argv: list[str], expected: int | None) -> None:
    """What a release does not take is a rejection and no value."""
    command = parse(argv, release)
    assert (expected, expected is None) == (command.integer("max_model_len", None), command.rejection is not None)


@pytest.mark.parametrize(
    ("release", "argv", "model", "rejected"),
    [
        pytest.param(Release(0, 10, 2), ["--model", "m"], "m", True, id="0.10.2 wants a positional model"),
        pytest.param(Release(0, 10, 2), ["--model=m"], "m", False, id="0.10.2 lets the = form through"),
        pytest.param(Release(0, 11, 2), ["--model", "m"], "m", False, id="0.11.2 moves it to the front"),
        pytest.param(Release(0, 15, 1), ["--served-model-name", "a", "m"], None, False, id="0.15.1 eats the model silently"),
        pytest.param(Release(0, 18, 1), ["--served-model-name", "a", "m"], None, True, id="0.18.1 says so"),
    ],
)
def test_the_model_by_release(release: Release, argv: list[str], model: str | None, *, rejected: bool) -> None:
    """Where the model may stand has changed."""
    command = parse(argv, release)
    assert (model, rejected) == (command.model, command.rejection is not None)


@pytest.mark.parametrize(
    ("release", "dest", "value"),
    [
        pytest.param(Release(0, 8, 5), "compilation_config", "3", id="a compilation config in 0.8.5"),
        pytest.param(Release(0, 11, 2), "compilation_config", {"level": 3}, id="its level in 0.11.2"),
        pytest.param(Release(0, 12), "optimization_level", "3", id="an optimization level from 0.12.0"),
    ],
)
@pytest.mark.parametrize("argv", [["m", "-O3"], ["m", "-O", "3"], ["m", "-O=3"]], ids=" ".join)
def test_the_letter_o_by_release(release: Release, dest: str, value: object, argv: list[str]) -> None:
    """-O has meant three things."""
    assert value == parse(argv, release).given[dest].value


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["--enable-chunked-prefill"], True),
        (["--no-enable-chunked-prefill"], False),
        (["--disable-chunked-prefill"], False),
        (["--enable-chunked-prefill", "--disable-chunked-prefill"], False),
        ([], None),
    ],
    ids=str,
)
def test_flags_have_an_opposite(argv: list[str], value: bool | None) -> None:  # noqa: FBT001  # the expected value
    """0.33.0 added the third spelling; the last one counts."""
    assert value == parse(["m", *argv], Release(0, 33)).flag("enable_chunked_prefill")


def test_a_value_says_where_it_comes_from() -> None:
    """argv beats the file wherever it stands, and texts stay as written."""
    command = parse(["m", "--max-model-len", "16k", "--config", "f.yaml"], V0_32, "max-model-len: 4096\nmax-num-seqs: 7\n")
    assert (command.given["max_model_len"].text, command.given["max_model_len"].source) == ("16k", "argv")
    assert (command.given["max_num_seqs"].text, command.given["max_num_seqs"].source) == ("7", "yaml")


def test_a_config_behind_an_equals_sign_is_never_read() -> None:
    """vLLM ignores it on every release, so its user is told."""
    command = parse(["m", "--config=f.yaml"], V0_32)
    assert (config_path(["m", "--config=f.yaml"], V0_32), [warning.code for warning in command.warnings]) == (None, ["config_ignored"])


def test_a_config_that_was_not_read_leaves_its_values_unknown() -> None:
    """That is a warning, and no claim that there is no model."""
    command = parse(["--config", "f.yaml"], V0_32)
    assert (command.rejection, [warning.code for warning in command.warnings]) == (None, ["config_unread"])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: " + "[" * 50_000, id="deep nesting"),
        pytest.param(
            "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(f"{n}: &{n} [*{p}, *{p}]\n" for p, n in zip("bcdefghijklmnopq", "cdefghijklmnopqr", strict=True)),
            id="aliases",
        ),
        pytest.param("a: &a [*a]\n", id="a list inside of itself"),
        pytest.param("a: 1\n" * MAX_CONFIG_CHARACTERS, id="too long"),
        pytest.param("a: 1" + ":59" * 3000 + "\n", id="an integer of thousands of digits"),
        pytest.param("1: a\n", id="a key that is no text"),
        pytest.param("a: !!python/object/apply:os.system [true]\n", id="code"),
        pytest.param("a: !!int x\n", id="a tag that lies"),
        pytest.param("a: !!float ''\n", id="an empty number"),
        pytest.param("a: {b: 2020-01-01}\n", id="a date inside of JSON"),
        pytest.param("a: [\x00]", id="a control character"),
        pytest.param("a: {b\n", id="not YAML"),
    ],
)
def test_a_hostile_config_is_a_rejection(text: str) -> None:
    """It neither stops the guard nor hides the rest of the command line."""
    command = parse(["m", "--config", "f.yaml", "--gpu-mem", "0.5"], V0_32, text)
    assert command.rejection
    assert command.rejection.startswith("the --config file")
    assert command.number("gpu_memory_utilization") == 0.5


@pytest.mark.parametrize("argv", [["m", "--help"], ["--help=max-model-len"], ["-h"], ["m", "--hel"], ["m", "--version"]], ids=" ".join)
def test_help_is_vllms(argv: list[str]) -> None:
    """Whatever else stands there, vLLM answers."""
    assert parse(argv, V0_32).asks_help


def test_a_rejection_is_one_short_line_without_secrets() -> None:
    """A stray word may be the second value of --api-key=."""
    rejection = parse(["m", "--api-key=one", "hunter2", "--max-num-seqs", "x" * 1000], V0_32).rejection
    assert rejection
    assert "hunter2" not in rejection
    assert len(rejection.splitlines()) == 1
    assert len(rejection) <= 200


def test_the_option_table_has_only_known_words() -> None:
    """Its arities and kinds are those that the code tells apart, on every release."""
    options = [option for minor in (6, 8, 9, 10, 13, 32, 33, 99) for option in read_options(Release(0, minor)).by_name.values()]
    assert {"0", "1", "?", "+"} == {option.arity for option in options}
    kinds = {"flag", "bool", "int", "float", "str", "human_int", "human_int_or_auto", "json", "json_or_str", "config"}
    assert kinds == {option.kind for option in options}


def test_between_two_inspected_releases_the_options_of_both_are_known() -> None:
    """--swap-space ended with 0.15.1, --performance-mode came with 0.18.1; 0.16 and 0.17 were not looked at."""
    names = [
        {"--swap-space", "--performance-mode"} & read_options(release).by_name.keys() for release in (Release(0, 15, 1), Release(0, 16), Release(0, 18, 1))
    ]
    assert [{"--swap-space"}, {"--swap-space", "--performance-mode"}, {"--performance-mode"}] == names


TOKENS = st.one_of(
    st.sampled_from(sorted(read_options(None).by_name)),
    st.sampled_from(["--", "-", "", "-O", "-O3", "--model", "--config", "f.yaml", "--x.y", "-0.5", "--gpu_mem=0.5", "--hf-overrides.a+", "m", "{", "1e999"]),
    st.text(alphabet=string.printable + "é\udc80", max_size=8),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(TOKENS, max_size=8),
    st.sampled_from([None, Release(0, 6, 3), Release(0, 8, 5), Release(0, 10, 2), V0_32, Release(1, 0)]),
    st.none() | st.text(max_size=30),
)
def test_any_words_are_parsed(argv: list[str], release: Release | None, config_text: str | None) -> None:
    """Nothing raises; the argv is kept word for word."""
    assert tuple(argv) == parse(argv, release, config_text).argv
