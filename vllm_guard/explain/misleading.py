"""What misleads: what vLLM's own words or a first thought would have one do. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_guard.explain.fixes import Fix


def misleading(cause: str, fixes: Sequence[Fix]) -> list[str]:
    """What would not help, against this cause and these fixes."""
    first = fixes[0].action if fixes else ""
    said = []
    if cause == "gate_free_memory" and first in {"free_gpu", "free_host_memory"}:
        said.append("--gpu-memory-utilization a little lower: what is free is far below what the model was to get")
    if cause == "gate_free_memory":
        said.append("raising --gpu-memory-utilization: it asks for more of what is not free")
    if cause == "gate_cache_blocks" and first != "raise_utilization":
        said.append('vLLM\'s "Try increasing gpu_memory_utilization": ' + ("others hold the card" if first == "free_gpu" else "it is not what lacks here"))
    if cause == "gate_cache_blocks":
        said.append("a shorter --max-model-len: nothing is left for any length")
    if cause == "oom_at_load":
        said.append('vLLM\'s "Try lowering --gpu-memory-utilization": weights are loaded before any budget counts; expandable_segments frees nothing either')
    if cause in {"oom_at_graph_capture", "oom_at_sampler_warmup", "oom_at_profile"}:
        said.append("raising --gpu-memory-utilization: it leaves less for what failed")
    if cause == "profiling_memory_released":
        said.append("any memory flag: memory was released by somebody else, nothing was short")
    if cause in {"package_incompatible", "gpu_arch_unsupported", "compiler_missing"}:
        said.append("memory flags: this is not about memory")
    if cause == "shared_memory_full":
        said.append("NCCL's own settings: /dev/shm is what is full")
    return said
