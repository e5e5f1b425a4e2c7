"""The headers of safetensors files, read as hostile data: never the tensors, never more than the format allows, never a wait."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from vllm_guard.model.tensors import Headers, Tensor
from vllm_guard.model.unknown import Unknown
from vllm_guard.plain_file import open_plain_file, read_up_to, why_not

LENGTH_BYTES: Final = 8
_SHORTEST_HEADER_BYTES: Final = 2  # {}
# The safetensors library refuses a longer header (MAX_HEADER_SIZE).
_LARGEST_HEADER_BYTES: Final = 100_000_000
LARGEST_SUM_BYTES: Final = 128_000_000
_MOST_SHARDS: Final = 10_000
_MOST_TENSORS: Final = 1_000_000
_MOST_DIMENSIONS: Final = 16
_LARGEST_SIZE: Final = 1 << 53
# A tensor's entry has three brackets in 50 bytes or more. A denser header is no list of tensors, and as Python objects it would take twenty times its size.
_LEAST_BYTES_PER_BRACKET: Final = 8
_SLACK_BYTES: Final = 4096
# Bits of one value, by safetensors' names (its Dtype).
_BITS: Final = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


def read_headers(folder: Path, shard_names: Iterable[str], sizes_bytes: Mapping[str, int] | None = None) -> Headers | Unknown:
    """The tensors of these files of a model's folder, or why they are not known. Sizes are those of the files, held to shape and dtype.

    `sizes_bytes` is given where the folder holds the beginnings of files only: those of the whole ones, by name.

    Links are followed within the model's repository, because the Hugging Face cache is made of them (snapshots/COMMIT/x -> ../../blobs/y).
    Source: the safetensors format, 8 bytes of length, JSON, data.
    """
    home = _repository(folder)
    tensors: list[Tensor] = []
    seen: set[str] = set()
    left_bytes = LARGEST_SUM_BYTES
    for count, name in enumerate(shard_names):
        if count >= _MOST_SHARDS:
            return Unknown(f"more than {_MOST_SHARDS} shards")
        if "/" in name or "\0" in name or name in {"", ".", ".."}:
            return Unknown(f"{name!r} is no file of the model's folder")
        header = _read_header(folder / name, home, left_bytes, None if sizes_bytes is None else sizes_bytes.get(name, 0))
        if isinstance(header, str):
            return Unknown(f"{name}: {header}")
        data, file_bytes = header
        left_bytes -= len(data)
        found = _parse_header(data, file_bytes)
        if isinstance(found, str):
            return Unknown(f"{name}: {found}")
        tensors += found
        seen.update(map(itemgetter(0), found))
        if len(seen) != len(tensors):
            return Unknown(f"{name}: it holds a tensor that another shard holds too")
        if len(tensors) > _MOST_TENSORS:
            return Unknown(f"more than {_MOST_TENSORS} tensors")
    return Headers(tuple(tensors)) if tensors else Unknown("the checkpoint names no tensors")


def _repository(folder: Path) -> str:
    """The folder that a link may not leave: the repository of a snapshot in the Hugging Face cache, else the model's own folder."""
    snapshots = folder.parent
    home = snapshots.parent if snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--") else folder
    return os.path.realpath(home)


def _read_header(path: Path, home: str, left_bytes: int, whole_bytes: int | None) -> tuple[bytes, int] | str:
    """The header's bytes and the size of the file, or why they were not read."""
    try:
        real = os.path.realpath(path)
        if os.path.commonpath((home, real)) != home:
            return "it is a link out of the model's folder"
        with open_plain_file(real) as (descriptor, size_bytes):
            file_bytes = size_bytes if whole_bytes is None else whole_bytes
            length_bytes = int.from_bytes(read_up_to(descriptor, LENGTH_BYTES), "little")
            if not _SHORTEST_HEADER_BYTES <= length_bytes <= min(_LARGEST_HEADER_BYTES, file_bytes - LENGTH_BYTES):
                return f"it says that its header has {length_bytes} bytes"
            if length_bytes > left_bytes:
                return f"the headers have more than {LARGEST_SUM_BYTES} bytes together"
            data = read_up_to(descriptor, length_bytes)
    except (OSError, ValueError) as error:
        return why_not(error)
    return (data, file_bytes) if len(data) == length_bytes else "it ends within its header"


def _parse_header(data: bytes, file_bytes: int) -> list[Tensor] | str:
    """The tensors of one header, or what is wrong with it."""
    if (data.count(b"[") + data.count(b"{")) * _LEAST_BYTES_PER_BRACKET > len(data) + _SLACK_BYTES:
        return "its header is not a list of tensors"
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError):
        return "its header is not JSON"
    if not isinstance(entries, dict):
        return "its header is not a JSON object"
    entries.pop("__metadata__", None)
    data_bytes = file_bytes - LENGTH_BYTES - len(data)
    tensors = _tensors(entries, data_bytes)
    if isinstance(tensors, list) and sum(map(itemgetter(3), tensors)) > data_bytes:
        return "its tensors overlap"
    return tensors


def _tensors(entries: dict[str, Any], data_bytes: int) -> list[Tensor] | str:
    """The entries, checked: dtype known, offsets within the file, as many bytes as the shape needs. There may be 90,000, so each shape is checked once."""
    tensors = []
    known: dict[tuple[Any, ...], tuple[str, tuple[int, ...], int]] = {}
    for name, entry in entries.items():
        try:
            begin, end = entry["data_offsets"]
            kind = (entry["dtype"], *entry["shape"])
            if kind not in known:
                known[kind] = (kind[0], kind[1:], _size_bytes(kind))
            dtype, shape, size_bytes = known[kind]
            if end - begin != size_bytes or not 0 <= begin <= data_bytes - size_bytes:
                return f"tensor {name[:100]!r}: its size is not that of its shape, or it lies outside the file"
        except (TypeError, KeyError, ValueError):
            return f"tensor {name[:100]!r}: its entry is not one of a tensor"
        tensors.append(Tensor(name, dtype, shape, size_bytes))
    return tensors


def _size_bytes(kind: tuple[Any, ...]) -> int:
    """Bytes of a dtype and shape; KeyError or ValueError where they are none."""
    bits = _BITS[kind[0]]
    if len(kind) > _MOST_DIMENSIONS:
        raise ValueError(kind)
    for dimension in kind[1:]:
        if type(dimension) is not int or not 0 <= dimension < _LARGEST_SIZE:
            raise ValueError(kind)
        bits *= dimension
    return (bits + 7) // 8
