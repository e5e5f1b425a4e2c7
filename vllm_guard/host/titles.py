"""What vLLM's processes are called, and how its servers are started."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from vllm_guard.command.mask import name_of

# Titles that vLLM gives its processes (utils/system_utils.py set_process_title); /proc/PID/comm cuts them at 15 characters.
_TITLE: Final = re.compile(r"VLLM::|EngineCore|VllmWorker")
_ENGINE: Final = re.compile(r"VLLM::(?:EngineCor|Worker)|EngineCore|VllmWorker")
# VLLM_PROCESS_NAME_PREFIX may stand for VLLM. Only whole names then: Ray and others write `prefix::Name` too.
_PREFIXED_ENGINE: Final = re.compile(r"(?!ray::)[\w.-]{1,64}::(?:EngineCore(?:_DP\d+)?|Worker(?:_(?:DP|PP|PCP|TP|DCP|EP)\d+)+)")
_PREFIXED_SERVER: Final = re.compile(r"(?!ray::)[\w.-]{1,64}::APIServer_\d+")
_FRONT: Final = "vllm.entrypoints.cli.main"
_FIRST_WORDS: Final = 8


def is_engine(name: str, argv: Sequence[str]) -> bool:
    """Whether this is an engine, or a worker of one: what holds the memory."""
    return any(_ENGINE.match(title) or _PREFIXED_ENGINE.fullmatch(title) for title in (name, *argv[:1]))


def is_vllm(name: str, argv: Sequence[str]) -> bool:
    """A vLLM title, `vllm serve` behind any interpreter, or a module of vllm.entrypoints."""
    titled = any(_TITLE.match(title) or _PREFIXED_SERVER.fullmatch(title) for title in (name, *argv[:1]))
    return titled or is_engine(name, argv) or bool(_server_words(argv))


def server_name(argv: Sequence[str]) -> str | None:
    """`vllm serve MODEL`, or the module with its model, masked; no other word of the command line. None for what does not start a server."""
    words = _server_words(argv)
    if not words:
        return None
    return name_of([*words[0].split(), *_model(words[1:])])


def _server_words(argv: Sequence[str]) -> list[str]:
    """What starts the server as one word, `vllm serve` or a module of vllm.entrypoints, and the words behind it."""
    pairs = list(pairwise(argv[:_FIRST_WORDS]))
    for at, (first, second) in enumerate(pairs):
        if second == "serve" and (os.path.basename(first) == "vllm" or first == _FRONT):  # noqa: PTH119 - a word of a foreign argv, not a path of ours
            return ["vllm serve", *argv[at + 2 :]]
    for at, (first, second) in enumerate(pairs):
        if first == "-m" and second.startswith("vllm.entrypoints"):
            return [second, *argv[at + 2 :]]
    return []


def _model(words: Sequence[str]) -> list[str]:
    """The model in these words: the first one that is no option, or the one behind --model."""
    if words and not words[0].startswith("-"):
        return [words[0]]
    for word, behind in pairwise([*words, ""]):
        if word == "--model":
            return [behind]
        if word.startswith("--model="):
            return [word.partition("=")[2]]
    return []
