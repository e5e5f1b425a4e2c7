"""Typed access to a JSON document that is anybody's data: every value is checked, and each error names its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from vllm_guard.errors import UsageError

_MOST_ITEMS: Final = 10_000
_Item = TypeVar("_Item")


class Reader:
    """One object of the document. All methods raise UsageError for a value of another kind."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, "is not an object")
        self._value: dict[str, Any] = value
        self.where = where

    def wrong(self, key: str, what: str) -> UsageError:
        """The error about the value of this key."""
        return _wrong(f"{self.where}.{key}", what)

    def get(self, key: str) -> object:
        """The value, unchecked; None without one."""
        return self._value.get(key)

    def texts(self) -> Mapping[str, str]:
        """All values, each of which must be text."""
        return {name: self.text(name) for name in self._value}

    def child(self, key: str) -> Reader:
        """The object under this key."""
        return Reader(self._value.get(key), f"{self.where}.{key}")

    def number(self, key: str) -> int:
        """As `optional_number`, of a key that must be there."""
        value = self.optional_number(key)
        if value is None:
            raise self.wrong(key, "is missing")
        return value

    def optional_number(self, key: str) -> int | None:
        """A whole number from 0 to 2**62, or None."""
        value = self._value.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
            raise self.wrong(key, "is not a whole number of 0 or more")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """As `optional_text`, of a key that must be there unless there is a default."""
        value = self.optional_text(key)
        if value is None and default is None:
            raise self.wrong(key, "is missing")
        return value if value is not None else default or ""

    def optional_text(self, key: str) -> str | None:
        """A text, or None."""
        value = self._value.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "is not text")
        return value

    def each(self, key: str, parse: Callable[[Reader], _Item]) -> tuple[_Item, ...]:
        """What `parse` makes of each object in the list under this key."""
        value = self._value.get(key, [])
        if not isinstance(value, list) or len(value) > _MOST_ITEMS:
            raise self.wrong(key, f"is not a list of at most {_MOST_ITEMS} items")
        return tuple(parse(Reader(item, f"{self.where}.{key}[{index}]")) for index, item in enumerate(value))


def _wrong(where: str, what: str) -> UsageError:
    return UsageError(f"the snapshot cannot be used: {where} {what}", "take it again with vllm-guard snapshot")
