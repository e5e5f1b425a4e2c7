"""Valid values where a case shows only what matters to it. Sizes in MiB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vllm_guard.command.parse import parse
from vllm_guard.facts import Claim, Facts, Gpu, GpuProcess, Host, NumaNode, UnreadableGpu
from vllm_guard.host.visible import select_devices
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.plan.decide import decide
from vllm_guard.plan.decision import Decision, Launch, Refusal
from vllm_guard.plan.policy import Policy
from vllm_guard.release import parse_release
from vllm_guard.units import GIB, MIB

UNKNOWN_MODEL = UnknownCheckpoint("not on this disk")
LLAMA_CONFIG: Mapping[str, Any] = MappingProxyType(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "max_position_embeddings": 131_072,
        "torch_dtype": "bfloat16",
    }
)


def gpu(
    index: int = 0,
    *,
    total_mib: int = 81_559,
    free_mib: int = 80_900,
    reserved_mib: int | None = 551,
    name: str = "NVIDIA H100 80GB HBM3",
    processes: Sequence[GpuProcess] = (),
    unified: bool = False,
    uuid: str | None = None,
) -> Gpu:
    """A card; idle by default."""
    return Gpu(
        nvml_index=index,
        uuid=uuid or f"GPU-{index:08d}-0000-4000-8000-000000000000",
        name=name,
        nvml_total_bytes=total_mib * MIB,
        free_bytes=free_mib * MIB,
        driver_reserved_bytes=None if reserved_mib is None else reserved_mib * MIB,
        processes=tuple(processes),
        unified=unified,
    )


def process(pid: int = 4711, used_mib: int | None = 1024, **fields: Any) -> GpuProcess:
    """A compute process."""
    return GpuProcess(pid=pid, kind="compute", name=fields.pop("name", "python"), used_bytes=None if used_mib is None else used_mib * MIB, **fields)


def facts(
    *gpus: Gpu | UnreadableGpu,
    version: str | None = "0.32.0",
    device: str = "cuda",
    wsl: bool = False,
    environment: Mapping[str, str] | None = None,
    claims: Sequence[Claim] = (),
) -> Facts:
    """A host with these cards; one idle H100 by default."""
    return Facts(
        taken_at="2026-01-01T00:00:00+00:00",
        vllm_version=version,
        vllm_device=device,
        host=Host(memory_total_bytes=256 * GIB, memory_available_bytes=200 * GIB, wsl=wsl),
        gpus=gpus or (gpu(),),
        claims=tuple(claims),
        environment=MappingProxyType(dict(environment or {})),
    )


def cpu_facts(*, total_mib: int, free_mib: int, version: str = "0.32.0+cpu", environment: Mapping[str, str] | None = None) -> Facts:
    """A machine without cards, with one NUMA node."""
    return Facts(
        taken_at="2026-01-01T00:00:00+00:00",
        vllm_version=version,
        vllm_device="cpu",
        host=Host(total_mib * MIB, free_mib * MIB, nodes=(NumaNode(0, total_mib * MIB, free_mib * MIB),)),
        environment=MappingProxyType(dict(environment or {})),
    )


def checkpoint(weights_mib: int | None = None, **config: Any) -> Checkpoint:
    """A llama-like model folder."""
    return Checkpoint("/models/m", {**LLAMA_CONFIG, **config}, None if weights_mib is None else weights_mib * MIB)


def judge(
    world: Facts,
    *argv: str,
    policy: Policy | None = None,
    model: Checkpoint | UnknownCheckpoint = UNKNOWN_MODEL,
) -> Decision:
    """The decision on `vllm serve m ARGV`."""
    release = parse_release(world.vllm_version)
    command = parse(("m", *argv), release)
    return decide(world, command, select_devices(world, command, release), model, policy or Policy())


def launched(decision: Decision) -> Launch:
    """The decision as a launch, or a failed test."""
    assert isinstance(decision, Launch), decision
    return decision


def refused(decision: Decision) -> Refusal:
    """The decision as a refusal, or a failed test."""
    assert isinstance(decision, Refusal), decision
    return decision


def change(decision: Decision, dest: str = "gpu_memory_utilization") -> str | None:
    """What the launch changes this setting to; None when it stays."""
    return next((c.after for c in launched(decision).assessment.changes if c.dest == dest), None)


def gate(decision: Decision, name: str = "free_memory") -> str:
    """A gate's outcome."""
    assert isinstance(decision, Launch | Refusal)
    return next(g.outcome for g in decision.assessment.gates if g.gate == name)


def codes(decision: Decision) -> list[str]:
    """The codes of the warnings."""
    assert isinstance(decision, Launch | Refusal)
    return [warning.code for warning in decision.assessment.warnings]


def model_folder(folder: Path, config: Mapping[str, Any] | None = None) -> Path:
    """A folder with a config.json."""
    import json  # noqa: PLC0415 - only here

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config or LLAMA_CONFIG)))
    return folder
