"""What the documentation shows: its blocks of code, read from the page so that a test cannot know better."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"


def blocks(page: str) -> list[str]:
    """The blocks of code of a page under docs/, in order, without their fences."""
    return re.findall(r"^```\w*\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def block_with(page: str, text: str) -> str:
    """The only block that has this text."""
    found = [block for block in blocks(page) if text in block]
    assert len(found) == 1, (text, found)
    return found[0]


def commands(page: str) -> list[list[str]]:
    """The words of each command that a page shows to be typed; what is printed with it, behind a `$ `, is no command but that line."""
    typed: list[list[str]] = []
    for block in blocks(page):
        lines = block.splitlines()
        shown = [line[2:] for line in lines if line.startswith("$ ")] or lines
        typed += [words for line in shown if (words := shlex.split(line, comments=True))]
    return typed
