"""What is read of a command's models before any memory is."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import LLAMA_CONFIG, model_folder

from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.subject import Vllm, read_subject, serving

VLLM = Vllm(("vllm",), None, "0.32.0", "cuda")


def read(folder: Path, *argv: str) -> Checkpoint | UnknownCheckpoint:
    """The models of `vllm serve FOLDER/m ARGV`."""
    return read_subject(serving(VLLM, (str(folder / "m"), *argv)), VLLM, {"HF_HOME": str(folder)}).checkpoint


def test_the_draft_model_is_read_beside_the_model(tmp_path: Path) -> None:
    """From a folder of its own."""
    model_folder(tmp_path / "m")
    draft = model_folder(tmp_path / "d", {**LLAMA_CONFIG, "num_hidden_layers": 1})
    model = read(tmp_path, "--spec-model", str(draft), "--spec-tokens", "2")

    assert isinstance(model, Checkpoint)
    assert isinstance(model.draft, Checkpoint)
    assert (str(draft), 1) == (model.draft.folder, model.draft.config["num_hidden_layers"])


def test_a_draft_model_that_is_not_there_stops_nothing(tmp_path: Path) -> None:
    """It is unknown, with the reason."""
    model_folder(tmp_path / "m")
    model = read(tmp_path, "--spec-model", "some/draft", "--spec-tokens", "2")

    assert isinstance(model, Checkpoint)
    assert model.draft == UnknownCheckpoint("'some/draft' is not on this disk yet", absent=True)


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param((), id="nothing is speculated"),
        pytest.param(("--spec-method", "ngram", "--spec-tokens", "2"), id="n-grams have no model"),
        pytest.param(("--spec-method", "mtp", "--spec-tokens", "2"), id="the further layer is the model's own"),
        pytest.param(("--speculative-config", "[]"), id="what is asked for is not understood"),
    ],
)
def test_without_a_draft_model_none_is_read(tmp_path: Path, argv: tuple[str, ...]) -> None:
    """One folder only."""
    model_folder(tmp_path / "m")
    model = read(tmp_path, *argv)

    assert isinstance(model, Checkpoint)
    assert model.draft is None


def test_without_the_model_its_draft_does_not_matter(tmp_path: Path) -> None:
    """Nothing could be told from it."""
    assert isinstance(read(tmp_path, "--spec-model", str(model_folder(tmp_path / "d")), "--spec-tokens", "2"), UnknownCheckpoint)
