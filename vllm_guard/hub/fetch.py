"""The requests to a model hub, made in a child process. The only importer of huggingface_hub, whose token, proxies and redirects are used.

Its own downloads are not: they retry, have no bound, and fill the cache in which vLLM looks for whole models. What is asked here is what they ask
(hf_api.py repo_info and parse_safetensors_file_metadata), through their session.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from huggingface_hub.utils import build_hf_headers, get_session

from vllm_guard import __version__
from vllm_guard.hub.child import Tell
from vllm_guard.hub.question import Question
from vllm_guard.hub.store import LARGEST_LISTING_BYTES, is_commit, is_size, is_whole, keep, keep_sizes, keep_whole
from vllm_guard.model.files import INDEX, LARGEST_CONFIG_BYTES, LARGEST_INDEX_BYTES, SMALL_FILES, weight_files
from vllm_guard.model.headers import LARGEST_SUM_BYTES, LENGTH_BYTES

_AT_ONCE: Final = 16
# As much as huggingface_hub asks for first: nearly all headers are shorter.
_FIRST_BYTES: Final = 100_000
_PART_BYTES: Final = 65_536
_SILENT_SECONDS: Final = 10  # the child is ended long before
_GOOD: Final = (200, 206)


class HubError(Exception):
    """The hub did not give what was asked for; the message says why."""


def fetch(question: Question, store: Path, tell: Tell) -> None:
    """Brings what the commit's folder lacks: the small files, the index, the headers of the weight files. Tells the commit as soon as it is known.

    Raises HubError, OSError for a folder that cannot be written to, and what the session raises.
    """
    headers = build_hf_headers(token=question.token, library_name="vllm-guard", library_version=__version__)
    commit, sizes_bytes = _listing(question, headers)
    folder = question.folder(store, commit)
    folder.mkdir(mode=0o700, exist_ok=True)
    keep_sizes(folder, sizes_bytes)
    tell(commit)
    if is_whole(folder):
        return
    there = f"{question.endpoint}/{question.model}/resolve/{commit}"
    bounds = {**dict.fromkeys(SMALL_FILES, LARGEST_CONFIG_BYTES), INDEX: LARGEST_INDEX_BYTES}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        lacking = _lacking(folder, bounds, sizes_bytes)
        list(pool.map(lambda name: keep(folder / name, _whole(f"{there}/{name}", headers, bounds[name])), lacking))
        shards = [name for name in weight_files(folder, sizes_bytes)[1] if name.endswith(".safetensors") and "/" not in name]
        most_bytes = LARGEST_SUM_BYTES // max(1, len(shards))
        lacking = _lacking(folder, shards, sizes_bytes)
        list(pool.map(lambda name: _keep_header(folder / name, f"{there}/{quote(name)}", headers, min(most_bytes, sizes_bytes[name])), lacking))
    keep_whole(folder)


def _lacking(folder: Path, names: Iterable[str], sizes_bytes: Mapping[str, int]) -> list[str]:
    return [name for name in names if name in sizes_bytes and not (folder / name).exists()]


def _listing(question: Question, headers: Mapping[str, str]) -> tuple[str, dict[str, int]]:
    """The commit of the revision, and the sizes of its files by name."""
    url = f"{question.endpoint}/api/models/{question.model}/revision/{quote(question.revision, safe='')}?blobs=true"
    data = _whole(url, headers, LARGEST_LISTING_BYTES)
    with suppress(ValueError, RecursionError, TypeError, KeyError, AttributeError):
        answer = json.loads(data)
        commit, files = answer["sha"], {file["rfilename"]: file.get("size") for file in answer["siblings"]}
        if is_commit(commit):
            return commit, {name: size for name, size in files.items() if is_size(size)}
    msg = "its answer is not that of a model hub"
    raise HubError(msg)


def _keep_header(path: Path, url: str, headers: Mapping[str, str], most_bytes: int) -> None:
    """Keeps the beginning of a weight file up to the end of its header; nothing where that is longer than this."""
    data = _beginning(url, headers, max(LENGTH_BYTES, min(_FIRST_BYTES, most_bytes)))
    end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    if len(data) < end <= most_bytes:
        data = _beginning(url, headers, end)
    if end <= len(data):
        keep(path, data[:end])


def _beginning(url: str, headers: Mapping[str, str], size_bytes: int) -> bytes:
    """So many bytes of a file, fewer where it ends before; from a server that knows no ranges too."""
    return _read(url, {**headers, "range": f"bytes=0-{size_bytes - 1}", "accept-encoding": "identity"}, size_bytes)[:size_bytes]


def _whole(url: str, headers: Mapping[str, str], most_bytes: int) -> bytes:
    data = _read(url, headers, most_bytes)
    if len(data) > most_bytes:
        msg = f"an answer is larger than {most_bytes} bytes"
        raise HubError(msg)
    return data


def _read(url: str, headers: Mapping[str, str], most_bytes: int) -> bytes:
    """The body of the answer, cut off soon after so many bytes. Raises HubError for any answer but a good one."""
    data = bytearray()
    with _answer(url, headers) as (response, parts):
        if response.status_code not in _GOOD:
            raise HubError(_refusal(response.status_code, response.headers.get("x-error-code")))
        for part in parts:
            data += part
            if len(data) > most_bytes:
                break
    return bytes(data)


@contextmanager
def _answer(url: str, headers: Mapping[str, str]) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """The answer to one request, redirects followed, its body not read yet."""
    session: Any = get_session()
    if callable(session.stream):  # httpx, from huggingface_hub 1.0 on; before, requests, where this is a setting
        with session.stream("GET", url, headers=headers, timeout=_SILENT_SECONDS, follow_redirects=True) as response:
            yield response, response.iter_bytes()
    else:
        with session.get(url, headers=headers, timeout=_SILENT_SECONDS, stream=True) as response:
            yield response, response.iter_content(_PART_BYTES)


def _refusal(status: int, code: str | None) -> str:
    """What an answer means (huggingface_hub utils/_http.py hf_raise_for_status)."""
    if code == "GatedRepo":
        return "the model is gated: ask its owners for access, and give the token of who has it (HF_TOKEN)"
    if code == "RevisionNotFound":
        return "it knows the model but not this revision"
    if status in {401, 403}:
        return "it knows no such model, or shows it only with a token (HF_TOKEN)"
    return "it knows no such model" if code == "RepoNotFound" or status == 404 else f"it answered with status {status}"  # noqa: PLR2004 - HTTP's own
