"""Sizes, rounding and releases."""

from __future__ import annotations

import pytest

from vllm_guard.release import Release, parse_release
from vllm_guard.units import GIB, MIB, floor4, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        pytest.param("512MiB", 512 * MIB, id="mebibytes"),
        pytest.param("8GiB", 8 * GIB, id="gibibytes"),
        pytest.param("1.5GiB", 1536 * MIB, id="a decimal of gibibytes"),
        pytest.param("800MB", 800_000_000, id="decimal megabytes"),
        pytest.param("123", 123, id="plain bytes"),
        pytest.param(" 1 gib ", GIB, id="spaces and lower case"),
    ],
)
def test_a_size_is_read_in_the_unit_it_names(text: str, expected_bytes: int) -> None:
    """Binary and decimal units are kept apart."""
    assert expected_bytes == parse_size_bytes(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1e3", "5 pints", "5%", "nan"])
def test_a_size_that_is_none_is_an_error(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="is not a size"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("have", "of", "expected"),
    [(1, 3, 0.3333), (2, 3, 0.6666), (1, 1, 1.0), (0, 5, 0.0), (-5, 5, 0.0), (92, 100, 0.92)],
)
def test_a_fraction_is_rounded_down_to_four_decimals(have: int, of: int, expected: float) -> None:
    """Too small starts, too large is refused."""
    assert expected == floor4(have, of)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.32.0+cpu", Release(0, 32, 0)),
        ("0.6.3.post1", Release(0, 6, 3)),
        ("v0.11", Release(0, 11, 0)),
        ("0.12.0rc1.dev5+gabc", Release(0, 12, 0)),
        ("0.1.dev1+gabc", None),
        ("0.0.0", None),
        ("main", None),
        ("", None),
        (None, None),
    ],
)
def test_a_release_is_read_or_unknown(text: str | None, expected: Release | None) -> None:
    """Source builds without tags say nothing about their release."""
    assert expected == parse_release(text)
