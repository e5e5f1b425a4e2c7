"""What stands behind `vllm-guard serve` in a container: the model, a whole command, or what an older image took."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from guard_process import AT_ONCE, Call, Ended, Host, rows

from vllm_guard.command.entrypoint import behind_entrypoint, model_first
from vllm_guard.release import Release

MODULE = "python3 -m vllm.entrypoints.openai.api_server"

# Words behind the entrypoint, and what is left of them.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("serve m --port 1", "m --port 1"),
    "serve with the model as an option": ("serve --port 1 --model m", "--port 1 --model m"),
    "serve with the model as one word": ("serve --model=m", "--model=m"),
    "vllm serve": ("vllm serve m --port 1", "m --port 1"),
    "vllm serve by its path": ("/usr/local/bin/vllm serve --model m", "--model m"),
    "the server's module": (f"{MODULE} --model m --port 1", "--model m --port 1"),
    "the server's module by its interpreter's path": (f"/usr/bin/{MODULE} --model m", "--model m"),
}
# Words that mean something to vLLM as they are, or that it answers better.
AS_THEY_ARE = (
    "m --port 1",
    "--model m",
    "--port 1 --model m",
    "serve",
    "serve --port 1",
    "serve --help",
    "vllm",
    "vllm --port 1",
    "models/vllm --served-model-name serve",
    "python3 --port 1",
    "m -m vllm.entrypoints.openai.api_server",
    "vllm bench latency",
    "serve --model --no-enforce-eager",
    "serve --model --tokenizer vllm",
    "serve --model --model=m",
    "serve --model --",
    "",
)


@pytest.mark.parametrize(("words", "left"), rows(COMMANDS))
def test_a_command_behind_the_entrypoint_is_taken_off(words: str, left: str) -> None:
    """What is left stands behind `serve`."""
    assert left.split() == behind_entrypoint(words.split())


@pytest.mark.parametrize("words", AS_THEY_ARE)
def test_everything_else_stays(words: str) -> None:
    """A model may be called serve, vllm or python3."""
    assert words.split() == behind_entrypoint(words.split())


@pytest.mark.slow
def test_the_real_parser_takes_what_is_left_and_nothing_that_was_changed(vllm_python: Path) -> None:
    """So no command line that works means something else."""
    asked = [words.split() for pair in COMMANDS.values() for words in pair]
    oracle = [str(vllm_python), str(Path(__file__).with_name("real_parser_oracle.py"))]
    lines = "".join(json.dumps(words) + "\n" for words in asked)
    done = subprocess.run(oracle, input=lines, check=True, capture_output=True, text=True, timeout=300)
    answers = [json.loads(line) for line in done.stdout.splitlines()[1:]]

    assert ["rejected", "set"] * len(COMMANDS) == [next(iter(answer)) for answer in answers]
    assert {"m"} == {answer["set"]["model_tag"] for answer in answers[1::2]}


BY_RELEASE = {
    "0.10.2 stops at --model": (Release(0, 10, 2), "--port 1 --model m --seed 2", "m --port 1 --seed 2"),
    "0.10.2 takes --model=": (Release(0, 10, 2), "--model=m", "--model=m"),
    "0.6.3 takes the model only in front": (Release(0, 6, 3), "--port 1 --model=m", "m --port 1"),
    "0.11.2 moves it itself": (Release(0, 11, 2), "--model m", "--model m"),
    "an unknown release": (None, "--model m", "--model m"),
    "a model is there already": (Release(0, 10, 2), "m --model m2", "m --model m2"),
    "nothing behind --model": (Release(0, 10, 2), "--model", "--model"),
    "no model": (Release(0, 10, 2), "--port 1", "--port 1"),
}


@pytest.mark.parametrize(("release", "words", "moved"), rows(BY_RELEASE))
def test_the_model_moves_to_the_front_where_only_that_works(release: Release | None, words: str, moved: str) -> None:
    """Older images took `--model`, their `vllm serve` did not."""
    assert moved.split() == model_first(words.split(), release)


def serving(words: str, version: str, **environ: str) -> Call:
    """A launch on an idle card of what was written behind the image's name."""
    return Call(("serve", *words.split()), {"VLLM_GUARD_LOG_FORMAT": "console", **AT_ONCE, **environ}, version=version)


LAUNCHES = {
    "a command": (serving("serve m", "0.32.0"), "serve m", False),
    "a command, mode off": (serving("serve m", "0.32.0", VLLM_GUARD_MODE="off"), "serve m", False),
    "a command, observed": (serving("vllm serve m", "0.32.0", VLLM_GUARD_MODE="observe"), "serve m", False),
    "--model": (serving("--model m", "0.32.0"), "serve --model m", False),
    "--model of an older release": (serving("--model m", "0.9.2"), "serve m", True),
    "--model of an older release, mode off": (serving("--model m", "0.9.2", VLLM_GUARD_MODE="off"), "serve m", False),
    "--model of an older release, observed": (serving("--model m", "0.9.2", VLLM_GUARD_MODE="observe"), "serve m", True),
    "the module of an older release": (serving(f"{MODULE} --model m", "0.9.2"), "serve m", True),
}


@pytest.mark.parametrize(("call", "reached", "said"), rows(LAUNCHES))
def test_every_form_reaches_vllm(ended: Ended, reached: str, said: bool) -> None:  # noqa: FBT001 - a column
    """With the guard off or observing too; that the model was moved is said."""
    assert reached == os.fsdecode(b" ".join(ended.reached))
    assert said == ("takes the model as the first word after serve: --model was moved there" in ended.stderr)


def test_a_settings_file_that_says_off_changes_nothing_of_it(host: Host) -> None:
    """It is read later than flag and environment."""
    (host.folder / "off.toml").write_text('mode = "off"\n')
    ended = host.run("serve", "serve", "m", environ={"VLLM_GUARD_CONFIG": str(host.folder / "off.toml")})

    assert (b"serve", b"m") == ended.reached
