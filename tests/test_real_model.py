"""What the real vLLM 0.32.0 says about a KV cache of a given size, one block short and with that block: as the guard predicts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from real.world import World

pytestmark = pytest.mark.slow

# Two layers, two KV heads of 32, 16 bits: 512 bytes a token, blocks of 128 tokens. 256 tokens take two blocks, and one is held back.
BLOCK_BYTES = 64 * 1024
PRINTED = re.compile(r"CPU KV cache size: ([\d,]+) tokens")


def one_sequence(document: dict[str, Any]) -> str:
    """The outcome of the third gate."""
    return next(str(gate["outcome"]) for gate in document["gates"] if gate["gate"] == "one_sequence")


@pytest.mark.parametrize(("blocks", "outcome"), [pytest.param(2, "fail", id="one block short"), pytest.param(3, "pass", id="with that block")])
@pytest.mark.parametrize(
    ("method", "models"),
    [
        pytest.param(None, 1, id="alone"),
        pytest.param("ngram", 1, id="speculating by n-grams"),
        pytest.param("draft_model", 2, id="with itself as its draft"),
    ],
)
def test_a_pool_of_given_bytes_is_judged_as_vllm_does(world: World, method: str | None, models: int, blocks: int, outcome: str) -> None:
    """The prediction first, then plain vLLM. A draft like the model takes as much again of every token."""
    block_bytes = models * BLOCK_BYTES
    speculation = () if method is None else ("--spec-method", method, "--spec-tokens", "2", *(("--spec-model", str(world.model)) if models > 1 else ()))
    pool = ("--kv-cache-memory-bytes", str(blocks * block_bytes), *speculation)
    document: dict[str, Any] = world.guard_check(*pool)

    assert outcome == one_sequence(document)
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
