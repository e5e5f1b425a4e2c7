"""Ways in which the real vLLM 0.32.0 for CPUs fails to start or ends, and some in which it works: each a command line in a world of its own."""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from real.server import Server
from real.tiny_model import CONFIG, render_safetensors, write_folder

_SHORT: Final = ("--max-model-len", "256")
_POOL: Final = ("--kv-cache-memory-bytes", "64M")
_HUB_NAME: Final = "example/tiny"


@dataclass(frozen=True, slots=True)
class Failure:
    """`vllm serve MODEL OPTIONS` on a node of this memory; `then` is what is done to the started server, which is otherwise left to end by itself."""

    options: tuple[str, ...] = ()
    model: str = "tiny"
    total_mib: int = 8192
    free_mib: int = 6144
    environment: Mapping[str, str] = field(default_factory=dict)
    then: Callable[[Server], None] | None = None


def write_models(folder: Path) -> None:
    """The folders that `Failure.model` names: a whole one, one for 65536 tokens, and the broken ones."""
    weights = render_safetensors()
    header_bytes = struct.unpack("<Q", weights[:8])[0]
    wrong_shape = {**CONFIG, "intermediate_size": 512}
    files: dict[str, tuple[Mapping[str, object], bytes | None]] = {
        "tiny": (CONFIG, weights),
        "tiny64k": ({**CONFIG, "max_position_embeddings": 65536}, weights),
        "truncated": (CONFIG, weights[: len(weights) // 2]),
        "garbage": (CONFIG, b"\xff" * 4096),
        "bad_header": (CONFIG, weights[:8] + b"{" * header_bytes + weights[8 + header_bytes :]),
        "wrong_shape": (wrong_shape, weights),
        "unknown_architecture": ({**CONFIG, "architectures": ["NopeForCausalLM"]}, weights),
        "unknown_model_type": ({**CONFIG, "architectures": ["NopeForCausalLM"], "model_type": "nope"}, weights),
        "no_weights": (CONFIG, None),
        "small_heads": ({**CONFIG, "hidden_size": 64, "head_dim": 16}, None),
        "bad_config": (CONFIG, weights),
    }
    for name, (config, content) in files.items():
        write_folder(folder / name, config)
        if content is not None:
            (folder / name / "model.safetensors").write_bytes(content)
    (folder / "bad_config" / "config.json").write_text(json.dumps(CONFIG)[:-40], encoding="utf-8")
    (folder / "empty").mkdir(exist_ok=True)


def _ready_then_end(server: Server) -> None:
    server.wait_until_ready()
    server.terminate()


def _interrupt_when(text: str, number: signal.Signals) -> Callable[[Server], None]:
    """Sends the signal as soon as `text` is printed; SIGKILL to all after half a minute in which that did not end it."""

    def then(server: Server) -> None:
        server.wait_until_printed(text)
        server.process.send_signal(number)
        _end_within(server, 30)

    return then


def _kill_engine_when_ready(server: Server) -> None:
    server.wait_until_ready()
    _process(server, "VLLM::EngineCore").kill()
    server.wait_until_ended()


def _kill_worker_when_ready(server: Server) -> None:
    server.wait_until_ready()
    _process(server, "VLLM::Worker").kill()
    server.wait_until_ended()


def _kill_worker_while_loading(server: Server) -> None:
    """The worker is a python of its own and gets its title late, so it is known by its parent."""
    server.wait_until_printed("Starting to load model")
    _process(server, "VLLM::Worker").kill()
    server.wait_until_ended()


def _ask(server: Server) -> None:
    server.wait_until_ready()
    model = json.loads(server.request("GET", "/v1/models")[1])["data"][0]["id"]
    server.request("POST", "/v1/completions", {"model": model, "prompt": "hello", "max_tokens": 4})
    server.wait_until_ended()


def _process(server: Server, title: str) -> psutil.Process:
    """The process with this title in the server's session; waits for its title."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in psutil.Process(server.process.pid).children(recursive=True):
            if " ".join(process.cmdline()).startswith(title):
                return process
        time.sleep(0.05)
    msg = f"no {title}"
    raise RuntimeError(msg)


def _end_within(server: Server, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while server.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(server.process.pid, signal.SIGKILL)


FAILURES: Final[dict[str, Failure]] = {
    # -- the first gate, and the pool
    "gate1_default": Failure(_SHORT),
    "gate1_99": Failure((*_SHORT, "--gpu-memory-utilization", "0.99")),
    "gate1_held_by_others": Failure((*_SHORT, "--gpu-memory-utilization", "0.6"), free_mib=1536),
    "gate1_small_node": Failure(_SHORT, total_mib=2048, free_mib=1536),
    "utilization_above_one": Failure((*_SHORT, "--gpu-memory-utilization", "1.2")),
    "utilization_001": Failure((*_SHORT, "--gpu-memory-utilization", "0.01")),
    "kv_bytes_above_free": Failure((*_SHORT, "--kv-cache-memory-bytes", "60G")),
    "kv_bytes_small_node": Failure((*_SHORT, "--kv-cache-memory-bytes", "6G"), total_mib=2048, free_mib=1024),
    "kv_space_above_free": Failure(_SHORT, environment={"VLLM_CPU_KVCACHE_SPACE": "100"}),
    # -- the other gates
    "gate3_1m": Failure(("--kv-cache-memory-bytes", "1M"), "tiny64k"),
    "gate3_16m": Failure(("--kv-cache-memory-bytes", "16M"), "tiny64k"),
    "gate3_override": Failure(("--num-gpu-blocks-override", "16", *_POOL), "tiny64k"),
    "gate2_0": Failure((*_SHORT, "--kv-cache-memory-bytes", "0")),
    "gate2_1": Failure((*_SHORT, "--kv-cache-memory-bytes", "1")),
    # -- the command line
    "batch_below_length": Failure(("--max-model-len", "512", "--max-num-batched-tokens", "256", "--no-enable-chunked-prefill", *_POOL)),
    "batch_below_sequences": Failure((*_SHORT, "--max-num-batched-tokens", "64", "--max-num-seqs", "128", *_POOL)),
    "batch_0": Failure((*_SHORT, "--max-num-batched-tokens", "0", *_POOL)),
    "sequences_0": Failure((*_SHORT, "--max-num-seqs", "0", *_POOL)),
    "unknown_flag": Failure((*_SHORT, "--swap-space", "4", *_POOL)),
    "bad_value": Failure(("--max-model-len", "16kb", *_POOL)),
    "missing_value": Failure((*_POOL, "--max-model-len")),
    "load_format": Failure((*_SHORT, "--load-format", "nosuch", *_POOL)),
    "length_above_config": Failure(("--max-model-len", "4096", *_POOL)),
    "port_in_use": Failure((*_SHORT, *_POOL)),
    "tensor_parallel_3": Failure((*_SHORT, "--tensor-parallel-size", "3", *_POOL)),
    "tensor_parallel_2_one_node": Failure((*_SHORT, "--tensor-parallel-size", "2", *_POOL)),
    # -- the model
    "path_missing": Failure((*_SHORT, *_POOL), "missing"),
    "hub_name_offline": Failure((*_SHORT, *_POOL), _HUB_NAME),
    "empty_folder": Failure((*_SHORT, *_POOL), "empty"),
    "weights_truncated": Failure((*_SHORT, *_POOL), "truncated"),
    "weights_garbage": Failure((*_SHORT, *_POOL), "garbage"),
    "weights_bad_header": Failure((*_SHORT, *_POOL), "bad_header"),
    "weights_wrong_shape": Failure((*_SHORT, *_POOL), "wrong_shape"),
    "config_broken": Failure((*_SHORT, *_POOL), "bad_config"),
    "architecture_unknown": Failure((*_SHORT, *_POOL), "unknown_architecture"),
    "model_type_unknown": Failure((*_SHORT, *_POOL), "unknown_model_type"),
    "no_weights": Failure((*_SHORT, *_POOL), "no_weights"),
    # -- ended from outside
    "worker_killed_loading": Failure((*_SHORT, *_POOL), then=_kill_worker_while_loading),
    "sigterm_early": Failure((*_SHORT, *_POOL), then=_interrupt_when("non-default args", signal.SIGTERM)),
    "sigterm_engine": Failure((*_SHORT, *_POOL), then=_interrupt_when("Initializing a V1 LLM engine", signal.SIGTERM)),
    "sigint_engine": Failure((*_SHORT, *_POOL), then=_interrupt_when("Initializing a V1 LLM engine", signal.SIGINT)),
    "sigint_loading": Failure((*_SHORT, *_POOL), then=_interrupt_when("Starting to load model", signal.SIGINT)),
    # -- starts that worked
    "served_then_sigterm": Failure((*_SHORT, *_POOL), then=_ready_then_end),
    "served_then_engine_killed": Failure((*_SHORT, *_POOL), then=_kill_engine_when_ready),
    "served_then_worker_killed": Failure((*_SHORT, *_POOL), then=_kill_worker_when_ready),
    "first_request_dies": Failure((*_SHORT, "--load-format", "dummy", *_POOL), "small_heads", then=_ask),
}
