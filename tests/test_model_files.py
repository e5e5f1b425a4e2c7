"""Model folders and the Hugging Face cache, read as hostile data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.config import derived_max_model_len, read_traits
from vllm_guard.model.files import read_model
from vllm_guard.release import Release

CONFIG = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}


def folder_with(folder: Path, **files: object) -> Path:
    """A model folder; JSON values are dumped, numbers are sizes of sparse files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, value in files.items():
        path = folder / name.replace("__", ".").replace("_", "-")
        if isinstance(value, int):
            with path.open("wb") as file:
                file.truncate(value)
        else:
            path.write_text(json.dumps(value))
    return folder


def read(model: Path | str, **environ: str) -> Checkpoint | UnknownCheckpoint:
    """Without revision and download folder."""
    return read_model(str(model), None, None, environ)


def weights(found: Checkpoint | UnknownCheckpoint) -> int | None:
    """The bytes of a readable folder."""
    assert isinstance(found, Checkpoint), found
    return found.weight_files_bytes


INDEX = {"metadata": {"total_size": 1000}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}}


def write_index(folder: Path, index: object) -> None:
    """The index of a sharded checkpoint."""
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_the_index_says_how_large_the_weights_are(tmp_path: Path) -> None:
    """metadata.total_size, where the shards are not there yet."""
    write_index(folder_with(tmp_path), INDEX)

    assert weights(read(tmp_path)) == 1000


def test_shards_on_disk_count_once_each_and_the_smaller_figure_wins(tmp_path: Path) -> None:
    """A lower bound is taken from the smaller of both."""
    write_index(folder_with(tmp_path), INDEX)
    for name in ("one.safetensors", "two.safetensors", "unrelated.safetensors"):
        (tmp_path / name).write_bytes(b"x" * 400)

    assert weights(read(tmp_path)) == 800


def test_a_single_file_counts_without_an_index(tmp_path: Path) -> None:
    """model.safetensors."""
    folder_with(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 77)

    assert weights(read(tmp_path)) == 77


@pytest.mark.parametrize(
    "index",
    [
        pytest.param({"metadata": {"total_size": -5}, "weight_map": {}}, id="a negative total"),
        pytest.param({"metadata": {"total_size": True}, "weight_map": []}, id="a total that is no number"),
        pytest.param({"metadata": [], "weight_map": {"a": "../../etc/shadow"}}, id="a shard outside the folder"),
        pytest.param({"weight_map": {"a": "missing.safetensors"}}, id="a shard that is not there"),
        pytest.param([], id="no object"),
    ],
)
def test_an_index_that_says_nothing_is_unknown_with_a_reason(tmp_path: Path, index: object) -> None:
    """Unknown is not 0."""
    write_index(folder_with(tmp_path), index)
    found = read(tmp_path)

    assert isinstance(found, Checkpoint)
    assert found.weight_files_bytes is None
    assert found.weights_unknown_because


def test_the_hugging_face_cache_is_found_by_its_path_rule(tmp_path: Path) -> None:
    """models--org--name/refs/main names the snapshot; its files are links to blobs."""
    repository = tmp_path / "hub" / "models--org--name"
    blob = repository / "blobs" / "abc"
    blob.parent.mkdir(parents=True)
    blob.write_text(json.dumps(CONFIG))
    snapshot = repository / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to(blob)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")

    assert isinstance(read("org/name", HF_HOME=str(tmp_path)), Checkpoint)
    assert isinstance(read("org/name", HF_HUB_CACHE=str(tmp_path / "hub")), Checkpoint)
    assert isinstance(read_model("org/name", "c0ffee", str(tmp_path / "hub"), {}), Checkpoint)


@pytest.mark.parametrize("model", ["org/absent", "/no/such/folder", "a/b/c", "s3://bucket/model", "", "x" * 5000, "nul\0byte", "../..", "org/.."])
def test_a_model_that_is_not_here_is_unknown(tmp_path: Path, model: str) -> None:
    """With a reason, and without a network request."""
    found = read_model(model, "../../x", None, {"HF_HOME": str(tmp_path)})

    assert isinstance(found, UnknownCheckpoint)
    assert found.because


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(5 << 20)


def _deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def _not_an_object(path: Path) -> None:
    path.write_text("[1]")


def _bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize("make", [_pipe, _huge, _deep, _not_an_object, _bytes, Path.mkdir])
def test_a_hostile_config_is_unknown_and_never_hangs(tmp_path: Path, make: Any) -> None:
    """Files of a model folder are anybody's data."""
    make(tmp_path / "config.json")

    assert isinstance(read(tmp_path), UnknownCheckpoint)


@pytest.mark.parametrize(
    ("config", "release", "expected"),
    [
        pytest.param({"max_position_embeddings": 4096, "seq_length": 2048}, None, 2048, id="the smallest key counts"),
        pytest.param({}, None, None, id="none of the keys and no kind whose default is known"),
        pytest.param({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, None, 131_072, id="the default of the text part's class"),
        pytest.param({"model_type": "mamba"}, None, 2048, id="a kind without any length"),
        pytest.param({"model_type": "llama", "max_seq_len": 4096}, None, 2048, id="the class's default counts beside another key"),
        pytest.param({"model_type": "gpt_neox", "seq_length": 1024}, None, None, id="beside that of an unfamiliar kind's class"),
        pytest.param({"model_type": "chatglm", "seq_length": 8192}, None, 8192, id="a kind's own key"),
        pytest.param({"model_type": "gpt2", "n_positions": 1024}, None, 1024, id="the other name of the usual key"),
        pytest.param({"model_type": "mamba", "max_seq_len": 4096}, None, 4096, id="a kind without a length that says one"),
        pytest.param({"max_position_embeddings": 4096, "seq_length": 2048, "model_max_length": 8192}, None, 8192, id="model_max_length beats all"),
        pytest.param({"max_position_embeddings": 512, "text_config": {"max_position_embeddings": 1024}}, None, 1024, id="beside text_config nothing counts"),
        pytest.param({"thinker_config": {"text_config": {"max_position_embeddings": 1024}}}, None, 1024, id="inside a thinker's text_config"),
        pytest.param({"model_type": "embedding_gemma2", "max_position_embeddings": 262_144}, None, None, id="a length that vLLM lowers later"),
        pytest.param(
            {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "default", "factor": 4.0}}, None, 16_384, id="a default rope with a factor"
        ),
        pytest.param({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": None}}, None, 4096, id="a factor of null is 1"),
        pytest.param(
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}, "sliding_attention": {"rope_type": "default"}},
            },
            None,
            32_768,
            id="a rope for each kind of layer",
        ),
        pytest.param(
            {"max_position_embeddings": 131_072, "original_max_position_embeddings": 4096, "rope_scaling": {"type": "su"}}, None, 4096, id="su is longrope"
        ),
        pytest.param({"max_position_embeddings": 131_072, "rope_scaling": {"type": "longrope"}}, None, 131_072, id="longrope without the original length"),
        pytest.param(
            {"model_type": "phi3", "max_position_embeddings": 131_072, "rope_scaling": {"type": "longrope"}}, None, None, id="whose class may have one"
        ),
        pytest.param({"text_config": {"max_position_embeddings": 1024}}, None, 1024, id="inside text_config"),
        pytest.param({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}, None, 16_384, id="linear rope is multiplied"),
        pytest.param({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, None, 4096, id="llama3 is not"),
        pytest.param(
            {"max_position_embeddings": 32_768, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}},
            Release(0, 28, 0),
            131_072,
            id="yarn before 0.30",
        ),
        pytest.param(
            {"max_position_embeddings": 131_072, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}},
            Release(0, 30, 0),
            131_072,
            id="yarn is taken as scaled from 0.30",
        ),
        pytest.param(
            {"max_position_embeddings": 131_072, "original_max_position_embeddings": 4096, "rope_scaling": {"rope_type": "longrope"}}, None, 4096, id="longrope"
        ),
        pytest.param({"max_position_embeddings": 131_072, "model_type": "gemma3", "rope_scaling": {"factor": 8}}, None, 131_072, id="gemma3"),
        pytest.param({"max_position_embeddings": True, "n_positions": "many", "seq_len": 1e400}, None, None, id="no numbers"),
    ],
)
def test_the_length_is_derived_as_vllm_derives_it(config: dict[str, Any], release: Release | None, expected: int | None) -> None:
    """Without a given length."""
    assert expected == derived_max_model_len(config, release)


def test_a_further_limit_is_scaled_like_the_configs_own() -> None:
    """The tokenizer's limit comes before the rope's factor."""
    assert derived_max_model_len({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, None, 1024) == 2048


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
config_keys = st.sampled_from(
    (
        "architectures",
        "model_type",
        "text_config",
        "vocab_size",
        "hidden_size",
        "rope_scaling",
        "rope_parameters",
        "max_position_embeddings",
        "quantization_config",
        "torch_dtype",
    )
)


@given(st.dictionaries(config_keys | st.text(max_size=5), json_values))
def test_any_config_has_traits(config: dict[str, Any]) -> None:
    """Whatever a config holds, it is read without a crash."""
    traits = read_traits(config, None)

    assert traits.vocab_size is None or traits.vocab_size > 0
