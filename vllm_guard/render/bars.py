"""Memory of a device as a bar: who has it, what vLLM gets, what stays free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vllm_guard.render.ledger import Part

WIDTH: Final = 48


def bar(parts: Sequence[Part]) -> str:
    """`[####+wwwwaakk..]`: the parts in proportion. A part that is there gets a cell at least."""
    cells = share_cells([part.size_bytes for part in parts], WIDTH)
    return "[" + "".join(part.sign * count for part, count in zip(parts, cells, strict=True)) + "]"


def legend(ledgers: Sequence[Sequence[Part]]) -> str:
    """What the signs in these bars mean, those that occur."""
    meanings = {part.sign: part.name for parts in ledgers for part in parts if part.size_bytes}
    return "   ".join(f"{sign} {name}" for sign, name in meanings.items())


def share_cells(parts: Sequence[int], width: int) -> list[int]:
    """Cells for each part, in proportion, adding up to `width`; each positive part gets one at least, taken from the largest."""
    total = sum(parts)
    if total <= 0:
        return [0] * (len(parts) - 1) + [width]
    cells = [max(1, part * width // total) if part > 0 else 0 for part in parts]
    largest = max(range(len(parts)), key=lambda index: parts[index])
    cells[largest] += width - sum(cells)
    return cells
