"""What was found of a model's files: types only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_guard.model.tensors import Headers


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the model's folder says. `weight_files_bytes` is the smaller of the index's total and the sizes of the shards that it names, None when unknown.

    `draft` is what was found of the draft model of speculative decoding, None without one.
    """

    folder: str
    config: Mapping[str, Any]
    weight_files_bytes: int | None
    weights_unknown_because: str | None = None
    sentence_transformers: bool = False
    tokenizer_max_length: int | None = None
    headers: Headers | None = None
    draft: Checkpoint | UnknownCheckpoint | None = None


@dataclass(frozen=True, slots=True)
class UnknownCheckpoint:
    """Nothing can be said about the model, and why. `absent`: by its name it is no folder but a repository of a model hub, and is not on this disk."""

    because: str
    absent: bool = False
