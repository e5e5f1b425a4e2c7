"""Decisions about commands that are not `vllm serve`: other batch defaults, and programs that nobody knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import UNKNOWN_MODEL, change, checkpoint, codes, cpu_facts, facts, gpu, launched, process, refused

from vllm_guard.command.launcher import FOREIGN, split_launcher
from vllm_guard.command.parse import parse
from vllm_guard.facts import Facts, NvmlFault
from vllm_guard.host.visible import select_devices
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.plan.decide import decide
from vllm_guard.plan.decision import Decision, Unmeasured
from vllm_guard.plan.foreign import restrain
from vllm_guard.plan.policy import Policy
from vllm_guard.release import parse_release

RTX_4090 = gpu(name="NVIDIA GeForce RTX 4090", total_mib=24_564, free_mib=24_100, reserved_mib=400)
B200 = gpu(name="NVIDIA B200", total_mib=183_000, free_mib=182_000)
SMALL = gpu(name="NVIDIA GeForce RTX 3050 Ti Laptop GPU", total_mib=4096, free_mib=4030, reserved_mib=40)
BUSY = gpu(free_mib=30_000, processes=(process(1, 50_000),))
FULL = gpu(free_mib=300, processes=(process(1, 80_000),))


def judge(line: str, world: Facts, model: Checkpoint | UnknownCheckpoint = UNKNOWN_MODEL) -> Decision:
    """The decision on a command."""
    launcher = split_launcher(line.split())
    release = parse_release(world.vllm_version)
    command = parse(launcher.arguments, release, entry=launcher.entry)
    decision = decide(world, command, select_devices(world, command, release), model, Policy())
    return restrain(decision, command) if launcher.entry == FOREIGN else decision


@pytest.mark.parametrize(
    ("line", "card", "tokens", "seqs"),
    [
        pytest.param("python -m vllm.entrypoints.openai.api_server --model m", gpu(), 8192, 1024, id="the server as a module"),
        pytest.param("vllm bench latency --model m", gpu(), 16_384, 1024, id="the LLM class on a large card"),
        pytest.param("vllm bench latency --model m", B200, 16_384, 1024, id="the LLM class on a huge card"),
        pytest.param("vllm bench latency --model m", RTX_4090, 8192, 256, id="the LLM class on a small card"),
        pytest.param("vllm bench throughput --async-engine", RTX_4090, 2048, 256, id="the asynchronous engine"),
        pytest.param("vllm run-batch --model m", gpu(), 2048, 128, id="a context of no tier"),
        pytest.param("vllm run-batch --model m --performance-mode throughput", gpu(), 4096, 256, id="throughput mode doubles there too"),
        pytest.param("vllm bench latency --max-num-batched-tokens 100", gpu(), 100, 100, id="a given value"),
    ],
)
def test_the_usage_context_decides_about_batches(line: str, card: Any, tokens: int, seqs: int) -> None:
    """vLLM's own choice differs by the way in."""
    decision = judge(line, facts(card), checkpoint())
    settings = launched(decision).assessment.settings

    assert (tokens, seqs) == (settings["max_num_batched_tokens"].value, settings["max_num_seqs"].value)
    assert change(decision, "max_num_batched_tokens") is None


def test_the_cpu_builds_llm_class_takes_twice_as_much() -> None:
    """4096 tokens and 256 sequences for a rank."""
    settings = launched(judge("vllm bench latency --model m", cpu_facts(total_mib=65_536, free_mib=60_000))).assessment.settings

    assert (4096, 256) == (settings["max_num_batched_tokens"].value, settings["max_num_seqs"].value)


def test_a_benchmark_on_a_small_card_is_capped_as_a_server_is() -> None:
    """Its own choice would be larger still."""
    assert "1024" == change(judge("vllm bench latency --model m", facts(SMALL), checkpoint()), "max_num_batched_tokens")


class TestAProgramThatNobodyKnows:
    """Values change where they stand, nothing is added, and without a utilization nothing is refused."""

    @pytest.mark.parametrize(
        ("line", "card", "chosen", "said"),
        [
            pytest.param("x --model m", gpu(), None, "nothing is added", id="what fits stays"),
            pytest.param("x --model m --gpu-memory-utilization 0.3", BUSY, None, "nothing is added", id="a value that fits stays"),
            pytest.param("x --model m --gpu-memory-utilization 0.9", BUSY, "0.3474", "changed only where they stand", id="a value that fails is lowered"),
            pytest.param("x --model m", BUSY, None, "vLLM would need --gpu-memory-utilization 0.3474", id="a default stays and that is said"),
            pytest.param("x --model m", FULL, None, "a vLLM with its default would fail now", id="no room is said"),
            pytest.param("x --model m", SMALL, None, "nothing is added", id="no batch budget is added"),
        ],
    )
    def test_it_starts(self, line: str, card: Any, chosen: str | None, said: str) -> None:
        """With one warning of ours."""
        decision = judge(line, facts(card), checkpoint())

        assert chosen == change(decision)
        assert change(decision, "max_num_batched_tokens") is None
        assert 1 == codes(decision).count("launcher_unknown")
        assert said in launched(decision).assessment.warnings[-1].message

    def test_a_utilization_that_cannot_be_met_refuses(self) -> None:
        """Who names one starts a vLLM."""
        assert "gpu_busy" == refused(judge("x --model m --gpu-memory-utilization 0.9", facts(FULL))).reason

    def test_nothing_measured(self) -> None:
        """It has no verdict where a utilization is named, and is started else."""
        blind = replace(facts(), gpus=(), nvml_fault=NvmlFault("driver", "no driver", "mend it"))

        assert isinstance(judge("x --gpu-memory-utilization 0.9", blind), Unmeasured)
        assert "no driver" in launched(judge("x --model m", blind)).assessment.warnings[-1].message
