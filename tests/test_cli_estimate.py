"""`vllm-guard estimate`: the table, what it is made of, and what it does with words that it cannot use."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from builders import facts, gpu, judge
from guard_process import Call, Ended, Host
from hypothesis import given
from hypothesis import strategies as st
from standin_driver import Card
from test_plan_pool import llama

from vllm_guard.plan.estimate import empty_cards, parallel_sizes, row_of
from vllm_guard.units import GIB

LLAMA: Final = json.dumps(dict(llama().config))
FILES: Final = {"llama/config.json": LLAMA, "bare/config.json": "{}", "text/notes.txt": "no config"}


def rows(ended: Ended) -> list[dict[str, Any]]:
    """The rows of the first kind of cards."""
    found: list[dict[str, Any]] = ended.document["cards"][0]["rows"]
    return found


def call(*words: str, **more: Any) -> Call:
    """`estimate` as JSON."""
    return Call(["estimate", *words, "--guard-json"], files=FILES, **more)


@pytest.mark.parametrize("call", [call("{folder}/llama", "--memory", "24GiB", "--max-model-len", "32768", "--concurrency", "4")], ids=["24 GiB"])
def test_each_figure_follows_from_the_others(ended: Ended) -> None:
    """Budget less weights, activations and graphs is the pool; what it holds is pool over sequence."""
    for row in rows(ended):
        demand = row["demand"]
        parts = sum(demand[name]["likely"] for name in ("weights", "activation", "cuda_graphs"))

        assert -(-24 * GIB * 92 // 100) - parts == row["kv_pool_bytes"]
        assert row["full_sequences"] == round(row["kv_pool_bytes"] / demand["kv_one_sequence"]["likely"], 2)
        assert demand["kv_bytes_per_token"]["likely"] * row["longest_max_model_len_at_concurrency"] * 4 <= row["kv_pool_bytes"]
    assert [1, 2, 4, 8] == [row["tensor_parallel_size"] for row in rows(ended)]
    assert "131072" not in {str(row["max_model_len"]) for row in rows(ended)}


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(call("{folder}/llama", cards=(Card(), Card(), Card())), id="three cards"),
        pytest.param(call("{folder}/llama", "--memory", "24GiB", "-tp", "2"), id="a size that was given"),
    ],
)
def test_only_sizes_that_divide_the_heads_and_are_there(ended: Ended) -> None:
    """32 heads do not divide by 3; a given size is the only one."""
    assert [row["tensor_parallel_size"] for row in rows(ended)] in ([1, 2], [2])


@pytest.mark.parametrize("call", [call("{folder}/llama", init_error=9)], ids=["no driver"])
def test_without_cards_usual_sizes_stand_in(ended: Ended) -> None:
    """And that is said."""
    assert [24 * GIB, 48 * GIB, 80 * GIB] == [cards["memory_bytes"] for cards in ended.document["cards"]]
    assert "no_cards" in ended.stderr


@pytest.mark.parametrize(
    ("call", "says"),
    [
        pytest.param(call("{folder}/nothing"), "no such folder", id="no such folder"),
        pytest.param(call(), "cannot be told", id="no model"),
        pytest.param(call("{folder}/text"), "config.json", id="no config"),
        pytest.param(call("{folder}/llama", "--memory"), "--memory needs a value", id="no value"),
        pytest.param(call("{folder}/llama", "--memory", "much"), "'much' is not a size", id="no size"),
        pytest.param(call("{folder}/llama", "--concurrency=0"), "above 0", id="nobody"),
        pytest.param(call("{folder}/llama", "--max-num-seqs", "many"), "vLLM would reject", id="words that vLLM rejects"),
    ],
)
def test_words_that_cannot_be_used_are_usage(ended: Ended, says: str) -> None:
    """Exit 64 with what is wrong."""
    assert (64, b"") == (ended.code, ended.stdout)
    assert says in ended.stderr


@pytest.mark.parametrize("call", [call("{folder}/bare", "--memory", "24GiB")], ids=["an empty config"])
def test_what_is_not_known_is_null(ended: Ended) -> None:
    """Never a guess."""
    (row,) = [row for row in rows(ended) if row["tensor_parallel_size"] == 1]

    assert ("unknown", None, None, None) == (row["fits"], row["demand"], row["kv_pool_bytes"], row["longest_max_model_len"])


def test_contradictions_are_said_once(host: Host) -> None:
    """Not for each row."""
    (host.folder / "llama").mkdir()
    (host.folder / "llama" / "config.json").write_text(LLAMA)
    ended = host.run("estimate", f"{host.folder}/llama", "--memory=24GiB", "--memory=80GiB", "-tp", "3")

    assert 1 == ended.stderr.count("heads_do_not_divide")


@given(st.integers(1 * GIB, 200 * GIB), st.integers(0, 100 * GIB), st.integers(1, 64))
def test_more_memory_never_holds_less(memory_bytes: int, more_bytes: int, concurrency: int) -> None:
    """Longer and more sequences, but where a larger card gets a larger batch by default: the tiers are the same here."""
    argv = ("--max-model-len", "8192", "--max-num-seqs", "64", "--max-num-batched-tokens", "2048")
    one, other = (
        row_of(judge(empty_cards(facts(gpu()), size, 1), *argv, model=llama()), 1, concurrency, 131_072) for size in (memory_bytes, memory_bytes + more_bytes)
    )

    assert (one.longest or 0) <= (other.longest or 0)
    assert (one.longest_at_concurrency or 0) <= (other.longest_at_concurrency or 0)
    assert (one.longest_at_concurrency or 0) <= (one.longest or 0)


def test_parallel_sizes_are_the_powers_that_divide() -> None:
    """And the whole host."""
    from vllm_guard.command.parse import parse  # noqa: PLC0415 - only here

    assert [(1, 2, 4, 8), (1, 2, 3), (1,), (1, 2, 4)] == [
        parallel_sizes(parse(("m",), None), heads, most) for heads, most in ((32, 8), (0, 3), (7, 4), (12, 8))
    ]
