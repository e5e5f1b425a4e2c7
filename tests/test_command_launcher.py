"""What a command line would start: the part in front, the way in, and vLLM's own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard.command.launcher import FOREIGN, NO_ENGINE, SERVE, Entry, split_launcher
from vllm_guard.command.parse import parse
from vllm_guard.command.rewrite import rewrite
from vllm_guard.release import Release

MODULE = Entry("module", "api_server")
ENGINE = Entry("engine", "other")
OFFLINE = Entry("engine", "llm_class")
ASYNC = Entry("engine", "api_server")
API_SERVER = "vllm.entrypoints.openai.api_server"
NEW = Release(0, 32)


@pytest.mark.parametrize(
    ("line", "entry", "arguments"),
    [
        pytest.param("vllm serve m --port 1", SERVE, "m --port 1", id="vllm serve"),
        pytest.param("/opt/v/bin/vllm serve m", SERVE, "m", id="vllm by its path"),
        pytest.param("python3.11 /opt/v/bin/vllm serve m", SERVE, "m", id="vllm's script given to an interpreter"),
        pytest.param("sudo -u vllm vllm serve m", SERVE, "m", id="a user who is called vllm"),
        pytest.param("env A=b nice -n 5 numactl -N 0 vllm serve m", SERVE, "m", id="wrappers in front"),
        pytest.param("uv run --with x vllm serve m", SERVE, "m", id="uv run"),
        pytest.param("exec vllm serve m -- x", SERVE, "m -- x", id="exec"),
        pytest.param("sh -c exec\\ $@ sh vllm serve m", SERVE, "m", id="the words behind a shell's text"),
        pytest.param("python -m vllm.entrypoints.cli.main serve m", SERVE, "m", id="the CLI as a module"),
        pytest.param("python -m vllm.scripts serve m", SERVE, "m", id="the CLI of 0.6"),
        pytest.param(f"python3 -m {API_SERVER} --model m", MODULE, "--model m", id="the server as a module, the old entrypoint of the image"),
        pytest.param(f"python -X dev -u -m {API_SERVER} --model m", MODULE, "--model m", id="options of the interpreter"),
        pytest.param(f"python -um {API_SERVER} --model m", MODULE, "--model m", id="options in one word"),
        pytest.param(f"python -m{API_SERVER}", MODULE, "", id="the module in the word of its option"),
        pytest.param("python -m vllm.entrypoints.api_server --model m", ENGINE, "--model m", id="the server before the OpenAI one"),
        pytest.param("vllm run-batch -i a -o b --model m", ENGINE, "-i a -o b --model m", id="run-batch"),
        pytest.param("python -m vllm.entrypoints.openai.run_batch -i a", ENGINE, "-i a", id="run_batch as a module"),
        pytest.param("vllm bench latency --model m", OFFLINE, "--model m", id="bench latency"),
        pytest.param("vllm bench startup", OFFLINE, "", id="bench startup"),
        pytest.param("python -m vllm.entrypoints.cli.main bench throughput --backend vllm", OFFLINE, "--backend vllm", id="bench throughput"),
        pytest.param("vllm bench throughput --async-engine", ASYNC, "--async-engine", id="the asynchronous engine has the server's defaults"),
        pytest.param("vllm bench throughput --backend hf", NO_ENGINE, "--backend hf", id="a benchmark of something else"),
        pytest.param("vllm bench throughput --backend=mii", NO_ENGINE, "--backend=mii", id="a benchmark of something else, with an equals sign"),
        pytest.param("vllm bench serve --backend vllm", NO_ENGINE, "--backend vllm", id="a benchmark's client"),
        pytest.param("vllm bench", NO_ENGINE, "", id="bench alone"),
        pytest.param("vllm", NO_ENGINE, "", id="vllm alone"),
        pytest.param("vllm --version", NO_ENGINE, "", id="a question"),
        pytest.param("vllm chat --url u", NO_ENGINE, "--url u", id="a client"),
        pytest.param("vllm launch render m", NO_ENGINE, "render m", id="a renderer"),
        pytest.param("vllm something-new x", NO_ENGINE, "x", id="a subcommand that came later"),
        pytest.param("python -m vllm.entrypoints.cli.main", NO_ENGINE, "", id="the CLI as a module, alone"),
        pytest.param("ssh host vllm serve m", NO_ENGINE, "m", id="vllm on another host"),
        pytest.param("kubectl exec pod -- vllm serve m", NO_ENGINE, "m", id="vllm in a pod"),
        pytest.param("sudo docker run vllm/vllm-openai --model m", NO_ENGINE, "", id="vllm in a container"),
        pytest.param("python serve.py --gpu-memory-utilization 0.5", FOREIGN, "serve.py --gpu-memory-utilization 0.5", id="another program"),
        pytest.param("torchrun --nproc 2 -- serve.py --model m", FOREIGN, "serve.py --model m", id="another program behind a double dash"),
        pytest.param("python -m mine", FOREIGN, "-m mine", id="another module"),
        pytest.param("python -m", FOREIGN, "-m", id="no module"),
        pytest.param("-m vllm.scripts serve", FOREIGN, "vllm.scripts serve", id="no interpreter"),
    ],
)
def test_a_launcher_is_taken_apart(line: str, entry: Entry, arguments: str) -> None:
    """Which way in it is, and where vLLM's words begin."""
    words = line.replace("\\ ", "\0").split()
    launcher = split_launcher([word.replace("\0", " ") for word in words])

    assert entry == launcher.entry
    assert tuple(arguments.split()) == launcher.arguments


@given(
    st.lists(
        st.sampled_from(["vllm", "serve", "bench", "latency", "-m", API_SERVER, "python", "env", "A=b", "-i", "--", "x", "", "ssh", "--model"]), min_size=1
    )
)
def test_no_word_is_lost(words: list[str]) -> None:
    """Prefix and arguments are the words, and the program is one of the prefix."""
    launcher = split_launcher(words)

    assert tuple(words) == (*launcher.prefix, *launcher.arguments)
    assert launcher.program is None or launcher.prefix[launcher.program] == words[launcher.program]


@pytest.mark.parametrize(
    ("line", "environment", "warned"),
    [
        pytest.param("env CUDA_VISIBLE_DEVICES=1 A= vllm serve m", {"CUDA_VISIBLE_DEVICES": "1", "A": ""}, [], id="assignments"),
        pytest.param("nice /usr/bin/env A=b nice vllm serve m", {"A": "b"}, [], id="between other wrappers"),
        pytest.param("env A=1 env A=2 vllm serve m", {"A": "2"}, [], id="the last counts"),
        pytest.param("env -u A vllm serve m", {}, ["environment_unseen"], id="an option of env"),
        pytest.param("sudo -E vllm serve m", {}, ["environment_unseen"], id="sudo has rules of its own"),
        pytest.param("vllm serve A=b", {}, [], id="what stands behind is no assignment"),
        pytest.param("env -i vllm chat", {}, [], id="nothing is said where nothing is judged"),
        pytest.param("ssh host env A=b vllm serve m", {"A": "b"}, ["launcher_elsewhere"], id="elsewhere"),
    ],
)
def test_the_environment_in_front_is_seen(line: str, environment: dict[str, str], warned: list[str]) -> None:
    """`env A=b` decides about devices too; where something else may, that is said."""
    launcher = split_launcher(line.split())

    assert environment == dict(launcher.environment)
    assert warned == [warning.code for warning in launcher.warnings]


@pytest.mark.parametrize(
    ("line", "program", "finds_own_vllm"),
    [
        pytest.param("nice vllm serve m", "vllm", False, id="the script"),
        pytest.param("nice python3 -u -m vllm.scripts serve m", "python3", False, id="the interpreter"),
        pytest.param("accelerate launch -m vllm.scripts serve m", "launch", False, id="something in the interpreter's place"),
        pytest.param("uv run vllm serve m", "vllm", True, id="looked up by something in front"),
        pytest.param("uv run /opt/vllm serve m", "/opt/vllm", False, id="looked up by nobody"),
    ],
)
def test_the_program_is_named(line: str, program: str, *, finds_own_vllm: bool) -> None:
    """Near it the release is read."""
    launcher = split_launcher(line.split())

    assert launcher.program is not None
    assert (program, finds_own_vllm) == (launcher.prefix[launcher.program], launcher.finds_own_vllm)


@pytest.mark.parametrize("release", [Release(0, 6, 3), Release(0, 10, 2), NEW])
def test_the_module_takes_its_model_as_an_option(release: Release) -> None:
    """On every release, also where `vllm serve --model` is an error; a word without an option is nobody's model there."""
    command = parse(["--port", "1", "--model", "m", "--served-model-name", "n"], release, entry=MODULE)

    assert ("m", None, ()) == (command.model, command.rejection, command.warnings)
    assert parse(["m"], release, entry=MODULE).model is None


@pytest.mark.parametrize(
    ("words", "dest", "value"),
    [
        pytest.param("--n 1 --model m", "model", "m", id="--n is no abbreviation"),
        pytest.param("--profile --max-model-len 5", "max_model_len", 5, id="--profile is no abbreviation and takes no value"),
        pytest.param("-i a -o b --max-model-len 5", "max_model_len", 5, id="options of its own"),
        pytest.param("--input-len 8 --gpu-mem 0.5", "gpu_memory_utilization", 0.5, id="an abbreviation of an engine's option"),
    ],
)
def test_an_engines_words_are_read(words: str, dest: str, value: object) -> None:
    """Beside options of its own that the guard has no table of, and without a word about those."""
    command = parse(words.split(), NEW, entry=OFFLINE)

    assert value == command.given[dest].value
    assert (None, ()) == (command.rejection, command.warnings)


def test_a_foreign_programs_words_count_by_their_whole_names_only() -> None:
    """`-n 3` and `--gpu 0.5` are its own business, `-tp 2` is not; nothing of it is wrong."""
    command = parse(["serve.py", "-n", "3", "--gpu", "0.5", "-tp", "2", "--max_model_len=x", "--config", "c", "y", "z"], NEW, entry=FOREIGN)

    assert {"tensor_parallel_size": 2} == {dest: given.value for dest, given in command.given.items()}
    assert (None, ()) == (command.rejection, command.warnings)
    words = ("a", "--gpu", "0.9", "--gpu_memory_utilization=0.9", "b")
    assert ("a", "--gpu", "0.9", "--gpu_memory_utilization=0.5", "b") == rewrite(words, {"gpu_memory_utilization": "0.5"}, NEW, "foreign")
