"""Asking a model hub for what a model needs. `ask_hub` is the one way in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from vllm_guard.hub.child import Tell, told_within
from vllm_guard.hub.question import Question
from vllm_guard.hub.store import is_commit, is_whole, kept_sizes, private_folder
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.files import SMALL_FILES, read_folder
from vllm_guard.plain_file import why_not

SECONDS: Final = 2.0
_ENDPOINT: Final = "https://huggingface.co"
_NAME: Final = re.compile(r"([\w.-]+/)?[\w.-]+", re.ASCII)
_LONGEST_NAME: Final = 96  # huggingface_hub utils/_validators.py
_TRUE: Final = frozenset(("1", "on", "yes", "true"))  # huggingface_hub constants.py
_DONE: Final = "done"


def ask_hub(model: str, revision: str | None, token: str | None, environ: Mapping[str, str]) -> Checkpoint | UnknownCheckpoint:
    """What the hub that vLLM would download from says of a model, within SECONDS and asked once. Never raises.

    It is the checkpoint that the downloaded folder would give; without headers, or without the size of the weights, where those did not come in time.
    What came is kept by commit: where all of a commit was kept, the hub is asked for the commit of a branch only.
    """
    question = _question(model, revision, token, environ)
    if isinstance(question, str):
        return UnknownCheckpoint(f"{model!r} is not on this disk, and no model hub was asked about it: {question}")
    try:
        with private_folder(environ) as store:
            found = _asked(question, store, environ)
    except OSError as error:
        found = f"it cannot be asked: {why_not(error)}"
    return UnknownCheckpoint(f"{model!r} is not on this disk, and {question.host} did not tell what it needs: {found}") if isinstance(found, str) else found


def _question(model: str, revision: str | None, token: str | None, environ: Mapping[str, str]) -> Question | str:
    """What to ask, or why nothing is asked."""
    if not _NAME.fullmatch(model) or len(model) > _LONGEST_NAME or ".." in model or "--" in model:
        return "this is no name of a model there"
    offline = next((name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if environ.get(name, "").lower() in _TRUE), None)
    if offline is not None:
        return f"{offline} is set"
    if environ.get("VLLM_USE_MODELSCOPE", "").strip().lower() in {"1", "true"}:  # vllm/envs.py
        return "VLLM_USE_MODELSCOPE is set"
    endpoint = (environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    try:
        host = urlsplit(endpoint).hostname
    except ValueError:
        host = None
    return Question(endpoint, host, model, revision or "main", token or None) if host else "HF_ENDPOINT is no address"


def _asked(question: Question, store: Path, environ: Mapping[str, str]) -> Checkpoint | UnknownCheckpoint | str:
    """The checkpoint, or why there is none. Raises OSError."""
    if is_commit(question.revision) and is_whole(question.folder(store, question.revision)):
        return _kept(question, store, question.revision, "")
    # Without what huggingface_hub would ask for itself: it fetches a list of the programs that may have started it, to name one to the hub.
    lines, in_time = told_within(SECONDS, partial(_work, question, store), {**environ, "HF_HUB_DISABLE_TELEMETRY": "1"})
    reason = lines[-1] if lines and not is_commit(lines[-1]) else "the request ended early" if in_time else f"no answer within {SECONDS:g} s"
    return _kept(question, store, lines[0], reason) if lines and is_commit(lines[0]) else reason


def _work(question: Question, store: Path, tell: Tell) -> None:
    """The child's work: tells the commit once it is known, then that it is done or why it is not."""
    try:
        from vllm_guard.hub.fetch import HubError, fetch  # noqa: PLC0415 - huggingface_hub, only where it is needed
    except ImportError:
        tell("huggingface_hub, which would ask, is not installed beside vllm-guard")
        return
    try:
        fetch(question, store, tell)
    except HubError as error:
        tell(str(error))
    except Exception as error:  # noqa: BLE001 - of any library; without its text, which may hold a token
        tell(f"the request failed ({type(error).__name__})")
    else:
        tell(_DONE)


def _kept(question: Question, store: Path, commit: str, reason: str) -> Checkpoint | UnknownCheckpoint | str:
    """What the folder of the commit tells. All small files must be there: a length without the tokenizer's limit would be too large."""
    folder = question.folder(store, commit)
    sizes_bytes = kept_sizes(folder)
    if sizes_bytes is None or any(name in sizes_bytes and not (folder / name).exists() for name in SMALL_FILES):
        return reason
    return read_folder(folder, f"{question.host}/{question.model}@{commit}", sizes_bytes)
