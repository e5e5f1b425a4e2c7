"""What the headers of a checkpoint's files say: types only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Tensor(NamedTuple):
    """One stored tensor. `dtype` is safetensors' own spelling (BF16, F8_E4M3 ...), `size_bytes` its place in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Headers:
    """Every tensor of a checkpoint, in the order of its files."""

    tensors: tuple[Tensor, ...]

    @property
    def size_bytes(self) -> int:
        """All tensors as stored, without headers and without gaps."""
        return sum(tensor.size_bytes for tensor in self.tensors)
