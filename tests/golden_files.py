"""Whole texts, compared with tests/golden/NAME.txt. `pytest --update-golden` writes them anew: read the difference before you keep it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden"

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden`."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*.txt anew instead of comparing with them")


@pytest.fixture(name="golden")
def _golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with the golden file of this name, whole."""

    def compare(name: str, text: str) -> None:
        file = FOLDER / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            FOLDER.mkdir(exist_ok=True)
            file.write_text(text)
        assert file.read_text() == text

    return compare
