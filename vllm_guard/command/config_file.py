"""The text of a `--config` YAML file as the words that vLLM puts into the command line."""

from __future__ import annotations

import json
from typing import Any, Final

from vllm_guard.release import Release

# A hostile file of this size costs about a second; real ones have a few KiB.
MAX_CONFIG_CHARACTERS: Final = 128 * 1024
_MAX_NODES: Final = 20_000
_LAST_WITH_DICTS_AS_TEXT: Final = Release(0, 15, 1)


class ConfigError(Exception):
    """vLLM cannot read this file either, or the guard does not want to; the message says why in a few words."""


def parse_config(text: str, release: Release | None) -> list[str]:
    """The words that vLLM makes of the file (`load_config_file` of vllm/utils/argparse_utils.py, 0.32.0). Raises ConfigError.

    `false` leaves no word on any release: `--no-key` is looked up in the root parser, which has no serve options.
    """
    config = _load(text)
    if not isinstance(config, dict):
        msg = "it is not a mapping of options"
        raise ConfigError(msg)
    words: list[str] = []
    for key, value in config.items():
        if not isinstance(key, str):
            msg = f"the key {str(key)[:40]!r} is not text"
            raise ConfigError(msg)
        words += _words_of(key, value, release)
    return words


def _words_of(key: str, value: object, release: Release | None) -> list[str]:
    try:
        match value:
            case bool():
                return [f"--{key}"] if value else []
            case list():
                return [f"--{key}", *map(str, value)] if value else []
            case dict() if release is None or release > _LAST_WITH_DICTS_AS_TEXT:
                return [f"--{key}", json.dumps(value)]
            case _:
                return [f"--{key}", str(value)]
    except (TypeError, ValueError) as error:  # a date or a set inside of a mapping; an integer of more digits than Python prints
        msg = f"the value of {key[:40]!r} cannot stand on a command line"
        raise ConfigError(msg) from error


def _load(text: str) -> Any:
    import yaml  # noqa: PLC0415  # 15 ms that only a command line with --config pays

    if len(text) > MAX_CONFIG_CHARACTERS:
        msg = f"it has more than {MAX_CONFIG_CHARACTERS} characters"
        raise ConfigError(msg)
    try:
        # Not yaml.safe_load: the node graph is measured before aliases turn it into something exponential. Pure Python on purpose, as vLLM: deep
        # nesting is a RecursionError there and a crash in the C loader.
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        if _expanded_size(root, {}) > _MAX_NODES:
            msg = "its aliases make it too large"
            raise ConfigError(msg)
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        msg = f"it is not YAML: {str(error).splitlines()[0][:100]}"
        raise ConfigError(msg) from error
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:  # PyYAML's answers to a value that contradicts its tag
        msg = f"it cannot be read: {type(error).__name__}"
        raise ConfigError(msg) from error


def _expanded_size(node: Any, sizes: dict[int, int]) -> int:
    """Nodes of the tree behind a node when every alias is written out; a node inside of itself counts as too many."""
    known = sizes.get(id(node))
    if known is not None:
        return known
    sizes[id(node)] = _MAX_NODES + 1  # stays while the node is open, so that a cycle is found
    children = node.value if isinstance(node.value, list) else ()
    size = 1 + sum(_expanded_size(part, sizes) for child in children for part in (child if isinstance(child, tuple) else (child,)))
    sizes[id(node)] = size
    return size
