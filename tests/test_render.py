"""Bars and ages; whole screens are in the golden files."""

from __future__ import annotations

from typing import Any

import pytest
from builders import checkpoint, facts, gpu, judge, launched
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard.render.bars import WIDTH, share_cells
from vllm_guard.render.devices import age_text, device_lines, plain


@given(st.lists(st.integers(0, 1 << 40), min_size=4, max_size=8))
def test_a_bar_is_full_and_shows_each_part(parts: list[int]) -> None:
    """Every positive part has a cell, and the cells add up."""
    cells = share_cells(parts, WIDTH)

    assert WIDTH == sum(cells)
    assert all(count >= 1 for count, part in zip(cells, parts, strict=True) if part > 0)


@pytest.mark.parametrize(("parts", "cells"), [([1, 1, 1, 1], [12, 12, 12, 12]), ([0, 0, 0, 0], [0, 0, 0, 48]), ([50, 50, 0, 0], [24, 24, 0, 0])])
def test_cells_are_in_proportion(parts: list[int], cells: list[int]) -> None:
    """Whole cells."""
    assert cells == share_cells(parts, 48)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (7300, "2 h"), (9 * 86_400 + 5, "9 d")])
def test_an_age_is_the_largest_whole_unit(seconds: float, text: str) -> None:
    """Rounded down."""
    assert text == age_text(seconds)


def test_nothing_that_a_terminal_acts_on_gets_through() -> None:
    """Names of processes and cards are anybody's data."""
    assert plain("a\x1b[31mb\nc\u202ed") == "a?[31mb?c?d"


LLAMA: dict[str, Any] = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("argv", "free_mib", "says"),
    [
        pytest.param(("--kv-cache-memory-bytes", "2147483648"), 24_000, "KV cache 2048 + margin and free 4623 ", id="a cache given in bytes"),
        pytest.param(("--num-gpu-blocks-override", "300"), 24_000, "KV cache 600 + margin and free 6071 ", id="a cache given in blocks of 2 MiB"),
        pytest.param(
            ("--gpu-memory-utilization", "0.93"), 23_000, "total 24564 = in use 1564 + context 527 + ", id="a fraction that leaves less than the context"
        ),
    ],
)
def test_what_the_memory_goes_to_adds_up_to_the_card(argv: tuple[str, ...], free_mib: int, says: str) -> None:
    """Llama 3.1 8B on a card of 24564 MiB, in MiB."""
    world = facts(gpu(total_mib=24_564, free_mib=free_mib, reserved_mib=400))
    lines = list(device_lines(launched(judge(world, "--max-model-len", "4096", *argv, model=checkpoint(15_317, **LLAMA))).assessment))
    line = next(line for line in lines if "total 24564 = in use" in line)

    assert says in line
