"""What `explain` advises, tried on the real vLLM 0.32.0 for CPUs: the command fails, its log gives the first fix, the command with that fix serves."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from real.failures import FAILURES, Failure, write_models
from real.fake_memory import write_meminfo
from real.server import Server, free_port
from real.world import GUARD, World

pytestmark = pytest.mark.slow

TRIED = [
    pytest.param("gate1_small_node", "gate_free_memory", "lower_utilization", id="a fraction above the free memory"),
    pytest.param("kv_bytes_small_node", "oom_at_kv_allocation", "lower_kv_bytes", id="KV bytes above the free memory"),
    pytest.param("gate3_16m", "gate_one_sequence", "lower_model_len", id="a length that the pool cannot hold"),
    pytest.param("batch_below_length", "batched_tokens_below_model_len", "raise_batched_tokens", id="a batch below the length"),
    pytest.param("length_above_config", "invalid_value", "lower_model_len", id="a length above the model's"),
    pytest.param("port_in_use", "port_in_use", "fix_port", id="a port that somebody listens on"),
]


@pytest.fixture(name="models", scope="module")
def _models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


def served(world: World, failure: Failure, models: Path, port: int) -> AbstractContextManager[Server]:
    """The command of this case, on its node and in its environment, on a port."""
    write_meminfo(world.meminfo, total_mib=failure.total_mib, free_mib=failure.free_mib)
    of_case = replace(world, environment={**world.environment, **failure.environment})
    words = ("serve", str(models / failure.model), "--enforce-eager", "--host", "127.0.0.1", *failure.options, "--port", str(port))
    return of_case.launched(str(world.vllm), *words, port=port)


def explained(log: Path) -> dict[str, Any]:
    """The document of `vllm-guard explain`."""
    done = subprocess.run([GUARD, "explain", log, "--guard-json"], check=True, capture_output=True, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def mended(failure: Failure, fix: Mapping[str, str | None]) -> Failure:
    """The command with the flag at the value of the fix, which is all that is known of it here."""
    flag, value = fix["flag"], fix["value"]
    assert flag is not None
    assert value is not None
    if not flag.startswith("--"):
        return replace(failure, environment={**failure.environment, flag: value})
    options = list(failure.options)
    if flag in options:
        at = options.index(flag)
        del options[at : at + 2]
    return replace(failure, options=(*options, flag, value))


@pytest.mark.parametrize(("name", "cause", "action"), TRIED)
def test_the_first_fix_starts(world: World, models: Path, name: str, cause: str, action: str) -> None:
    """With the flag and the value from the JSON; of a port only the flag is known, and any free one will do."""
    failure, port = FAILURES[name], free_port()
    with ExitStack() as others:
        if name == "port_in_use":
            listener = others.enter_context(socket.socket())
            listener.bind(("127.0.0.1", port))
            listener.listen()
        with served(world, failure, models, port) as server:
            assert server.wait_until_ended() == 1
        document = explained(server.log)
        fix = document["fixes"][0]
        assert (cause, "certain", action) == (document["cause"], document["confidence"], fix["action"])
        if fix["flag"] == "--port":
            port = free_port()
        else:
            failure = mended(failure, fix)
        with served(world, failure, models, port) as server:
            server.wait_until_ready()
            assert server.terminate() == 0
