"""The headers of safetensors files, read as hostile data."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import entry, write_shard

from vllm_guard.model import headers as reader
from vllm_guard.model.headers import read_headers
from vllm_guard.model.tensors import Headers, Tensor
from vllm_guard.model.unknown import Unknown

# A busy machine is no failure.
UNHURRIED = settings(deadline=None)
NAME = "model.safetensors"
NO_TENSOR = "its entry is not one of a tensor"


def reason(found: Headers | Unknown) -> str:
    """Why nothing was read."""
    assert isinstance(found, Unknown), found
    return found.because


def test_every_tensor_comes_with_its_dtype_shape_and_bytes(tmp_path: Path) -> None:
    """The order of the file is kept, the metadata is no tensor, a scalar has one value."""
    header = {"__metadata__": {"format": "pt"}, "a": entry("BF16", [3, 5], 0, 30), "b": entry("F8_E4M3", [7], 30, 37), "c": entry("F32", [], 37, 41)}
    write_shard(tmp_path / NAME, header, 41)

    found = read_headers(tmp_path, [NAME])

    assert Headers((Tensor("a", "BF16", (3, 5), 30), Tensor("b", "F8_E4M3", (7,), 7), Tensor("c", "F32", (), 4))) == found


def test_shards_add_up(tmp_path: Path) -> None:
    """One checkpoint in two files."""
    write_shard(tmp_path / "one", {"a": entry("F16", [10], 0, 20)}, 20)
    write_shard(tmp_path / "two", {"b": entry("I32", [4], 0, 16)}, 16)

    found = read_headers(tmp_path, ["one", "two"])

    assert isinstance(found, Headers)
    assert found.size_bytes == 36


def test_four_bit_values_share_bytes(tmp_path: Path) -> None:
    """Two values of F4 are one byte."""
    write_shard(tmp_path / NAME, {"a": entry("F4", [2, 8], 0, 8)}, 8)

    assert Headers((Tensor("a", "F4", (2, 8), 8),)) == read_headers(tmp_path, [NAME])


@pytest.mark.parametrize(
    ("header", "data_bytes", "why"),
    [
        pytest.param(b"", 0, "says that its header has 0 bytes", id="an empty header"),
        pytest.param(b"{]", 100, "not JSON", id="a header that is no JSON"),
        pytest.param(b"\xff\xfe{}", 100, "not JSON", id="a header that is no UTF-8"),
        pytest.param(b'["a"]', 100, "not a JSON object", id="a list"),
        pytest.param(b"[" * 50_000, 0, "not a list of tensors", id="brackets without an end"),
        pytest.param(b'{"a":' * 900 + b"1" + b"}" * 900, 0, NO_TENSOR, id="objects within objects"),
        pytest.param(b'{"a":[' + b"[]," * 90_000 + b"1]}", 0, "not a list of tensors", id="a header that would fill the memory with lists"),
        pytest.param({}, 0, "names no tensors", id="no tensors at all"),
        pytest.param({"a": 1}, 0, NO_TENSOR, id="a number in the place of a tensor"),
        pytest.param({"a": {"dtype": "BF16"}}, 0, NO_TENSOR, id="a tensor without a shape"),
        pytest.param({"a": entry("BF17", [1], 0, 2)}, 2, NO_TENSOR, id="a dtype that the format does not know"),
        pytest.param({"a": {"dtype": ["BF16"], "shape": [1], "data_offsets": [0, 2]}}, 2, NO_TENSOR, id="a dtype that is a list"),
        pytest.param({"a": entry("BF16", [3], 0, 4)}, 6, "not that of its shape", id="fewer bytes than the shape needs"),
        pytest.param({"a": entry("BF16", [2], 0, 8)}, 8, "not that of its shape", id="more bytes than the shape needs"),
        pytest.param({"a": entry("BF16", [2], 4, 8)}, 7, "lies outside", id="data beyond the end of the file"),
        pytest.param({"a": entry("BF16", [2], -4, 0)}, 7, "lies outside", id="data before the beginning"),
        pytest.param({"a": entry("BF16", [-1, -2], 0, 4)}, 4, NO_TENSOR, id="negative dimensions"),
        pytest.param({"a": entry("BF16", [1 << 60], 0, 4)}, 4, NO_TENSOR, id="a dimension beyond all memory"),
        pytest.param({"a": {"dtype": "BF16", "shape": [2.0], "data_offsets": [0, 4]}}, 4, NO_TENSOR, id="a fraction in a shape"),
        pytest.param({"a": {"dtype": "BF16", "shape": "12", "data_offsets": [0, 4]}}, 4, NO_TENSOR, id="a shape that is text"),
        pytest.param({"a": {"dtype": "BF16", "shape": [2], "data_offsets": ["0", "4"]}}, 4, NO_TENSOR, id="offsets that are text"),
        pytest.param({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [4]}}, 4, NO_TENSOR, id="one offset"),
        pytest.param({"a": entry("BF16", [1] * 40, 0, 2)}, 2, NO_TENSOR, id="forty dimensions"),
        pytest.param({"a": entry("U8", [400], 0, 400), "b": entry("U8", [400], 0, 400)}, 400, "overlap", id="tensors that share their bytes"),
    ],
)
def test_a_broken_header_is_unknown_with_its_reason(tmp_path: Path, header: object, data_bytes: int, why: str) -> None:
    """Files are anybody's data."""
    write_shard(tmp_path / NAME, header, data_bytes)

    assert why in reason(read_headers(tmp_path, [NAME]))


@pytest.mark.parametrize(
    "length",
    [
        pytest.param(3, id="shorter than the header"),
        pytest.param(10_000, id="longer than the file"),
        pytest.param(100_000_001, id="longer than the format allows"),
        pytest.param((1 << 64) - 1, id="the largest number"),
    ],
)
def test_a_wrong_length_is_unknown(tmp_path: Path, length: int) -> None:
    """The length decides how much is read, so it is held to the file and to the format's limit."""
    write_shard(tmp_path / NAME, {"a": entry("U8", [1], 0, 1)}, 1, length=length)

    assert isinstance(read_headers(tmp_path, [NAME]), Unknown)


def test_a_file_of_zeros_longer_than_the_limit_is_not_read(tmp_path: Path) -> None:
    """A header of 101 MB is refused by its length, however large the file is."""
    write_shard(tmp_path / NAME, b"{}", 200_000_000, length=101_000_000)

    assert "101000000 bytes" in reason(read_headers(tmp_path, [NAME]))


def test_a_file_shorter_than_its_length_field_is_unknown(tmp_path: Path) -> None:
    """Seven bytes are no safetensors file."""
    (tmp_path / NAME).write_bytes(b"\x01" * 7)

    assert isinstance(read_headers(tmp_path, [NAME]), Unknown)


def test_all_headers_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many files of an allowed size may not fill the memory."""
    monkeypatch.setattr(reader, "LARGEST_SUM_BYTES", 150)
    for name in ("one", "two"):
        write_shard(tmp_path / name, {name * 20: entry("U8", [1], 0, 1)}, 1)

    assert isinstance(read_headers(tmp_path, ["one"]), Headers)
    assert "together" in reason(read_headers(tmp_path, ["one", "two"]))


def test_a_tensor_in_two_shards_is_unknown(tmp_path: Path) -> None:
    """Counting it twice would be wrong, and counting it once a guess."""
    for name in ("one", "two"):
        write_shard(tmp_path / name, {"a": entry("U8", [1], 0, 1)}, 1)

    assert "another shard" in reason(read_headers(tmp_path, ["one", "two"]))


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b", "", ".", "..", "a\0b", "missing"])
def test_a_name_that_is_no_file_of_the_folder_is_unknown(tmp_path: Path, name: str) -> None:
    """The index may name anything."""
    assert isinstance(read_headers(tmp_path, [name]), Unknown)


def test_more_shards_than_any_checkpoint_has_are_unknown(tmp_path: Path) -> None:
    """The index cannot keep the guard busy."""
    write_shard(tmp_path / NAME, {}, 0)

    assert "more than 10000 shards" in reason(read_headers(tmp_path, [NAME] * 10_001))


def test_more_tensors_than_any_checkpoint_has_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor can its tensors."""
    monkeypatch.setattr(reader, "_MOST_TENSORS", 1)
    write_shard(tmp_path / NAME, {name: entry("U8", [0], 0, 0) for name in "ab"}, 0)

    assert "more than 1 tensors" in reason(read_headers(tmp_path, [NAME]))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody writes into it."""
    os.mkfifo(tmp_path / NAME)

    assert "not a plain file" in reason(read_headers(tmp_path, [NAME]))


def test_a_link_within_the_cache_is_followed(tmp_path: Path) -> None:
    """The Hugging Face cache keeps its files under blobs/."""
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    write_shard(repository / "blobs" / "beef", {"a": entry("U8", [1], 0, 1)}, 1)
    (snapshot / NAME).symlink_to("../../blobs/beef")

    assert isinstance(read_headers(snapshot, [NAME]), Headers)


@pytest.mark.parametrize("folder", ["models--a--b/snapshots/0123", "plain"])
def test_a_link_out_of_the_repository_is_unknown(tmp_path: Path, folder: str) -> None:
    """What lies elsewhere is no part of the model."""
    (tmp_path / folder).mkdir(parents=True)
    write_shard(tmp_path / "elsewhere", {"a": entry("U8", [1], 0, 1)}, 1)
    (tmp_path / folder / NAME).symlink_to(tmp_path / "elsewhere")

    assert "link out of the model's folder" in reason(read_headers(tmp_path / folder, [NAME]))


def test_a_link_to_itself_is_unknown(tmp_path: Path) -> None:
    """Loops end."""
    (tmp_path / NAME).symlink_to(NAME)

    assert isinstance(read_headers(tmp_path, [NAME]), Unknown)


def test_a_folder_that_is_a_link_is_the_folder_it_points_to(tmp_path: Path) -> None:
    """Model folders are often links to a data disk."""
    (tmp_path / "disk").mkdir()
    write_shard(tmp_path / "disk" / NAME, {"a": entry("U8", [1], 0, 1)}, 1)
    (tmp_path / "model").symlink_to("disk")

    assert isinstance(read_headers(tmp_path / "model", [NAME]), Headers)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["BF16", "F32", "U8", "X"]) | JSON,
        "shape": st.lists(st.integers(-1, 9), max_size=3) | JSON,
        "data_offsets": st.tuples(st.integers(-1, 99), st.integers(-1, 99)).map(list) | JSON,
    },
)


def read_fuzzed(raw: bytes) -> Headers | Unknown:
    """A file made of these bytes alone."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / NAME).write_bytes(raw)
        return read_headers(Path(folder), [NAME])


@UNHURRIED
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_unknown(raw: bytes) -> None:
    """No crash on what is no safetensors file."""
    assert isinstance(read_fuzzed(raw), Headers | Unknown)


@UNHURRIED
@given(st.dictionaries(st.text(max_size=8), ENTRIES | JSON, max_size=4), st.integers(0, 64))
def test_what_is_read_lies_within_the_file(header: dict[str, Any], data_bytes: int) -> None:
    """Whatever the header says, the tensors are no larger than the data that is there."""
    raw = json.dumps(header).encode()
    found = read_fuzzed(len(raw).to_bytes(8, "little") + raw + bytes(data_bytes))

    assert isinstance(found, Unknown) or found.size_bytes <= data_bytes
