"""Speculative decoding as it is asked for, in each way of writing it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard.command.parse import Command, Given, parse
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan.speculation import Speculation, speculation
from vllm_guard.release import Release

NGRAM = Speculation("ngram", 3)
CONFIG = "--speculative-config"


def asked(*argv: str, config_text: str | None = None) -> Speculation | Unknown | None:
    """What `vllm serve m ARGV` asks of 0.32."""
    return speculation(parse(("m", *argv), Release(0, 32), config_text))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param((), None, id="nothing"),
        pytest.param((CONFIG, "None"), None, id="nothing, said aloud"),
        pytest.param((CONFIG, '{"method": "ngram", "num_speculative_tokens": 3}'), NGRAM, id="JSON"),
        pytest.param(("-sc", '{"method": "ngram", "num-speculative-tokens": 3}'), NGRAM, id="the short form, with dashes"),
        pytest.param((f"{CONFIG}.method", "ngram", f"{CONFIG}.num_speculative_tokens", "3"), NGRAM, id="dotted"),
        pytest.param(("--spec-method", "ngram", "--spec-tokens", "3"), NGRAM, id="a flag for each"),
        pytest.param((CONFIG, '{"method": "ngram"}', "--spec-tokens", "3"), NGRAM, id="both"),
        pytest.param((CONFIG, '{"model": "[ngram]", "num_speculative_tokens": 3}'), NGRAM, id="the model's name may say it"),
        pytest.param((CONFIG, '{"method": "suffix"}'), Speculation("suffix", 24), id="suffix decoding has a number of its own"),
        pytest.param((CONFIG, '{"method": "suffix", "suffix_decoding_max_tree_depth": 8}'), Speculation("suffix", 8), id="or the depth of its tree"),
        pytest.param((CONFIG, '{"method": "qwen3_next_mtp", "num_speculative_tokens": 1}'), Speculation("mtp", 1), id="an older name of mtp"),
        pytest.param((CONFIG, '{"method": "mtp", "model": "m", "num_speculative_tokens": 1}'), Speculation("mtp", 1), id="mtp of the model itself, by name"),
        pytest.param((CONFIG, '{"method": null, "model": "ngram", "num_speculative_tokens": 3}'), NGRAM, id="null is not given"),
        pytest.param(
            (CONFIG, '{"model": "d", "revision": "r", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 1}'),
            Speculation("draft_model", 2, "d", "r", 1),
            id="a model without a method is a draft model",
        ),
        pytest.param(
            (CONFIG, '{"method": "eagle", "model": "e", "num_speculative_tokens": 2, "disable_padded_drafter_batch": true}'),
            Speculation("eagle", 2, "e", padded=False),
            id="batches that are not padded",
        ),
    ],
)
def test_every_way_of_asking_is_understood(argv: tuple[str, ...], expected: Speculation | None) -> None:
    """As vLLM reads it (engine/arg_utils.py create_speculative_config)."""
    assert asked(*argv) == expected


def test_a_file_of_settings_may_ask_too() -> None:
    """Its keys are flags."""
    assert asked("--config", "c.yaml", config_text="speculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n") == NGRAM


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        pytest.param((CONFIG, "[1]"), "no object", id="a list"),
        pytest.param((CONFIG, "{}"), "no method", id="an empty object"),
        pytest.param((CONFIG, '{"num_speculative_tokens": 3}'), "no method", id="no method and no model"),
        pytest.param((CONFIG, '{"method": "ngram"}'), "number of tokens", id="no number of tokens"),
        pytest.param((CONFIG, '{"method": "ngram", "num_speculative_tokens": true}'), "number of tokens", id="tokens that are no number"),
        pytest.param((CONFIG, '{"method": "ngram", "num_speculative_tokens": 0}'), "number of tokens", id="no tokens"),
        pytest.param((CONFIG, '{"method": "eagle", "num_speculative_tokens": 1}'), "names no model", id="eagle without a model"),
        pytest.param((CONFIG, '{"method": "mtp", "model": "other", "num_speculative_tokens": 1}'), "of their own", id="further layers elsewhere"),
        pytest.param((CONFIG, '{"method": "dflash", "model": "d", "num_speculative_tokens": 1}'), "dflash", id="a method that is not modelled"),
        pytest.param((CONFIG, '{"model": "d", "num_speculative_tokens": 1, "quantization": "fp8"}'), "quantization", id="a key that may change the draft"),
        pytest.param((CONFIG, '{"model": "d", "num_speculative_tokens": 1, "kv_cache_dtype": "fp8"}'), "kv_cache_dtype", id="a key that may change its cache"),
        pytest.param((CONFIG, '{"method": "ngram"}', "--spec-method", "ngram", "--spec-tokens", "3"), "too", id="said twice"),
    ],
)
def test_what_is_not_modelled_is_named(argv: tuple[str, ...], named: str) -> None:
    """Never a guess."""
    found = asked(*argv)

    assert isinstance(found, Unknown)
    assert named in found.because


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2)
)
KEYS = (
    st.integers()
    | st.sampled_from(["method", "model", "revision", "num_speculative_tokens", "draft_tensor_parallel_size", "disable_padded_drafter_batch"])
    | st.text()
)


@given(st.dictionaries(KEYS, VALUES, max_size=5) | VALUES)
def test_no_speculation_is_too_odd(value: Any) -> None:
    """A speculation, a reason or none, and counts are counts."""
    found = speculation(Command(("m",), "m", {"speculative_config": Given(value, "", "argv")}))

    assert found is None or isinstance(found, Unknown) or found.tokens > 0
