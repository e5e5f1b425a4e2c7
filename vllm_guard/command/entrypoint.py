"""The words behind `serve` where that is a container's entrypoint: people write a whole command there, or what an older image took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vllm_guard.command.launcher import split_launcher
from vllm_guard.command.tokens import takes_model_first
from vllm_guard.release import Release

_MODEL: Final = "--model"
_INTERPRETERS: Final = ("python", "pypy")


def behind_entrypoint(argv: Sequence[str]) -> list[str]:
    """The words without a command of their own in front: `serve MODEL`, `vllm serve ...`, `python3 -m vllm.entrypoints.openai.api_server ...`.

    Only what vLLM answers with an error (in 0.32, under test) changes: a model that is called `serve` or `vllm` stays one, and so does it where what stands
    behind `--model` is an option, which vLLM moves to the front.
    """
    if _model_is_option(argv):
        return list(argv)
    if argv[:1] == ["serve"] and len(argv) > 1 and (not argv[1].startswith("-") or names_model(argv)):
        return list(argv[1:])
    launcher = split_launcher(argv) if argv else None
    if launcher is None or launcher.program != 0 or launcher.entry.grammar not in ("serve", "module"):
        return list(argv)
    is_command = launcher.runs_script or argv[0].rpartition("/")[2].startswith(_INTERPRETERS)
    return list(launcher.arguments) if is_command else list(argv)


def names_model(argv: Sequence[str]) -> bool:
    """Whether a `--model` stands there, the only words for which `model_first` needs a release."""
    return _place_of_model(argv) is not None


def model_first(argv: Sequence[str], release: Release | None) -> list[str]:
    """The words with the model of `--model MODEL` in front, where this release takes it only there; the server's module, older images' entrypoint,
    took the option.
    """
    at = _place_of_model(argv)
    if at is None or not argv[0].startswith("-") or not takes_model_first(argv[at], release):
        return list(argv)
    if argv[at] != _MODEL:
        return [argv[at].removeprefix(f"{_MODEL}="), *argv[:at], *argv[at + 1 :]]
    return [argv[at + 1], *argv[:at], *argv[at + 2 :]] if at + 1 < len(argv) else list(argv)


def _model_is_option(argv: Sequence[str]) -> bool:
    at = _place_of_model(argv)
    return at is not None and argv[at] == _MODEL and "".join(argv[at + 1 : at + 2]).startswith("-")


def _place_of_model(argv: Sequence[str]) -> int | None:
    return next((at for at, word in enumerate(argv) if word == _MODEL or word.startswith(f"{_MODEL}=")), None)
