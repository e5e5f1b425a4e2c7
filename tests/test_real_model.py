"""What the real vLLM 0.32.0 for CPUs makes of a KV cache of a given size, one block short and with that block: as the guard predicts, to the last token.

Served and asked here: plain attention, tied and untied embeddings, experts, sliding windows, Mamba 2 and short convolutions beside attention, one rank and
two. Not here: Granite 4 (GraniteMoeHybrid), Falcon-H1 and DeepSeek-V2 serve, but the processor decides how large their states and blocks are, so the guard
calls them unknown on a CPU; Jamba and Qwen3-Next start and die at the first request (IndexError; "Unexpected head dim size, 32"). What they keep is in
`test_model_kv_tiny.py`. No line of the CPU build says what the weights take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from real import tiny_family
from real.tiny_model import write_folder
from real.world import World

pytestmark = pytest.mark.slow

PRINTED = re.compile(r"CPU KV cache size: ([\d,]+) tokens, Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
ESTIMATE = re.compile(r"the estimated maximum model length is (\d+)\.")
BLOCKS = re.compile(r'^vllm:cache_config_info\{.*\bnum_gpu_blocks="(\d+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Tiny:
    """A model, how it is served, and by hand: what a block of the pool costs on each rank, and the blocks of one sequence of `max_model_len`.

    Blocks are of 128 tokens, heads of 32, values of 16 bits: one head takes 16 KiB of a block in each layer. `linear`: printed tokens are.
    """

    config: Mapping[str, object]
    ranks: int
    max_model_len: int
    block_kib: int
    blocks: int
    linear: bool = True


FAMILY = [
    pytest.param(Tiny(tiny_family.LLAMA, 2, 4096, 3 * 16, 32), id="Llama on two ranks, a head on each"),
    pytest.param(Tiny(tiny_family.QWEN2, 1, 4096, 3 * 2 * 16, 32), id="Qwen2, tied embeddings"),
    pytest.param(Tiny(tiny_family.QWEN3_MOE, 2, 4096, 2 * 16, 32), id="Qwen3 with experts on two ranks, its one head on both"),
    # Two full layers make a group, and the five that slide three. These keep the window and one batch, 63 + 4096 tokens, and a block more.
    pytest.param(Tiny(tiny_family.GEMMA3, 2, 8192, 2 * 16, 64 + 3 * (33 + 1), linear=False), id="Gemma 3 on two ranks, sliding windows"),
    # A state of 34304 bytes makes the one attention layer's block three times as long; each of three states is kept, cached and checkpointed.
    pytest.param(Tiny(tiny_family.NEMOTRON_H, 2, 4096, 3 * 16, 11 + 3 * 3, linear=False), id="Nemotron-H on two ranks, Mamba 2"),
    pytest.param(Tiny(tiny_family.LFM2, 1, 4096, 2 * 16, 32 + 3 * 2, linear=False), id="LFM2, short convolutions"),
]


def world_of(world: World, tiny: Tiny, folder: Path) -> World:
    """The world in which this model is served: each rank on a core of its own, the engine in the API server's process where vLLM can."""
    write_folder(folder, tiny.config)
    cores = {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, range(tiny.ranks)))}
    return replace(world, model=folder, max_model_len=tiny.max_model_len, environment={**world.environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **cores})


def options_of(tiny: Tiny, blocks: int) -> tuple[str, ...]:
    """A pool of so many blocks."""
    pool = ("--kv-cache-memory-bytes", str(blocks * tiny.block_kib * 1024))
    return (*pool, "--load-format", "dummy", "--tensor-parallel-size", str(tiny.ranks))


def one_sequence(document: Mapping[str, Any]) -> tuple[str, int]:
    """The outcome of the third gate, and what it asks for."""
    return next((gate["outcome"], gate["need_bytes"]) for gate in document["gates"] if gate["gate"] == "one_sequence")


@pytest.mark.parametrize("tiny", FAMILY)
def test_a_pool_that_lacks_one_block_is_too_small_as_predicted(world: World, tmp_path: Path, tiny: Tiny) -> None:
    """The prediction first, then plain vLLM: one block is held back, so the blocks of one sequence are not enough; and the length that it says would fit."""
    world, pool = world_of(world, tiny, tmp_path / "model"), options_of(tiny, tiny.blocks)
    document: dict[str, Any] = world.guard_check(*pool)

    assert ("fail", (tiny.blocks + 1) * tiny.block_kib * 1024) == one_sequence(document)
    with world.vllm_serve(*pool) as server:
        assert server.wait_until_ended() == 1
        assert f"To serve at least one request with the model's max seq len ({tiny.max_model_len})" in server.text()
        estimate = ESTIMATE.search(server.text())
        assert estimate is not None
        assert f"--max-model-len {estimate[1]}" == document["fixes"][0]


@pytest.mark.parametrize("tiny", FAMILY)
def test_a_pool_with_that_block_serves_what_was_predicted(world: World, tmp_path: Path, tiny: Tiny) -> None:
    """The prediction first, then plain vLLM: tokens and concurrency that it prints, and the blocks of its metric."""
    world, pool = world_of(world, tiny, tmp_path / "model"), options_of(tiny, tiny.blocks + 1)
    document: dict[str, Any] = world.guard_check(*pool)
    demand, fits, pool_bytes = document["demand"], document["fits"], (tiny.blocks + 1) * tiny.block_kib * 1024

    assert ("launch", "pass") == (document["verdict"], one_sequence(document)[0])
    assert tiny.blocks * tiny.block_kib * 1024 == demand["kv_one_sequence"]["likely"] == demand["kv_one_sequence"]["low"]
    assert fits["max_model_len"] == tiny.max_model_len
    with world.vllm_serve(*pool) as server:
        server.wait_until_ready()
        printed, blocks = PRINTED.search(server.text()), BLOCKS.search(server.request("GET", "/metrics")[1])
        assert printed is not None
        assert blocks is not None
        tokens = int(printed[1].replace(",", ""))
        assert (tokens, float(printed[2]), int(blocks[1])) == (fits["kv_tokens"], fits["full_sequences"], tiny.blocks + 1)
        if tiny.linear:
            assert demand["kv_bytes_per_token"]["likely"] * tokens == pool_bytes
        else:
            assert demand["kv_bytes_per_token"] is None
        status, answer = server.request("POST", "/v1/completions", {"model": str(world.model), "prompt": "hello", "max_tokens": 4, "ignore_eos": True})
        assert status == 200, answer
        assert server.terminate() == 0


@pytest.mark.parametrize(("blocks", "outcome"), [pytest.param(2, "fail", id="one block short"), pytest.param(3, "pass", id="with that block")])
@pytest.mark.parametrize(
    ("method", "models"),
    [
        pytest.param("ngram", 1, id="speculating by n-grams"),
        pytest.param("draft_model", 2, id="with itself as its draft"),
    ],
)
def test_a_pool_beside_a_draft_is_judged_as_vllm_does(world: World, method: str, models: int, blocks: int, outcome: str) -> None:
    """The prediction first, then plain vLLM. A draft like the model takes as much again of every token."""
    block_bytes = models * 64 * 1024  # two layers, two KV heads of 32, 16 bits, 128 tokens
    speculation = ("--spec-method", method, "--spec-tokens", "2", *(("--spec-model", str(world.model)) if models > 1 else ()))
    pool = ("--kv-cache-memory-bytes", str(blocks * block_bytes), *speculation)
    document: dict[str, Any] = world.guard_check(*pool)

    assert outcome == one_sequence(document)[0]
    with world.vllm_serve(*pool) as server:
        if outcome == "fail":
            assert server.wait_until_ended() == 1
            assert "To serve at least one request with the model's max seq len (256)" in server.text()
        else:
            server.wait_until_ready()
            printed = PRINTED.search(server.text())
            assert printed is not None
            assert document["demand"]["kv_bytes_per_token"]["likely"] * int(printed[1].replace(",", "")) == blocks * block_bytes
            assert server.terminate() == 0
