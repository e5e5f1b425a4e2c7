"""Numbers of a config, each under any of its names, each checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_guard.model.config import _positive_int


class LackingError(Exception):
    """The config does not say what is needed; the message names it. Caught where the question was asked, never seen outside of model/."""


@dataclass(frozen=True, slots=True)
class Fields:
    """One part of a config. `kind` is its model_type."""

    values: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The model_type, empty where there is none."""
        kind = self.values.get("model_type")
        return kind if isinstance(kind, str) else ""

    def number(self, *names: str, default: int = 0) -> int:
        """The first of these that is a positive whole number."""
        for name in names:
            number = _positive_int(self.values.get(name))
            if number is not None:
                return number
        return default

    def need(self, *names: str) -> int:
        """As `number`; LackingError where there is none."""
        number = self.number(*names)
        if not number:
            msg = f"the config does not say {names[0]}"
            raise LackingError(msg)
        return number

    def at(self, name: str, layer: int, default: int) -> int:
        """The number of this layer where the config has one for each, else the number of all layers."""
        value = self.values.get(name)
        if isinstance(value, list):
            return _positive_int(value[layer]) or default if layer < len(value) else default
        return self.number(name, default=default)

    def words(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty where it is anything else."""
        value = self.values.get(name)
        return tuple(value) if isinstance(value, list) and all(isinstance(word, str) for word in value) else ()

    def numbers(self, name: str) -> frozenset[int]:
        """The whole numbers of a list; empty where it is anything else."""
        value = self.values.get(name)
        return frozenset(number for number in value if type(number) is int) if isinstance(value, list) else frozenset()

    def says(self, name: str) -> bool:
        """Whether the config says true."""
        return self.values.get(name) is True

    def part(self, *names: str) -> Fields | None:
        """A nested part that is not empty."""
        for name in names:
            part = self.values.get(name)
            if isinstance(part, dict) and part:
                return Fields(part)
        return None
