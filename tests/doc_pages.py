"""The pages of the documentation as data: their fenced blocks, the commands in them, and what they say is printed.

A `console` block is a transcript: commands behind `$ `, each with what it prints on both streams. In it a line in square brackets stands for lines that are
left out, `…` for what differs from run to run within a line, and a last `[exit status N]` for how the command ends (else 0). A `sh` block holds
commands, one a line. All other blocks are files and equations.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_FENCE: Final = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"(^|\s{2,})#.*")
_STATUS: Final = re.compile(r"\[exit status (\d+)\]")
_LEFT_OUT: Final = re.compile(r"\[.*\]")
_NAME_CHARACTERS: Final = 40


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a page, the lines that it is said to print (None where the page shows none), and how it ends."""

    command: str
    shown: tuple[str, ...] | None
    status: int


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    kind: str
    text: str

    @property
    def title(self) -> str:
        """Its first command, or how its first line begins."""
        steps = self.steps
        return steps[0].command if steps else self.text.partition("\n")[0][:_NAME_CHARACTERS]

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its commands; none where it is a file or an equation."""
        if self.kind == "console":
            return tuple(_transcript(self.text))
        return tuple(Step(command, None, 0) for command in _commands(self.text)) if self.kind == "sh" else ()


def pages() -> list[str]:
    """Every page of the project, by its path."""
    return sorted([path.name for path in ROOT.glob("*.md")] + [f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")])


def read_page(page: str) -> str:
    """Its text."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> dict[str, Block]:
    """The fenced blocks of a page by name: the title, and a number where there was one of that title before."""
    named: dict[str, Block] = {}
    for found in _FENCE.finditer(read_page(page)):
        block = Block(found["kind"], found["text"])
        count = sum(before.title == block.title for before in named.values()) + 1
        named[block.title if count == 1 else f"{block.title} #{count}"] = block
    return named


def section(page: str, heading: str) -> str:
    """What stands between this heading of the second level and the next."""
    return read_page(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def blocks_of(page: str, heading: str) -> list[Block]:
    """The fenced blocks of a section, in order."""
    return [Block(found["kind"], found["text"]) for found in _FENCE.finditer(section(page, heading))]


def block_with(page: str, text: str) -> Block:
    """The one block of a page that has this text."""
    (found,) = [block for block in blocks(page).values() if text in block.text]
    return found


def commands(page: str) -> list[list[str]]:
    """Every command of a page, in words."""
    return [shlex.split(step.command) for block in blocks(page).values() for step in block.steps]


def prose(page: str) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", read_page(page))


def _commands(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", "").splitlines():
        command = _COMMENT.sub("", line).strip()
        if command:
            yield command


def _transcript(text: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", text.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        command, *lines = part.rstrip("\n").split("\n")
        status = _STATUS.fullmatch(lines[-1]) if lines else None
        yield Step(_COMMENT.sub("", command).strip(), tuple(lines[:-1] if status else lines), int(status[1]) if status else 0)


def assert_printed(shown: tuple[str, ...], printed: str) -> None:
    """Every line that is shown was printed, and no other but where the page leaves lines out."""
    pattern = "".join(r"(?:.*\n)*?" if _LEFT_OUT.fullmatch(line) else ".*?".join(map(re.escape, line.split("…"))) + r"\n" for line in shown)
    difference = "\n".join(unified_diff(shown, printed.splitlines(), "the page", "what was printed", lineterm=""))
    assert re.fullmatch(pattern, printed), difference
