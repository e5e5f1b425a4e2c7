"""Fifteen starts that were measured on two small cards, against what the guard would have called: no start a failure, no failure a start."""

from __future__ import annotations

from typing import Any, Final

import pytest
from builders import facts, gate, gpu, judge, launched
from test_plan_pool import QWEN_HALF

from vllm_guard.facts import Gpu
from vllm_guard.model.checkpoint import Checkpoint
from vllm_guard.model.kv_cache import KvCache, kv_cache
from vllm_guard.model.kv_layers import KvLayers, read_layers
from vllm_guard.model.kv_setting import KvSetting
from vllm_guard.model.peak import Activation, Band
from vllm_guard.model.unknown import Unknown
from vllm_guard.model.weights import WeightBytes
from vllm_guard.plan import pool
from vllm_guard.plan.decision import Decision
from vllm_guard.plan.needs import Demand
from vllm_guard.plan.policy import Amount, Policy
from vllm_guard.release import Release
from vllm_guard.units import GIB, MIB, requested_bytes

# Qwen2.5-VL-3B-Instruct-AWQ as it was published; its files hold 3.32 GiB.
VISION: Final[dict[str, Any]] = {
    "model_type": "qwen2_5_vl",
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 2048,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
}
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "hidden_size": 2048,
    "intermediate_size": 11_008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "max_position_embeddings": 128_000,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": 32_768,
    "torch_dtype": "bfloat16",
    "vision_config": VISION,
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "modules_to_not_convert": ["visual"]},
}
MODEL: Final = Checkpoint("/models/qwen", CONFIG, int(3.32 * GIB))
# Free memory is what vLLM itself found at its gate, so nothing is to be set aside for its start any more.
CARD: Final = gpu(name="NVIDIA GeForce RTX 3050 Ti Laptop GPU", total_mib=4096, free_mib=3287, reserved_mib=0)
AS_MEASURED: Final = Policy(margin=Amount(0), start_overhead_bytes=0, on_explicit="keep", levers=frozenset(), min_kv_cache_bytes=0)


def called(decision: Decision) -> dict[str, str]:
    """The outcome of each gate."""
    return {name: gate(decision, name) for name in ("free_memory", "cache_blocks", "one_sequence")}


def measured(version: str, card: Gpu, model: Checkpoint, *argv: str) -> dict[str, str]:
    """What is called at these flags, with nothing changed and nothing kept free."""
    return called(judge(facts(card, version=version), *argv, policy=AS_MEASURED, model=model))


@pytest.mark.parametrize(
    ("utilization", "offload_gib", "length", "sequences", "tokens", "failed"),
    [
        pytest.param("0.70", "1", 1024, 1, None, None, id="1 baseline"),
        pytest.param("0.60", "1", 1024, 1, None, "cache_blocks", id="2 less of the card"),
        pytest.param("0.65", "1", 1024, 1, None, None, id="3 a little less"),
        pytest.param("0.75", "1", 1024, 1, None, None, id="4 more"),
        pytest.param("0.80", "1", 1024, 1, None, None, id="5 nearly all that is free"),
        pytest.param("0.85", "1", 1024, 1, None, "free_memory", id="6 more than is free"),
        pytest.param("0.70", "0", 1024, 1, None, "cache_blocks", id="7 nothing offloaded"),
        pytest.param("0.70", "2", 1024, 1, None, None, id="8 more offloaded than can move"),
        pytest.param("0.70", "1", 2048, 1, None, "cache_blocks", id="9 a batch that follows the length"),
        pytest.param("0.70", "1", 1024, 4, None, "cache_blocks", id="10 a batch that follows the sequences"),
        pytest.param("0.70", "1", 2048, 1, "1024", None, id="11 the length without its batch"),
        pytest.param("0.70", "1", 1024, 4, "1024", None, id="12 the sequences without their batch"),
    ],
)
def test_no_run_of_the_first_card_is_called_wrong(
    utilization: str, offload_gib: str, length: int, sequences: int, tokens: str | None, failed: str | None
) -> None:
    """0.28.0, 3.32 GiB of weights on a card of 4 GiB: what is not certain is uncertain, on either side."""
    batch = () if tokens is None else ("--max-num-batched-tokens", tokens)
    flags = ("--gpu-memory-utilization", utilization, "--cpu-offload-gb", offload_gib, "--max-model-len", str(length), "--max-num-seqs", str(sequences))
    outcomes = measured("0.28.0", CARD, MODEL, *flags, *batch)

    if failed is None:
        assert "fail" not in outcomes.values()
        assert outcomes["free_memory"] == "pass"
    elif failed == "free_memory":
        assert outcomes["free_memory"] == "fail"
    else:
        assert outcomes[failed] in {"fail", "uncertain"}


def demand_of(beside_bytes: int, max_model_len: int) -> Demand:
    """The model with what it takes beside the KV cache given."""
    layers = read_layers(CONFIG, Release(0, 28))
    assert isinstance(layers, KvLayers)
    cache = kv_cache(layers, KvSetting(Release(0, 28), max_model_len=max_model_len, max_num_batched_tokens=1024))
    assert isinstance(cache, KvCache)
    weights = WeightBytes(beside_bytes, beside_bytes, beside_bytes, "computed", 0, (), 0)
    return Demand(weights, Activation(0, 0, 0), Band(0, 0, 0), cache)


@pytest.mark.parametrize(
    ("fraction", "blocks", "sequence"),
    [
        pytest.param(0.6374, "fail", "fail", id="a ten-thousandth below the edge of gate 2"),
        pytest.param(0.6375, "pass", "fail", id="the edge of gate 2: something is left, and not enough"),
        pytest.param(0.6462, "pass", "fail", id="the last one at which gate 3 fails"),
        pytest.param(0.6463, "pass", "pass", id="one sequence of 1024 tokens fits"),
    ],
)
def test_the_edges_of_gates_2_and_3_are_those_of_the_measurement(fraction: float, blocks: str, sequence: str) -> None:
    """2611 MiB beside the pool, 36 MiB for one sequence, a card of 4096 MiB."""
    demand, judged = demand_of(2611 * MIB, 1024), pool.Judged(1, interchangeable=False, assumed=False)
    budget = requested_bytes(4096 * MIB, fraction)

    assert not isinstance(demand.kv, Unknown)
    assert (36_864, 36 * MIB) == (demand.kv.bytes_per_token, demand.kv.one_sequence_bytes)
    assert (blocks, sequence) == (
        pool.cache_blocks(demand, [budget], 0, judged).outcome,
        pool.one_sequence(demand, [budget], 0, judged, shortest=False).outcome,
    )


@pytest.mark.parametrize(("utilization", "outcome"), [("0.8024", "pass"), ("0.8025", "fail")])
def test_the_edge_of_gate_1_is_that_of_the_measurement(utilization: str, outcome: str) -> None:
    """3287 of 4096 MiB were free: 0.80249."""
    flags = ("--gpu-memory-utilization", utilization, "--max-model-len", "1024", "--max-num-seqs", "1")

    assert outcome == measured("0.28.0", CARD, MODEL, *flags)["free_memory"]


def test_the_limit_of_the_offload_is_what_the_decoder_layers_hold() -> None:
    """2 GiB were asked for, 1.34 GiB moved: 36 layers of four bits; the tower and the embeddings stay."""
    flags = ("--cpu-offload-gb", "2", "--max-model-len", "1024", "--max-num-seqs", "1", "--gpu-memory-utilization", "0.7")
    assessment = launched(judge(facts(CARD, version="0.28.0"), *flags, policy=AS_MEASURED, model=MODEL)).assessment
    demand = assessment.demand

    assert demand is not None
    assert not isinstance(demand.weights, Unknown)
    assert demand.weights.offloadable_bytes / GIB == pytest.approx(1.34, abs=0.005)
    assert "--cpu-offload-gb 2: the decoder layers of a GPU hold 1.34 GiB, no more can move" in [warning.message for warning in assessment.warnings]


@pytest.mark.parametrize(
    ("argv", "outcome"),
    [
        pytest.param((), "fail", id="its parts are all loaded"),
        pytest.param(("--limit-mm-per-prompt", '{"video": 0}'), "uncertain", id="a limit may keep the tower away"),
        pytest.param(("--language-model-only",), "uncertain", id="the language model only"),
        pytest.param(("--runner", "pooling"), "uncertain", id="a pooling model may leave parts out"),
        pytest.param(("--mm-encoder-only",), "unknown", id="the tower only"),
    ],
)
def test_without_weight_files_a_quantized_model_of_a_known_family_is_certain(argv: tuple[str, ...], outcome: str) -> None:
    """3.3 GiB by its config alone against a budget of 2.8."""
    flags = ("--gpu-memory-utilization", "0.70", "--max-model-len", "1024", "--max-num-seqs", "1", *argv)

    assert outcome == measured("0.28.0", CARD, Checkpoint("/models/qwen", CONFIG, None), *flags)["cache_blocks"]


def test_no_run_of_the_second_card_is_called_wrong() -> None:
    """0.32.0 on a 2080 Ti: the default is refused, a pool of 16 MiB holds 512 tokens and not 2048."""
    card = gpu(name="NVIDIA GeForce RTX 2080 Ti", total_mib=11_264, free_mib=int(9.87 * 1024), reserved_mib=0)
    model = Checkpoint("/models/qwen", QWEN_HALF, 943 * MIB)
    pool_bytes = ("--gpu-memory-utilization", "0.8", "--kv-cache-memory-bytes", "16777216", "--block-size", "16")

    assert measured("0.32.0", card, model, "--gpu-memory-utilization", "0.92")["free_memory"] == "fail"
    assert measured("0.32.0", card, model, *pool_bytes, "--max-model-len", "512")["one_sequence"] == "pass"
    assert measured("0.32.0", card, model, *pool_bytes, "--max-model-len", "2048")["one_sequence"] == "fail"
