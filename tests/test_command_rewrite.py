"""The guard's values in the user's argv: its own words change, no other does."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vllm_guard.command.parse import parse
from vllm_guard.command.rewrite import rewrite
from vllm_guard.release import Release

V0_32 = Release(0, 32)
UTILIZATION = {"gpu_memory_utilization": "0.31"}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param("m", "m --gpu-memory-utilization 0.31", id="added at the end"),
        pytest.param("--port 1 -- m", "--port 1 --gpu-memory-utilization 0.31 -- m", id="added before a separator"),
        pytest.param("--served-model-name a b -- m", "--served-model-name a b --gpu-memory-utilization 0.31 -- m", id="no greedy option eats it"),
        pytest.param("m --config f.yaml", "m --config f.yaml --gpu-memory-utilization 0.31", id="argv beats the config file"),
        pytest.param("m --warp 9", "m --warp 9 --gpu-memory-utilization 0.31", id="behind an unknown option"),
        pytest.param("m --gpu-memory-utilization 0.9 --port 1", "m --gpu-memory-utilization 0.31 --port 1", id="in place"),
        pytest.param("m --gpu-memory-utilization=0.9", "m --gpu-memory-utilization=0.31", id="in place behind ="),
        pytest.param("m --gpu_memory_utilization=.9", "m --gpu_memory_utilization=0.31", id="underscores stay"),
        pytest.param("m --gpu-mem 0.9", "m --gpu-mem 0.31", id="an abbreviation stays"),
        pytest.param("m --device-memory-utilization 0.9", "m --device-memory-utilization 0.31", id="the alias stays"),
        pytest.param("m --gpu 0.9 --device-mem=0.8 --gpu_mem 0.7", "m --gpu 0.31 --device-mem=0.31 --gpu_mem 0.31", id="every occurrence"),
        pytest.param("--gpu 0.9 --model m", "--gpu 0.31 --model m", id="with --model, which vLLM moves"),
        pytest.param("--gpu --model m 0.9", "--gpu --model m 0.31", id="a value behind the model that vLLM moves away"),
        pytest.param("m --gpu -cc.mode 3 0.9", "m --gpu -cc.mode 3 0.31", id="a value behind a JSON key that vLLM moves away"),
        pytest.param("m --chat-template --gpu-mem=1", "m --chat-template --gpu-mem=0.31", id="argparse never takes an option for a value"),
        pytest.param("m --host=--gpu-mem", "m --host=--gpu-mem --gpu-memory-utilization 0.31", id="but it may be one behind ="),
        pytest.param("-- m --gpu-mem 0.9", "--gpu-memory-utilization 0.31 -- m --gpu-mem 0.9", id="behind a separator nothing is an option"),
        pytest.param("m --gpu-mem", "m --gpu-mem", id="an option without its value is vLLM's to reject"),
        pytest.param("m --model", "m --model", id="nor is a model's place filled with an option"),
        pytest.param("m --x.y", "m --x.y", id="where vLLM would eat the added words nothing is added"),
    ],
)
def test_only_the_own_words_change(argv: str, expected: str) -> None:
    """In place where the user wrote the option, in the user's spelling; else added where vLLM reads it."""
    assert tuple(expected.split()) == rewrite(argv.split(), UTILIZATION, V0_32)


def test_two_values_are_written_in_order() -> None:
    """Each for itself: one in place, the other added."""
    values = {"gpu_memory_utilization": "0.31", "max_num_batched_tokens": "1024"}
    expected = ("m", "--max-num-b", "1024", "--gpu-memory-utilization", "0.31")
    assert expected == rewrite(("m", "--max-num-b", "8k"), values, V0_32)


def test_an_abbreviation_is_one_only_where_the_release_has_no_other_option_like_it() -> None:
    """`--max-num-s` is max_num_seqs until 0.24.0 and ambiguous later: then vLLM rejects the line, and the user's word stays."""
    values = {"max_num_seqs": "8"}
    assert rewrite(("m", "--max-num-s", "64"), values, Release(0, 24)) == ("m", "--max-num-s", "8")
    assert rewrite(("m", "--max-num-s", "64"), values, Release(0, 28)) == ("m", "--max-num-s", "64", "--max-num-seqs", "8")


OWN = st.sampled_from(["--gpu-memory-utilization", "--gpu_memory_utilization", "--gpu-mem", "--device-memory-utilization", "--device-m"])
FRACTIONS = st.sampled_from(["0.9", ".5", "1", "nan", "many"])
OTHERS = st.sampled_from(
    ["--port", "1", "m", "--", "-O3", "--served-model-name", "--x.y", "-0.5", "--model", "--config", "f.yaml", "--enforce-eager", "--warp", "", "é"]
)
WORDS = st.lists(st.one_of(OTHERS, OTHERS, OWN, FRACTIONS, st.tuples(OWN, FRACTIONS).map("=".join)), max_size=9)
RELEASES = st.sampled_from([None, Release(0, 9, 2), Release(0, 15, 1), V0_32, Release(1, 0)])


@settings(max_examples=400, deadline=None)
@given(WORDS, RELEASES)
def test_rewriting_twice_is_rewriting_once(argv: list[str], release: Release | None) -> None:
    """Also for command lines that vLLM rejects."""
    once = rewrite(argv, UTILIZATION, release)
    assert once == rewrite(once, UTILIZATION, release)


@settings(max_examples=400, deadline=None)
@given(WORDS, RELEASES)
def test_a_command_line_that_vllm_takes_has_the_value_and_nothing_else_new(argv: list[str], release: Release | None) -> None:
    """Everything else that was given is given as before. There may be no place only with -0.5, a JSON key to vLLM, or with `--` for a model."""
    assume("-0.5" not in argv and not {"--model", "--"} <= set(argv))
    before = parse(argv, release)
    after = parse(rewrite(argv, UTILIZATION, release), release)
    if before.rejection is None:
        assert (None, before.model, 0.31) == (after.rejection, after.model, after.number("gpu_memory_utilization"))
    others = {dest: given for dest, given in before.given.items() if dest != "gpu_memory_utilization"}
    assert repr(others) == repr({dest: given for dest, given in after.given.items() if dest != "gpu_memory_utilization"})


@settings(max_examples=200, deadline=None)
@given(st.lists(OTHERS, max_size=9), RELEASES)
def test_the_words_of_others_stay_in_their_order(argv: list[str], release: Release | None) -> None:
    """Without an own option before, taking the added words away gives the user's argv back."""
    rewritten = list(rewrite(argv, UTILIZATION, release))
    if "--gpu-memory-utilization" in rewritten:
        place = rewritten.index("--gpu-memory-utilization")
        del rewritten[place : place + 2]
    assert argv == rewritten
