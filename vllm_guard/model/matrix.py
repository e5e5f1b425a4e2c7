"""A module's weights as a shape with a checkpoint's name: what both the config and the headers are turned into."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Matrix:
    """`copies` matrices of `outputs` rows and `inputs` columns. A `linear` one is what a quantization method may make smaller."""

    name: str
    inputs: int
    outputs: int
    copies: int = 1
    linear: bool = True

    @property
    def values(self) -> int:
        """How many weights it has."""
        return self.inputs * self.outputs * self.copies


def table(name: str, values: int) -> Matrix:
    """Weights that are never quantized: embeddings, convolutions, states."""
    return Matrix(name, values, 1, linear=False)
