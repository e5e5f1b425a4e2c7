"""A diagnosis as five lines that one can paste into a ticket, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from vllm_guard.command.mask import mask_text
from vllm_guard.explain.diagnose import Diagnosis
from vllm_guard.explain.fixes import Fix
from vllm_guard.render.devices import plain
from vllm_guard.render.document import SCHEMA_VERSION

_LONGEST_TEXT: Final = 240
_CAUSES: Final[Mapping[str, str]] = {
    "gate_free_memory": "not enough memory was free when vLLM started",
    "gate_cache_blocks": "weights and activations left nothing for the KV cache",
    "gate_one_sequence": "one sequence of the full length does not fit into the KV cache",
    "gate_mamba_blocks": "the cache has fewer state blocks than there may be sequences",
    "profiling_memory_released": "somebody else released memory while vLLM measured",
    "oom_at_context": "no memory was left for the CUDA context",
    "oom_at_load": "the weights do not fit into the memory that was free",
    "oom_at_profile": "the profile run needs more memory than was free",
    "oom_at_sampler_warmup": "the sampler's warm-up needs more memory than was free",
    "oom_at_graph_capture": "capturing CUDA graphs needs more memory than was free",
    "oom_at_kv_allocation": "the KV cache could not be allocated",
    "oom_at_runtime": "memory ran out after the server was ready",
    "host_out_of_memory": "the host or the container ran out of memory and a process was killed",
    "shared_memory_full": "the shared memory of the container (/dev/shm) is too small",
    "distributed_setup": "the processes could not find or reach each other",
    "no_gpu_visible": "the process sees no GPU",
    "device_selection_invalid": "the selection of devices cannot be used",
    "driver_too_old": "the driver is older than this build of CUDA",
    "driver_mismatch": "driver and libraries do not belong together",
    "gpu_arch_unsupported": "this build or backend is not made for this GPU",
    "dtype_unsupported": "this GPU cannot compute in this dtype",
    "batched_tokens_below_model_len": "without chunked prefill a batch must hold a whole sequence",
    "unknown_flag": "this release does not know a flag",
    "invalid_value": "a value was rejected",
    "port_in_use": "the port is in use",
    "interrupted": "the start was interrupted",
    "parallel_size_does_not_divide": "the parallel size does not divide the model",
    "model_not_found": "the model was not found",
    "model_access_denied": "access to the model was denied",
    "model_incomplete": "files of the model are missing or broken",
    "architecture_unsupported": "this release does not know the model's architecture",
    "package_incompatible": "Python packages do not fit together",
    "compiler_missing": "a compiler or its headers are missing",
    "cuda_reinit_in_fork": "CUDA was used before the process forked",
    "ipc_unsupported": "processes cannot talk to each other here",
    "log_incomplete": "the cause is not in this log, only what followed from it",
}
_ACTIONS: Final[Mapping[str, str]] = {
    "free_gpu": "free {value} on the GPU (vllm-guard gpus shows who holds it)",
    "free_host_memory": "free {value} of host memory",
    "quantize_or_smaller_model": "a quantized build or a smaller model",
    "rebalance_pipeline": "spread the layers differently (VLLM_PP_LAYER_PARTITION)",
    "retry_when_steady": "start again when nobody else is starting or ending on the GPU",
    "more_host_memory": "more memory for the host or the container",
    "fewer_build_jobs": "MAX_JOBS=1 for the first start",
    "enlarge_shm": "a larger /dev/shm (docker run --shm-size=16g, or --ipc=host)",
    "fix_cluster": "repair the cluster's resources",
    "fix_hostname": "a host name that the other processes can reach (VLLM_HOST_IP)",
    "read_nccl_debug": "start with NCCL_DEBUG=INFO and read the first warning",
    "fix_device_selection": "indices of cards that are there, as this release reads them",
    "fix_driver": "update the driver, or load the one that belongs to the libraries",
    "other_build": "a build of vLLM for this GPU",
    "other_backend": "another attention backend (--attention-backend)",
    "fix_flag": "correct or remove the flag",
    "fix_path": "correct the path or the name",
    "get_access": "ask for access, and give a token (HF_TOKEN)",
    "redownload": "download the model again",
    "other_checkpoint": "another checkpoint",
    "upgrade_packages": "a newer release of vLLM or of transformers",
    "fix_packages": "install the packages again, in the versions that vLLM pins",
    "install_compiler": "install a C compiler with its headers",
    "fix_sandbox": "a place where sockets and shared memory work",
    "wait": "wait until the GPU is free",
    "retry": "start again",
    "more_log": "the log of the engine or of the worker from its beginning, or where that just stops the kernel's (journalctl --dmesg)",
    "none": "nothing to mend",
}


def explain_lines(found: Diagnosis) -> Iterator[str]:
    """What happened, the line that proves it, its numbers, what helps and what does not; then what else the log holds."""
    if found.cause is None:
        yield from _nothing(found)
    else:
        yield f"vllm-guard: explain: {_CAUSES[found.cause]} ({found.cause}, {found.confidence})"
        yield f"  line {found.line}: {_shown(found.text)}"
        numbers = _numbers(found.numbers)
        if numbers:
            yield f"  {_shown(numbers)}"
        if found.fixes:
            yield f"  fix: {', or '.join(map(_action, found.fixes))}"
        if found.misleading:
            yield f"  not: {'; '.join(found.misleading)}"
    if found.also:
        yield f"  also: {', '.join(f'{also.cause} (line {also.line})' for also in found.also[:4])}"
    if found.earlier:
        yield f"  earlier starts in this log: {', '.join(f'{also.cause} (line {also.line})' for also in found.earlier[-4:])}"


def explain_document(found: Diagnosis) -> dict[str, Any]:
    """The same as JSON values; secrets are masked."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cause": found.cause,
        "stage": found.stage,
        "confidence": found.confidence,
        "evidence": {"line": found.line, "text": None if found.text is None else mask_text(found.text)},
        "numbers": {name: mask_text(value) if isinstance(value, str) else value for name, value in found.numbers.items()},
        "fixes": [asdict(fix) for fix in found.fixes],
        "misleading": list(found.misleading),
        "also": [asdict(also) for also in found.also],
        "vllm_version": found.vllm_version,
        "earlier": [asdict(also) for also in found.earlier],
    }


def _nothing(found: Diagnosis) -> Iterator[str]:
    if found.ready:
        yield "vllm-guard: explain: no failed start: the server became ready"
    elif found.unknown is not None:
        line, text = found.unknown
        yield f"vllm-guard: explain: no known cause; the first exception is in line {line}"
        yield f"  line {line}: {_shown(text)}"
    else:
        yield "vllm-guard: explain: no failure found in this log"


def _shown(text: str | None) -> str:
    clean = plain(mask_text((text or "").strip()))
    return clean if len(clean) <= _LONGEST_TEXT else f"{clean[:_LONGEST_TEXT]}..."


def _action(fix: Fix) -> str:
    if fix.action == "fix_flag" and fix.flag is not None:
        return f"without {fix.flag}" if fix.direction == "remove" else f"another {fix.flag}"
    known = _ACTIONS.get(fix.action)
    if known is not None:
        return known.replace("{value} of ", f"{fix.value} of " if fix.value else "").replace("{value}", fix.value or "memory")
    return " ".join(part for part in (_verb(fix), fix.flag or fix.action, fix.value) if part)


def _verb(fix: Fix) -> str:
    if fix.value is None and fix.action.startswith("fix_"):
        return "another"
    return {"remove": "without", "raise": "a larger" if fix.value is None else "", "lower": "a smaller" if fix.value is None else ""}.get(fix.direction, "")


def _numbers(numbers: Mapping[str, float | int | str]) -> str:
    """The numbers of the line in words; what they leave short, where both sides are there."""
    free, total, asked = numbers.get("free_gib"), numbers.get("total_gib"), numbers.get("requested_gib")
    needed, pool = numbers.get("needed_gib"), numbers.get("pool_gib")
    if isinstance(free, float | int) and isinstance(total, float | int) and isinstance(asked, float | int) and pool is None:
        return f"{free} of {total} GiB were free, {asked} GiB were asked for: short by {max(0.0, asked - free):.2f} GiB"
    if isinstance(needed, float | int) and isinstance(pool, float | int):
        return f"one sequence needs {needed} GiB, the KV cache has {pool} GiB: short by {max(0.0, needed - pool):.2f} GiB"
    return ", ".join(f"{name.removesuffix('_gib').replace('_', ' ')} {value}{' GiB' if name.endswith('_gib') else ''}" for name, value in numbers.items())
