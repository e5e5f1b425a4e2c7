"""vLLM's processes by what they are called, and its servers by how they are started."""

from __future__ import annotations

import pytest

from vllm_guard.host.titles import is_engine, is_vllm, server_name


@pytest.mark.parametrize(
    ("argv", "vllm", "engine"),
    [
        pytest.param(["VLLM::EngineCore"], True, True, id="an engine"),
        pytest.param(["VLLM::Worker_TP0"], True, True, id="a worker"),
        pytest.param(["VLLM::APIServer_0"], True, False, id="an API server"),
        pytest.param(["EngineCore_DP0"], True, True, id="an engine of data parallelism"),
        pytest.param(["VllmWorkerProcess"], True, True, id="a worker of older releases"),
        pytest.param(["prod-7::EngineCore"], True, True, id="an engine under another prefix"),
        pytest.param(["prod-7::EngineCore_DP3"], True, True, id="a data parallel engine under another prefix"),
        pytest.param(["prod-7::Worker_DP0_TP1_EP1"], True, True, id="a worker under another prefix"),
        pytest.param(["prod-7::APIServer_1"], True, False, id="an API server under another prefix"),
        pytest.param(["/opt/venv/bin/python", "/opt/venv/bin/vllm", "serve", "m"], True, False, id="vllm serve behind python"),
        pytest.param(["vllm", "serve", "m"], True, False, id="vllm serve"),
        pytest.param(["python3", "-u", "-m", "vllm.entrypoints.openai.api_server"], True, False, id="the module of the server"),
        pytest.param(["vllm", "collect-env"], False, False, id="another command of vllm"),
        pytest.param(["python", "train.py", "--model", "vllm"], False, False, id="a word in an argument"),
        pytest.param(["cat", "VLLM::EngineCore"], False, False, id="a title as an argument"),
        pytest.param(["vllm"], False, False, id="the bare word"),
        pytest.param(["app::Worker"], False, False, id="a worker of something else"),
        pytest.param(["app::EngineCoreCache"], False, False, id="a name that begins like an engine's"),
        pytest.param(["ray::EngineCore"], False, False, id="an actor of Ray"),
        pytest.param([], False, False, id="nothing"),
    ],
)
def test_a_vllm_process_is_known_by_title_or_command(argv: list[str], *, vllm: bool, engine: bool) -> None:
    """What vLLM calls its processes, and how servers are started."""
    assert (vllm, engine) == (is_vllm("python", argv), is_engine("python", argv))


def test_a_title_cut_by_the_kernel_is_known() -> None:
    """Where the command line is hidden only 15 characters of the title are left."""
    assert [True, True, False] == [is_engine(name, []) for name in ("VLLM::EngineCor", "VLLM::Worker_TP", "VLLM::APIServer")]


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        pytest.param(["/v/python", "/v/bin/vllm", "serve", "Qwen/Qwen3-8B", "--port", "1"], "vllm serve Qwen/Qwen3-8B", id="the model first"),
        pytest.param(["vllm", "serve", "--port", "1", "--model", "Qwen/Qwen3-8B"], "vllm serve Qwen/Qwen3-8B", id="the model by name"),
        pytest.param(["vllm", "serve", "--model=Qwen/Qwen3-8B"], "vllm serve Qwen/Qwen3-8B", id="the model inline"),
        pytest.param(["vllm", "serve", "--model"], "vllm serve", id="an option without its value"),
        pytest.param(["vllm", "serve", "--api-key", "sesame", "m"], "vllm serve", id="no word that may be a secret"),
        pytest.param(["vllm", "serve", "s3://key:sesame@host/m"], "vllm serve s3://***@host/m", id="a masked model"),
        pytest.param(["vllm", "serve", "a\x1b[31m\nb"], "vllm serve a b", id="a model that moves a cursor"),
        pytest.param(
            ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], "vllm.entrypoints.openai.api_server m", id="the module of the server"
        ),
        pytest.param(["python3", "-m", "vllm.entrypoints.cli.main", "serve", "m"], "vllm serve m", id="the module of the command"),
        pytest.param(["python", "batch.py"], None, id="a script"),
        pytest.param([], None, id="nothing"),
    ],
)
def test_a_server_is_named_by_what_it_serves(argv: list[str], name: str | None) -> None:
    """No word of its command line but the model."""
    assert name == server_name(argv)
