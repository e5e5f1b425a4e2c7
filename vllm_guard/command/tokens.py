"""What vLLM does to the words of a command line before argparse sees them, with the place of every word in the user's argv kept.

Source: FlexibleArgumentParser in vllm/utils/argparse_utils.py 0.32.0 and its predecessors in vllm/utils.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from vllm_guard.command.values import parse_human_int
from vllm_guard.release import Release

_LAST_WITHOUT_MODEL_OPTION: Final = Release(0, 10, 2)  # raises on --model; the next inspected release moves it to the front
_FIRST_WITH_MODEL_OPTIONAL: Final = Release(0, 8)  # before, a model must stand beside the options
_LAST_WITHOUT_DOTTED: Final = Release(0, 8, 5)
_LAST_WITHOUT_HUMAN_DOTTED: Final = Release(0, 18, 1)
_FIRST_WITH_SERVED_NAME_CHECK: Final = Release(0, 18, 1)
_FIRST_WITH_OPTIMIZATION_LEVEL: Final = Release(0, 12)
_MODEL: Final = re.compile(r"--model(=.+|$)")
_CONFIG: Final = re.compile(r"--config(=.+|$)")
_SERVED_NAME: Final = re.compile(r"--served[-_]model[-_]name(=.+|$)")
_HEAD: Final = re.compile(r"(?<=--)[^.]*")  # of a key: up to the first dot


class Word(NamedTuple):
    """A word on its way to argparse. `at`: its index in the user's argv, None when vLLM made it."""

    text: str
    at: int | None = None
    yaml: bool = False


@dataclass(slots=True)
class Prepared:
    """The words as argparse will see them, and why vLLM stops before it gets there."""

    words: list[Word]
    problems: list[str] = field(default_factory=list)


def prepare(argv: Sequence[str], release: Release | None, config_words: Sequence[str] | None, *, serve: bool = True) -> Prepared:
    """The words for argparse. Whatever vLLM would answer with an error is noted and the rest prepared all the same.

    Without `serve` in front (`python -m vllm.entrypoints.openai.api_server`) --model is an option like any, and no model is asked for.
    """
    prepared = Prepared([Word(text, at) for at, text in enumerate(argv)])
    if serve:
        _move_model(prepared, release)
        _check_served_name(prepared, release)
    _insert_config(prepared, config_words, serve=serve)
    prepared.words = _respell(prepared.words, release)
    if release is None or release > _LAST_WITHOUT_DOTTED:
        _collect_dotted(prepared, release)
    return prepared


def config_word(argv: Sequence[str], release: Release | None) -> Word | None:
    """The FILE of the only form that vLLM reads, `--config FILE`; None when there is none, or two."""
    prepared = Prepared([Word(text, at) for at, text in enumerate(argv)])
    _move_model(prepared, release)
    texts = [word.text for word in prepared.words]
    if texts.count("--config") != 1 or texts[-1] == "--config":
        return None
    return prepared.words[texts.index("--config") + 1]


def takes_model_first(word: str, release: Release | None) -> bool:
    """Whether this release stops at this `--model` or `--model=MODEL` behind `serve`."""
    return release is not None and release <= _LAST_WITHOUT_MODEL_OPTION and (word == "--model" or release < _FIRST_WITH_MODEL_OPTIONAL)


def _move_model(prepared: Prepared, release: Release | None) -> None:
    words = prepared.words
    index = next((i for i, word in enumerate(words) if _MODEL.match(word.text)), None)
    if index is None:
        return
    word = words[index]
    if takes_model_first(word.text, release):
        prepared.problems.append(f"vLLM {release} takes the model as the first word after serve, not as --model")
        return
    if release is not None and release <= _LAST_WITHOUT_MODEL_OPTION:
        return
    if word.text.startswith("--model="):
        prepared.words = [Word(word.text.removeprefix("--model="), word.at), *words[:index], *words[index + 1 :]]
    elif index + 1 < len(words):
        prepared.words = [words[index + 1], *words[:index], *words[index + 2 :]]
    else:
        prepared.problems.append("no model stands after --model")


def _check_served_name(prepared: Prepared, release: Release | None) -> None:
    if release is not None and release < _FIRST_WITH_SERVED_NAME_CHECK:
        return
    texts = [word.text for word in prepared.words]
    if texts and texts[0].startswith("-") and any(map(_SERVED_NAME.match, texts)) and not any(map(_CONFIG.match, texts)):
        prepared.problems.append("with --served-model-name the model must be the first word after serve")


def _insert_config(prepared: Prepared, config_words: Sequence[str] | None, *, serve: bool) -> None:
    words = prepared.words
    places = [index for index, word in enumerate(words) if word.text == "--config"]
    if not places:
        return
    index = places[0]
    if len(places) > 1:
        prepared.problems.append("--config stands twice")
        return
    if index == len(words) - 1:
        prepared.problems.append("no file stands after --config")
        return
    if words[index + 1].text.rpartition(".")[2] not in ("yaml", "yml"):
        prepared.problems.append("the file of --config must end in .yaml or .yml")
    inserted = [Word(text, yaml=True) for text in config_words or ()]
    front = 0 if words[0].text.startswith("-") else 1
    if serve and front == 0 and config_words is not None and "--model" not in config_words:
        prepared.problems.append("no model stands directly after serve or in the --config file")
    prepared.words = [*words[:front], *inserted, *words[front:index], *words[index + 2 :]]


def _respell(words: Sequence[Word], release: Release | None) -> list[Word]:
    """Underscores of option names become dashes, -O gets its long name, `--help=GROUP` its short one."""
    old = release is not None and release < _FIRST_WITH_OPTIMIZATION_LEVEL
    old_level = "-O" if old and release is not None and release <= _LAST_WITHOUT_DOTTED else "-O.level"
    respelled: list[Word] = []
    for index, word in enumerate(words):
        text = word.text
        if text.startswith("--help="):
            respelled.append(word._replace(text="--help"))
        elif text.startswith("--"):
            key, equals, value = text.partition("=")
            key = _HEAD.sub(lambda head: head[0].replace("_", "-"), key, count=1)
            respelled.append(word._replace(text=key + equals + value))
        elif text.startswith("-O") and text != "-O" and not (old and text[2] == "."):
            level = word._replace(text=text[3:] if text[2] == "=" else text[2:])
            respelled += [word._replace(text=old_level if old else "--optimization-level"), level]
        elif text == "-O" and index + 1 < len(words) and words[index + 1].text in ("0", "1", "2", "3"):
            respelled.append(word._replace(text=old_level if old else "--optimization-level"))
        else:
            respelled.append(word)
    return respelled


def _collect_dotted(prepared: Prepared, release: Release | None) -> None:
    """`--x.a.b 1` words go to the end as `--x {"a": {"b": 1}}`, one for each option; they beat every full JSON before them.

    vLLM takes any word that starts with a dash and has a dot for one of these, -0.5 included, also behind a `--`.
    """
    kept: list[Word] = []
    objects: dict[str, dict[str, Any]] = {}
    from_yaml: dict[str, bool] = {}
    waiting = iter(prepared.words)
    for word in waiting:
        path, equals, text = word.text.partition("=")
        if not word.text.startswith("-") or "." not in path:
            kept.append(word)
            continue
        if not equals:
            value = next(waiting, None)
            if value is None:
                prepared.problems.append(f"no value stands after {path[:60]!r}, which vLLM takes for a part of a JSON option")
                break
            text = value.text
        if path.endswith("+"):
            path, text = path[:-1], json.dumps(text.split(","))
        key, *steps = path.split(".")
        _merge(objects.setdefault(key, {}), _nested(steps, _dotted_value(text, release)))
        from_yaml[key] = word.yaml and from_yaml.get(key, True)
    for key, value_object in objects.items():
        kept += [Word(key, yaml=from_yaml[key]), Word(json.dumps(value_object), yaml=from_yaml[key])]
    prepared.words = kept


def _dotted_value(text: str, release: Release | None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return text if release is not None and release <= _LAST_WITHOUT_HUMAN_DOTTED else parse_human_int(text, release)
    except ValueError:
        return text


def _nested(steps: Sequence[str], value: Any) -> dict[str, Any]:
    for step in reversed(steps):
        value = {step: value}
    return value  # type: ignore[no-any-return]  # a dotted key has at least one step


def _merge(into: dict[str, Any], update: dict[str, Any]) -> None:
    for key, value in update.items():
        present = into.get(key)
        if isinstance(value, dict) and isinstance(present, dict):
            _merge(present, value)
        elif isinstance(value, list) and isinstance(present, list):
            present += value
        else:
            into[key] = value
