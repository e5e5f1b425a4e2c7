"""Every error the guard raises on purpose. Anything else is a bug."""

from __future__ import annotations

from typing import Literal

UnmeasuredReason = Literal["driver", "no_gpu", "device_missing"]


class GuardError(Exception):
    """An expected failure: one line that says what is wrong, and one action that mends it."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class UsageError(GuardError):
    """The guard's own flags, TOML keys or values are wrong (exit 64)."""


class MeasureError(GuardError):
    """Memory or devices could not be read, so there is no verdict (exit 69)."""

    def __init__(self, reason: UnmeasuredReason, message: str, fix: str) -> None:
        super().__init__(message, fix)
        self.reason: UnmeasuredReason = reason


class LaunchError(GuardError):
    """The vLLM executable was not found (127) or cannot be run (126)."""

    def __init__(self, exit_code: Literal[126, 127], message: str, fix: str) -> None:
        super().__init__(message, fix)
        self.exit_code: Literal[126, 127] = exit_code
