"""The files of a model, read as hostile data: config.json, and how many bytes of safetensors the checkpoint names. The only file reader here."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.headers import read_headers
from vllm_guard.model.tensors import Headers
from vllm_guard.plain_file import read_plain_file
from vllm_guard.units import MIB

LARGEST_CONFIG_BYTES: Final = 4 * MIB
LARGEST_INDEX_BYTES: Final = 64 * MIB
_MOST_SHARDS: Final = 10_000
_LONGEST_SEQUENCE: Final = 1 << 40  # tokenizers without a limit say 1e30
# What is read of a folder beside the index and the weights.
SMALL_FILES: Final = ("config.json", "hf_quant_config.json", "tokenizer_config.json")
INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"


def read_model(model: str | None, revision: str | None, download_dir: str | None, environ: Mapping[str, str]) -> Checkpoint | UnknownCheckpoint:
    """The files of a local folder, or of a model in the Hugging Face cache. Never raises and never uses the network."""
    if model is None:
        return UnknownCheckpoint("the model cannot be told from the command line")
    folder = model_folder(model, revision, download_dir, environ)
    return folder if isinstance(folder, UnknownCheckpoint) else read_folder(folder, str(folder))


def read_folder(folder: Path, called: str, sizes_bytes: Mapping[str, int] | None = None) -> Checkpoint | UnknownCheckpoint:
    """The files of one folder, which is `called` so in what is said of it. Never raises.

    `sizes_bytes` is given where the folder stands for a larger one: the sizes of that one's files, by name, of which this one holds the small ones whole
    and the beginnings of others.
    """
    config = _read_json_object(folder / "config.json", LARGEST_CONFIG_BYTES)
    if isinstance(config, str):
        return UnknownCheckpoint(f"{called}/config.json: {config}")
    if "quantization_config" not in config:  # ModelOpt's own file, which vLLM puts there (transformers_utils/config.py)
        quantization = _read_json_object(folder / "hf_quant_config.json", LARGEST_CONFIG_BYTES)
        config = {**config, "quantization_config": quantization} if isinstance(quantization, dict) else config
    weights, shards = weight_files(folder, sizes_bytes)
    headers = read_headers(folder, shards, sizes_bytes)
    return Checkpoint(
        folder=called,
        config=config,
        weight_files_bytes=weights if isinstance(weights, int) else None,
        weights_unknown_because=weights if isinstance(weights, str) else None,
        sentence_transformers=_has(folder, "modules.json", sizes_bytes),  # vLLM makes such a folder a pooling model (config/model.py)
        tokenizer_max_length=_tokenizer_max_length(folder),
        headers=headers if isinstance(headers, Headers) else None,
    )


def _tokenizer_max_length(folder: Path) -> int | None:
    """The tokenizer's own limit, which bounds the derived length (config/model.py); None where it says none or a number beyond all lengths."""
    tokenizer = _read_json_object(folder / "tokenizer_config.json", LARGEST_CONFIG_BYTES)
    length = tokenizer.get("model_max_length") if isinstance(tokenizer, dict) else None
    return length if isinstance(length, int) and not isinstance(length, bool) and 0 < length < _LONGEST_SEQUENCE else None


def model_folder(model: str, revision: str | None, download_dir: str | None, environ: Mapping[str, str]) -> Path | UnknownCheckpoint:
    """The folder that vLLM would load from without a download: the path itself, or the snapshot in the Hugging Face cache (huggingface_hub constants.py)."""
    try:
        if os.path.isdir(model):  # noqa: PTH112 - a model name may hold bytes that Path refuses later; isdir never raises on them
            return Path(model)
        if model.count("/") > 1 or model.startswith((".", "/", "~")) or "\0" in model:
            return UnknownCheckpoint(f"no such folder: {model!r}")
        repository = _cache_root(download_dir, environ) / ("models--" + model.replace("/", "--"))
        commit = _commit(repository, revision or "main")
        snapshot = repository / "snapshots" / commit
        return snapshot if snapshot.is_dir() else UnknownCheckpoint(f"{model!r} is not on this disk yet", absent=True)
    except (OSError, ValueError) as error:
        return UnknownCheckpoint(f"{model!r} cannot be looked up: {error}")


def _cache_root(download_dir: str | None, environ: Mapping[str, str]) -> Path:
    if download_dir:
        return Path(download_dir)
    if environ.get("HF_HUB_CACHE"):
        return _expanded(environ["HF_HUB_CACHE"])
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")  # noqa: PTH118 - as huggingface_hub joins it
    return _expanded(home) / "hub"


def _expanded(path: str) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for a user without a home, as random uids in containers are


def _commit(repository: Path, revision: str) -> str:
    """The commit of a branch or tag, or the revision itself when it is no ref."""
    if ".." in revision or revision.startswith("/"):
        return "unknown"
    text = read_plain_file(repository / "refs" / revision, 256)
    return text.decode("ascii", "replace").strip().replace("/", "_") if isinstance(text, bytes) else revision


def _has(folder: Path, name: str, sizes_bytes: Mapping[str, int] | None) -> bool:
    return (folder / name).exists() if sizes_bytes is None else name in sizes_bytes


def weight_files(folder: Path, sizes_bytes: Mapping[str, int] | None) -> tuple[int | str, list[str]]:
    """Bytes of the checkpoint, or why they are unknown, and its shards; `sizes_bytes` as in `read_folder`."""
    if not _has(folder, INDEX, sizes_bytes):
        return _sum_bytes(folder, [_SINGLE], sizes_bytes), [_SINGLE]
    index = _read_json_object(folder / INDEX, LARGEST_INDEX_BYTES)
    if isinstance(index, str):
        return f"{INDEX}: {index}", []
    metadata, weight_map = index.get("metadata"), index.get("weight_map")
    declared = metadata.get("total_size") if isinstance(metadata, dict) else None
    declared_bytes = declared if isinstance(declared, int) and not isinstance(declared, bool) and declared > 0 else None
    shards = sorted({name for name in weight_map.values() if isinstance(name, str)}) if isinstance(weight_map, dict) else []
    on_disk = _sum_bytes(folder, shards, sizes_bytes) if shards else "the index names no shards"
    if isinstance(on_disk, int):
        return on_disk if declared_bytes is None else min(on_disk, declared_bytes), shards
    return on_disk if declared_bytes is None else declared_bytes, shards


def _sum_bytes(folder: Path, names: Iterable[str], sizes_bytes: Mapping[str, int] | None) -> int | str:
    """The sizes of plain files of this folder, added up; links are followed, because the Hugging Face cache is made of them."""
    total = 0
    for count, name in enumerate(names):
        if count >= _MOST_SHARDS:
            return f"the index names more than {_MOST_SHARDS} shards"
        if "/" in name or "\0" in name or name in {"", ".", ".."}:
            return f"the index names {name!r}, which is no file of this folder"
        size_bytes = _size_bytes(folder / name) if sizes_bytes is None else sizes_bytes.get(name)
        if size_bytes is None:
            return f"{name} is not in the folder, or no plain file"
        total += size_bytes
    return total


def _size_bytes(path: Path) -> int | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _read_json_object(path: Path, largest_bytes: int) -> dict[str, Any] | str:
    """A JSON object, or why there is none."""
    data = read_plain_file(path, largest_bytes)
    if isinstance(data, str):
        return data
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return "it is not JSON"
    return value if isinstance(value, dict) else "it is not a JSON object"
