"""How far a start had come: from what vLLM logs, and from the frames of a traceback. Pure."""

from __future__ import annotations

import re
from typing import Final, Literal

Stage = Literal["context", "load", "profile", "kv_allocation", "graph_capture", "sampler_warmup", "runtime"]

# A frame of Python or of a notebook, or the method that a worker of V0 was asked for.
_FRAME: Final = re.compile(
    r"File \"[^\"]*\", line \d+, in (\w+)|File [^\"\s].*, in (?:\w+\.)*(\w+)\(|while processing method (\w+)|\b(_dummy_sampler_run|_dummy_pooler_run)\("
)
# The innermost of these frames decides (v1/worker/gpu_worker.py and gpu_model_runner.py, worker/worker.py of the V0 engine).
_STAGE_OF_FRAME: Final[dict[str, Stage]] = {
    **dict.fromkeys(("init_device", "set_device", "_lazy_init", "init_worker_distributed_environment", "create_cuda_context"), "context"),
    **dict.fromkeys(("load_model", "load_weights", "initialize_model", "create_weights", "process_weights_after_loading", "_initialize_model"), "load"),
    **dict.fromkeys(("profile_run", "determine_available_memory", "determine_num_available_blocks", "_dummy_run", "profile_cudagraph_memory"), "profile"),
    **dict.fromkeys(("kernel_warmup", "flashinfer_autotune"), "profile"),
    **dict.fromkeys(
        ("initialize_kv_cache", "_allocate_kv_cache", "allocate_kv_cache", "_allocate_kv_cache_tensors", "initialize_kv_cache_tensors"), "kv_allocation"
    ),
    **dict.fromkeys(("initialize_kv_cache_tensors", "initialize_from_config", "initialize_cache", "_init_cache_engine"), "kv_allocation"),
    **dict.fromkeys(("capture_model", "_capture_cudagraphs", "capture_graph", "capture", "compile_or_warm_up_model"), "graph_capture"),
    **dict.fromkeys(("_dummy_sampler_run", "_dummy_pooler_run"), "sampler_warmup"),
    **dict.fromkeys(("run_engine_loop", "engine_step", "step_async", "_process_engine_step", "step_with_batch_queue", "execute_model"), "runtime"),
    **dict.fromkeys(("execute_model_async", "start_worker_execution_loop"), "runtime"),
}
# Profiling and capturing run the model with made-up requests: the frames around these tell which.
_INSIDE_OTHERS: Final = frozenset(("_dummy_run", "execute_model"))
# Lines that say what was done: what follows is the next stage.
_MARKS: Final[tuple[tuple[re.Pattern[str], Stage], ...]] = (
    (re.compile(r"Initializing an? (?:V[01] )?LLM engine|Starting to load model|Loading (?:safetensors|pt) checkpoint"), "load"),
    (re.compile(r"Model loading took|Loading model weights took"), "profile"),
    (re.compile(r"Available KV cache memory: \d|KV cache size: |# (?:GPU|cuda) blocks: "), "kv_allocation"),
    (re.compile(r"Capturing (?:CUDA|cudagraph|the model)|Capturing CUDA graph"), "graph_capture"),
    (re.compile(r"Graph capturing finished"), "sampler_warmup"),
)
READY: Final = re.compile(r"Application startup complete|Uvicorn running on")
# The check of the KV cache, whose own words may be cut off.
_CHECKS: Final = re.compile(r"in (?:_?check_enough_kv_cache_memory|get_kv_cache_configs?)\b")


def stage_of_frame(text: str) -> Stage | None:
    """The stage that a line of a traceback tells; None for other frames and other lines."""
    name = _function(text)
    return _STAGE_OF_FRAME.get(name) if name else None


def is_inside_others(text: str) -> bool:
    """Whether this is a frame whose stage is the one of the frames around it, where these have one."""
    return _function(text) in _INSIDE_OTHERS


def _function(text: str) -> str | None:
    found = _FRAME.search(text)
    return next((group for group in found.groups() if group), None) if found else None


def stage_after(text: str) -> Stage | None:
    """The stage that begins with what this line says was done."""
    return next((stage for pattern, stage in _MARKS if pattern.search(text)), None)


def checks_cache(text: str) -> bool:
    """Whether this is a frame of the check whether the KV cache is large enough."""
    return _CHECKS.search(text) is not None
