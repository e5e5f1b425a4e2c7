"""A release of vLLM, and what its version text says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, order=True, slots=True)
class Release:
    """A vLLM release as far as behaviour goes: suffixes, pre and post releases do not count."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


_RELEASE: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(.*)", re.DOTALL)


def parse_release(text: str | None) -> Release | None:
    """The release of a version such as `0.11.2`, `0.32.0+cpu`, `0.6.3.post1`; None when it is unknown.

    A shallow source build calls itself 0.1.dev or 0.0.0: that says nothing, so it is unknown too.
    """
    match = _RELEASE.fullmatch(text.strip()) if text else None
    if match is None:
        return None
    release = Release(int(match[1]), int(match[2]), int(match[3] or 0))
    return None if release < Release(0, 2) else release
