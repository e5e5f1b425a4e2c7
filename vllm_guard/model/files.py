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

_LARGEST_CONFIG_BYTES: Final = 4 * MIB
_LARGEST_INDEX_BYTES: Final = 64 * MIB
_MOST_SHARDS: Final = 10_000
_LONGEST_SEQUENCE: Final = 1 << 40  # tokenizers without a limit say 1e30
_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"


def read_model(model: str | None, revision: str | None, download_dir: str | None, environ: Mapping[str, str]) -> Checkpoint | UnknownCheckpoint:
    """The files of a local folder, or of a model in the Hugging Face cache. Never raises and never uses the network."""
    if model is None:
        return UnknownCheckpoint("the model cannot be told from the command line")
    folder = model_folder(model, revision, download_dir, environ)
    if isinstance(folder, UnknownCheckpoint):
        return folder
    config = _read_json_object(folder / "config.json", _LARGEST_CONFIG_BYTES)
    if isinstance(config, str):
        return UnknownCheckpoint(f"{folder / 'config.json'}: {config}")
    if "quantization_config" not in config:  # ModelOpt's own file, which vLLM puts there (transformers_utils/config.py)
        quantization = _read_json_object(folder / "hf_quant_config.json", _LARGEST_CONFIG_BYTES)
        config = {**config, "quantization_config": quantization} if isinstance(quantization, dict) else config
    weights, shards = _weight_files(folder)
    headers = read_headers(folder, shards)
    return Checkpoint(
        folder=str(folder),
        config=config,
        weight_files_bytes=weights if isinstance(weights, int) else None,
        weights_unknown_because=weights if isinstance(weights, str) else None,
        sentence_transformers=(folder / "modules.json").exists(),  # vLLM makes such a folder a pooling model (config/model.py)
        tokenizer_max_length=_tokenizer_max_length(folder),
        headers=headers if isinstance(headers, Headers) else None,
    )


def _tokenizer_max_length(folder: Path) -> int | None:
    """The tokenizer's own limit, which bounds the derived length (config/model.py); None where it says none or a number beyond all lengths."""
    tokenizer = _read_json_object(folder / "tokenizer_config.json", _LARGEST_CONFIG_BYTES)
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
        return snapshot if snapshot.is_dir() else UnknownCheckpoint(f"{model!r} is not on this disk yet")
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


def _weight_files(folder: Path) -> tuple[int | str, list[str]]:
    """Bytes of the checkpoint, or why they are unknown, and its shards."""
    if not (folder / _INDEX).exists():
        return _sizes_bytes(folder, [_SINGLE]), [_SINGLE]
    index = _read_json_object(folder / _INDEX, _LARGEST_INDEX_BYTES)
    if isinstance(index, str):
        return f"{_INDEX}: {index}", []
    metadata, weight_map = index.get("metadata"), index.get("weight_map")
    declared = metadata.get("total_size") if isinstance(metadata, dict) else None
    declared_bytes = declared if isinstance(declared, int) and not isinstance(declared, bool) and declared > 0 else None
    shards = sorted({name for name in weight_map.values() if isinstance(name, str)}) if isinstance(weight_map, dict) else []
    on_disk = _sizes_bytes(folder, shards) if shards else "the index names no shards"
    if isinstance(on_disk, int):
        return on_disk if declared_bytes is None else min(on_disk, declared_bytes), shards
    return on_disk if declared_bytes is None else declared_bytes, shards


def _sizes_bytes(folder: Path, names: Iterable[str]) -> int | str:
    """The sizes of plain files of this folder, added up; links are followed, because the Hugging Face cache is made of them."""
    total = 0
    for count, name in enumerate(names):
        if count >= _MOST_SHARDS:
            return f"the index names more than {_MOST_SHARDS} shards"
        if "/" in name or "\0" in name or name in {"", ".", ".."}:
            return f"the index names {name!r}, which is no file of this folder"
        try:
            status = (folder / name).stat()
        except OSError:
            return f"{name} is not in the folder"
        if not stat.S_ISREG(status.st_mode):
            return f"{name} is not a plain file"
        total += status.st_size
    return total


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
