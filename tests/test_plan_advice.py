"""What contradicts the model, the card or the host is said, and never refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import checkpoint, codes, facts, gpu, judge, launched
from test_plan_pool import QWEN_HALF, RTX_4090, llama

from vllm_guard.facts import Facts
from vllm_guard.model.checkpoint import Checkpoint
from vllm_guard.plan.decision import Decision
from vllm_guard.units import GIB, MIB

OLD = replace(gpu(name="Tesla T4", total_mib=15_360, free_mib=15_000, reserved_mib=440), compute_capability=(7, 5))
SMALL_MODEL = Checkpoint("/models/m", QWEN_HALF, 943 * MIB)
SHORT = ("--max-model-len", "4096")


LONG_ROPE = {"model_type": "phi3", "original_max_position_embeddings": 4096, "rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}}


def message(decision: Decision, code: str) -> str:
    """What the warning with this code says."""
    return next(warning.message for warning in launched(decision).assessment.warnings if warning.code == code)


@pytest.mark.parametrize(
    ("argv", "model", "code", "says"),
    [
        pytest.param(
            (*SHORT, "-q", "gptq"),
            llama(quantization_config={"quant_method": "awq", "bits": 4}),
            "quantization_contradicts",
            "the checkpoint is quantized with awq, --quantization says gptq",
            id="another quantization than the checkpoint's",
        ),
        pytest.param(("--max-model-len", "65536"), SMALL_MODEL, "length_above_config", "65536 is above the model's 32768", id="a length above the config"),
        pytest.param((*SHORT, "-tp", "3"), SMALL_MODEL, "heads_do_not_divide", "14 attention heads do not divide", id="heads that do not divide"),
        pytest.param(
            (*SHORT, "--cpu-offload-gb", "2"), SMALL_MODEL, "offload_beyond_layers", "hold 0.67 GiB, no more can move", id="offload beyond the layers"
        ),
        pytest.param((), llama(None, num_hidden_layers=20), "length_inherited", "own 131072 tokens count: one such", id="a long length by default in doubt"),
    ],
)
def test_what_contradicts_is_said(argv: tuple[str, ...], model: Checkpoint, code: str, says: str) -> None:
    """With the number, and the launch goes on."""
    cards = [replace(RTX_4090, nvml_index=index, uuid=f"GPU-{index}") for index in range(3)]

    assert says in message(judge(facts(*cards), *argv, model=model), code)


@pytest.mark.parametrize(
    ("argv", "config", "environment", "code"),
    [
        pytest.param(("-q", "awq_marlin"), {"quantization_config": {"quant_method": "awq", "bits": 4}}, {}, "quantization_contradicts", id="another kernel"),
        pytest.param(("-q", "humming"), {"quantization_config": {"quant_method": "awq", "bits": 4}}, {}, "quantization_contradicts", id="an override"),
        pytest.param(("-q", "fp8"), {}, {}, "quantization_contradicts", id="quantized while loading"),
        pytest.param(
            ("-q", "fp8"), {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, {}, "quantization_contradicts", id="ModelOpt overrules"
        ),
        pytest.param(("-q", "fp8"), {"quantization_config": {"quant_method": "mxfp4"}}, {}, "quantization_contradicts", id="gpt-oss overrules"),
        pytest.param(("--max-model-len", "32768"), LONG_ROPE, {}, "length_above_config", id="up to what LongRoPE reaches"),
        pytest.param(("--max-model-len", "200000"), {}, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, "length_above_config", id="a longer length that is allowed"),
        pytest.param(("--max-model-len", "131072"), {}, {}, "length_inherited", id="a long length that was asked for"),
        pytest.param(("--cpu-offload-gb", "1"), {}, {}, "offload_beyond_layers", id="an offload within the layers"),
        pytest.param((), {}, {}, "length_inherited", id="a long length by default that surely fits"),
    ],
)
def test_what_does_not_contradict_is_not_said(argv: tuple[str, ...], config: dict[str, Any], environment: dict[str, str], code: str) -> None:
    """Near misses."""
    model = checkpoint(15_317, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=False, **config)

    assert code not in codes(judge(facts(environment=environment), *argv, model=model))


def test_bfloat16_on_an_old_card_is_said() -> None:
    """Compute capability below 8.0; the default dtype is another one there."""
    assert "Tesla T4 has 7.5" in message(judge(facts(OLD), *SHORT, "--dtype", "bfloat16", model=SMALL_MODEL), "bfloat16_unsupported")
    assert "bfloat16_unsupported" not in codes(judge(facts(OLD), *SHORT, model=SMALL_MODEL))
    assert "bfloat16_unsupported" not in codes(judge(facts(), *SHORT, "--dtype", "bfloat16", model=SMALL_MODEL))


def host(available_gib: int, limit_gib: int | None) -> Facts:
    """One 4090 beside this much host memory."""
    world = facts(RTX_4090)
    limit = None if limit_gib is None else limit_gib * GIB
    return replace(world, host=replace(world.host, memory_available_bytes=available_gib * GIB, cgroup_limit_bytes=limit))


@pytest.mark.parametrize(
    ("world", "says"),
    [
        pytest.param(host(4, None), "take 8192 MiB of host memory for 1 GPU(s), 4096 MiB are available", id="less host memory than is offloaded"),
        pytest.param(host(64, 6), "take 8192 MiB of host memory for 1 GPU(s), 6144 MiB are available", id="a container's limit below the offload"),
        pytest.param(host(64, 10), "may use 10240 MiB and the weight files have 15317 MiB", id="a container's limit below the weight files"),
    ],
)
def test_scarce_host_memory_is_said(world: Facts, says: str) -> None:
    """Loading or offloading may be killed by the kernel, without a word in vLLM's log."""
    assert says in message(judge(world, *SHORT, "--cpu-offload-gb", "8", model=llama()), "host_memory")


def test_enough_host_memory_is_not_spoken_of() -> None:
    """Neither with a limit that is wide enough."""
    for world in (host(64, None), host(64, 32)):
        assert "host_memory" not in codes(judge(world, *SHORT, "--cpu-offload-gb", "8", model=llama()))
