"""Secrets out of command lines and free text. Where it is not certain that a word is a secret, it is hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from vllm_guard.command.options import Named, read_options
from vllm_guard.command.tokens import prepare
from vllm_guard.release import Release

MASK: Final = "***"
_SECRET_DESTS: Final = frozenset({"api_key", "hf_token"})
_MAX_NAME_CHARACTERS: Final = 120

_CERTAIN: Final = re.compile(r"secret|passw(?:or)?d|api[-_]?key", re.IGNORECASE)
# Not the tokens that a model counts: tokenizer, token_ids, and max_num_batched_tokens where its value is a number.
_TOKEN: Final = re.compile(r"token(?!iz|s?[-_]?ids?)", re.IGNORECASE)
_OPTION_NAME: Final = re.compile(r"secret|passw(?:or)?d|api[-_]?key|token(?!iz|s|[-_]?ids?)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[-+]?\d[\d_]*(?:\.\d+)?[kKmMgGtT]?|true|false|null|None", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"://[^\s/?#]*@")
# Tokens that are known by their own look, and what stands in a header.
_BARE: Final = re.compile(r"\b(?:hf_[A-Za-z0-9]{24,}|sk-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{24,}|nvapi-[\w-]{20,})|(?<=Bearer )[\w.~+/-]{8,}=*")

_VALUE: Final = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|\[[^\]]*\]|[^\s'"\[]|['"\[])+"""
_NAME: Final = r"[\w.-]{0,60}(?:secret|passw|api[-_]?key|token)[\w.-]{0,60}"
# Every prefix of --api-key that is not --api-server-count's alone; all words behind it are keys. And every one of --hf-token.
_KEY_OPTION: Final = re.compile(rf"(--api(?:[-_](?:k(?:ey?)?)?)?)(?:(=){_VALUE}|((?:\s+(?!-){_VALUE})+))", re.IGNORECASE)
_HF_OPTION: Final = re.compile(rf"(--hf(?:[-_](?:t(?:o(?:ke?)?)?)?)?(?:=|\s+(?!-))){_VALUE}", re.IGNORECASE)
_OPTION: Final = re.compile(rf"(--?({_NAME})(?:=|\s+(?!-)))({_VALUE})", re.IGNORECASE)
_JSON_KEY: Final = re.compile(rf"""((["'])({_NAME})\2\s*:\s*)("(?:[^"\\]|\\.)*"|'[^']*'|\[[^\]]*\]|[^\s,}}\]'"]+)""", re.IGNORECASE)
_ASSIGNMENT: Final = re.compile(rf"(\b({_NAME})(?:=|: ?))({_VALUE})", re.IGNORECASE)
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.?)", re.DOTALL)


def mask_argv(argv: Sequence[str], release: Release | None) -> tuple[str, ...]:
    """The argv, word for word, with `***` for every value of --api-key and --hf-token in any spelling, for secrets in JSON, and for user names and
    passwords in URLs. An unknown option whose name looks like a secret's hides the word behind it.
    """
    options = read_options(release)
    masked = list(argv)
    words = prepare(argv, release, config_words=None).words
    named = [None if word.text == "--" else options.named(word.text) for word in words]
    for index, (word, name) in enumerate(zip(words, named, strict=True)):
        if name is None or not _names_secret(name):
            continue
        if name.inline is not None:
            _hide_end(masked, word.at, name.inline)
            continue
        for behind in range(index + 1, index + 1 + _secrets_behind(name, named[index + 1 :])):
            _hide_end(masked, words[behind].at, words[behind].text)
    _hide_dotted(argv, masked)
    return tuple(_mask_word(word) for word in masked)


def mask_text(text: str) -> str:
    """Free text (a command line joined with spaces, a message) with the same secrets hidden, by pattern. Rather one word too many than one too few."""
    text = _BARE.sub(MASK, _USER_INFO.sub(f"://{MASK}@", text))
    text = _KEY_OPTION.sub(lambda m: f"{m[1]}={MASK}" if m[2] else m[1] + re.sub(rf"(\s+){_VALUE}", rf"\1{MASK}", m[3]), text)
    text = _HF_OPTION.sub(rf"\1{MASK}", text)
    text = _OPTION.sub(lambda m: m[1] + (MASK if _OPTION_NAME.search(m[2]) and _is_secret(m[2], m[3]) else m[3]), text)
    text = _JSON_KEY.sub(lambda m: m[1] + (f"{m[2]}{MASK}{m[2]}" if _is_secret(m[3], m[4]) else m[4]), text)
    return _ASSIGNMENT.sub(lambda m: m[1] + (MASK if _is_secret(m[2], m[3]) else m[3]), text)


def name_of(cmdline: Sequence[str]) -> str:
    """Program and first two words of a process's command line for people: masked, printable, at most 120 characters. A title of one word is split."""
    words = cmdline[0].split() if len(cmdline) == 1 else cmdline
    printable = (_printable(word) for word in words[:3])
    name = mask_text(" ".join(word for word in printable if word))
    return name if len(name) <= _MAX_NAME_CHARACTERS else name[: _MAX_NAME_CHARACTERS - 1] + "…"


def _printable(word: str) -> str:
    """The word without escape sequences, control characters, surrogates and marks that reorder a terminal's line."""
    text = " ".join(_ESCAPE.sub("", word).split())
    return "".join(character for character in text if character.isprintable())


def _names_secret(name: Named) -> bool:
    if name.candidates:
        return any(option.dest in _SECRET_DESTS for option in name.candidates)
    return _OPTION_NAME.search(name.key) is not None


def _secrets_behind(name: Named, named: Sequence[Named | None]) -> int:
    """How many of the words behind a secret option are hidden: its values, and one that starts with a dash and is no option of vLLM."""
    run = next((index for index, behind in enumerate(named) if behind is not None), len(named))
    if run == 0:
        return int(bool(named) and named[0] is not None and not named[0].candidates)
    return run if any(option.arity == "+" for option in name.candidates) else 1


def _hide_end(words: list[str], at: int | None, value: str) -> None:
    if at is not None and value:
        words[at] = words[at][: len(words[at]) - len(value)] + MASK


def _hide_dotted(argv: Sequence[str], masked: list[str]) -> None:
    for at, text in enumerate(argv):
        path, equals, inline = text.partition("=")
        if not text.startswith("-") or "." not in path:
            continue
        value = inline if equals else argv[at + 1] if at + 1 < len(argv) else ""
        if value and _is_secret(path, value):
            masked[at if equals else at + 1] = f"{path}={MASK}" if equals else MASK


def _mask_word(word: str) -> str:
    if word.startswith("-O{"):  # the one short option that takes JSON without a space
        return "-O" + _mask_word(word[2:])
    key, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return key + equals + _USER_INFO.sub(f"://{MASK}@", _mask_json(value))


def _mask_json(text: str) -> str:
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        value = json.loads(text)
        masked = _mask_value(value)
    except (ValueError, RecursionError):
        return mask_text(text)
    return text if masked == value else json.dumps(masked)


def _mask_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: MASK if _is_secret(key, item) else _mask_value(item) for key, item in value.items()}
    return [_mask_value(item) for item in value] if isinstance(value, list) else value


def _is_secret(name: str, value: object) -> bool:
    """A name like a secret's with anything, or like a token's with anything but a count."""
    if _CERTAIN.search(name):
        return True
    counts = value is None or isinstance(value, (int, float)) or (isinstance(value, str) and _NUMBER.fullmatch(value) is not None)
    return _TOKEN.search(name) is not None and (not counts or name.lower().endswith("token"))
