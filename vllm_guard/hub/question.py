"""What a hub is asked: types only."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Question:
    """A revision of a repository on the hub at `endpoint`, an address. `token` is the command line's own, None: the one that huggingface_hub finds."""

    endpoint: str
    host: str
    model: str
    revision: str
    token: str | None = field(repr=False)

    def folder(self, store: Path, commit: str) -> Path:
        """Where what came of a commit is kept."""
        return store / sha256(f"{self.endpoint}\n{self.model}\n{commit}".encode("utf-8", "surrogateescape")).hexdigest()
