"""vLLM's messages about starts that failed, by release: as its sources word them, with every number free. And what its releases put in front of a line."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

RELEASES: Final = (
    *("0.6.3.post1", "0.8.5.post1", "0.9.2", "0.10.2", "0.11.2", "0.12.0", "0.15.1"),
    *("0.18.1", "0.21.0", "0.24.0", "0.28.0", "0.30.0", "0.32.0", "0.33.0"),
)


@dataclass(frozen=True, slots=True)
class Wording:
    """One wording of one message in the releases from `first` to `last`. In `template` <name:kind> is a number that `explain` names so (kinds below; with
    an underscore in front it does not), and ¦ the place from which a message that is cut off is still told from all others.
    """

    message: str
    cause: str
    first: str
    last: str
    template: str

    def releases(self) -> tuple[str, ...]:
        """The releases that word it so."""
        return RELEASES[RELEASES.index(self.first) : RELEASES.index(self.last) + 1]

    def written(self, seed: int) -> Written:
        """The message with numbers of this seed."""
        dice, expected = random.Random(seed), {}  # noqa: S311 - no secret

        def number(match: re.Match[str]) -> str:
            text, value = _KINDS[match[2]](dice)
            if not match[1].startswith("_"):
                expected[match[1]] = value
            return text

        text = re.sub(r"<(\w+):(\w)>", number, self.template)
        return Written(text.replace("¦", ""), len(text.partition("¦")[0]) if "¦" in text else None, expected)


@dataclass(frozen=True, slots=True)
class Written:
    """A message, how much of it is enough, and the numbers in it."""

    text: str
    enough: int | None
    numbers: Mapping[str, float]


def _rounded(dice: random.Random) -> tuple[str, float]:
    value = dice.choice((3.5, 4.0, 0.02, 0.1, 23.64, 79.11, 139.8, 1.0, 500.25, 0.0, 1024.5))
    return str(value), value


def _fixed(dice: random.Random) -> tuple[str, float]:
    value = dice.choice((3.5, 4.0, 0.02, 23.64, 79.1, 139.8, 0.0))
    return f"{value:.2f}", value


def _float(dice: random.Random) -> tuple[str, float]:
    value = dice.choice((14.40167236328125, 1e-05, 2.384185791015625e-07, 79.0, 1.5e16, 0.1 + 0.2))
    return str(value), value


def _fraction(dice: random.Random) -> tuple[str, float]:
    value = dice.choice((0.9, 0.92, 0.5, 1.0, 0.9200000000000002, 1e-05, 0.05))
    return str(value), value


def _count(dice: random.Random) -> tuple[str, float]:
    value = dice.choice((1, 16, 512, 4096, 32_640, 131_072, 1_048_576))
    return str(value), value


def _bytes(dice: random.Random) -> tuple[str, float]:
    value = dice.choice((16_000_000_000, 84_987_740_160, 1))
    return str(value), value


def _size(dice: random.Random) -> tuple[str, float]:
    number, unit, power = dice.choice(((270.0, "MiB", 20), (2.0, "GiB", 30), (594.5, "MiB", 20), (20.0, "KiB", 10), (1.25, "GiB", 30)))
    return f"{number:.2f} {unit}", round(number * 2**power / 2**30, 4)


def _negative(dice: random.Random) -> tuple[str, float]:
    value = dice.choice((-0.45, -12.0, -1e-05))
    return str(value), value


# r rounded to two places without zeros at the end, f with two places, e any float as Python writes it, u a utilization, n a whole number, b bytes,
# s a size as torch writes it, m a negative float
_KINDS: Final = {"r": _rounded, "f": _fixed, "e": _float, "u": _fraction, "n": _count, "b": _bytes, "s": _size, "m": _negative}

_FREE_END: Final = "Decrease GPU memory utilization or reduce GPU memory used by other processes."
_ONE: Final = (
    "ValueError: To serve at least one¦ request with the {model} max seq len (<max_model_len:n>), (<needed_gib:{kind}> GiB KV cache is needed, which is larger "
)
_ONE_POOL: Final = "than the available KV cache memory (<pool_gib:{kind}> GiB). Based on the available memory, "
_ESTIMATE: Final = "the estimated maximum model length is <estimate_tokens:n>. "
_ONE_END: Final = "Try increasing `gpu_memory_utilization` {beside}or decreasing `max_model_len` when initializing the engine."


def _one_sequence() -> Iterator[Wording]:
    for first, last, model, kind in (
        ("0.8.5.post1", "0.12.0", "models's", "f"),
        ("0.15.1", "0.21.0", "models's", "r"),
        ("0.24.0", "0.33.0", "model's", "r"),
    ):
        for estimate in ("", _ESTIMATE):
            beside = "(which also controls CPU memory on the CPU backend) " if first == "0.24.0" else ""
            template = (_ONE + _ONE_POOL).format(model=model, kind=kind) + estimate + _ONE_END.format(beside=beside)
            yield Wording("max_len_gate", "gate_one_sequence", first, last, template)


def _torch_oom() -> Iterator[Wording]:
    rest = (
        " out of memory. Tried to allocate <tried_gib:s>. GPU <gpu:n> has a total capacity of <total_gib:s> of which <free_gib:s> is free. "
        "Process 1234 has 1.20 GiB memory in use. Including non-PyTorch memory, this process has 2.20 GiB memory in use. Of the allocated memory 2.00 GiB "
        "is allocated by PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated."
    )
    yield Wording("torch_oom", "oom_at_load", "0.6.3.post1", "0.6.3.post1", f"torch.cuda.OutOfMemoryError:¦ CUDA{rest}")
    yield Wording("torch_oom", "oom_at_load", "0.8.5.post1", "0.33.0", f"torch.OutOfMemoryError:¦ CUDA{rest}")
    yield Wording("torch_oom", "oom_at_load", "0.8.5.post1", "0.33.0", f"torch.OutOfMemoryError:¦ HIP{rest}")


_PROFILING: Final = "AssertionError: Error in memory profiling.¦ Initial "
_SHARING: Final = "other processes sharing the same container release GPU memory while vLLM is profiling during initialization."
_CLEANED: Final = "the GPU memory was not properly cleaned up before initializing the vLLM instance."
_WARMING: Final = "Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
_BLOCKS: Final = "ValueError: No available memory¦ for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine"
_BESIDE: Final = " (this flag also controls CPU memory reservation on the CPU backend, despite its name). See https://docs.vllm.ai/en/latest/"

FAILURES: Final = (
    Wording(
        *("gate_free_memory", "gate_free_memory", "0.9.2", "0.12.0"),
        "ValueError: Free memory on device¦ (<free_gib:r>/<total_gib:r> GiB) on startup is less than desired GPU memory utilization "
        f"(<utilization:u>, <requested_gib:r> GiB). {_FREE_END}",
    ),
    Wording(
        *("gate_free_memory", "gate_free_memory", "0.15.1", "0.33.0"),
        "ValueError: Free memory on device¦ cuda:0 (<free_gib:r>/<total_gib:r> GiB) on startup is less than desired GPU memory utilization "
        f"(<utilization:u>, <requested_gib:r> GiB). {_FREE_END}",
    ),
    Wording(
        *("gate_external_weights_exceed", "gate_free_memory", "0.32.0", "0.33.0"),
        "ValueError: Externally held weights¦ on device cuda:0 (<external_gib:r>/<total_gib:r> GiB) exceed the desired GPU memory utilization "
        "(<utilization:u>, <requested_gib:r> GiB). Increase GPU memory utilization or reduce GPU memory used by other processes.",
    ),
    Wording(
        *("gate_external_weights_free", "gate_free_memory", "0.32.0", "0.33.0"),
        "ValueError: Free memory on device¦ cuda:1 (<free_gib:r>/<total_gib:r> GiB) on startup is less than the engine's budget after excluding external "
        f"process's weights (<utilization:u>, <requested_gib:r> GiB). {_FREE_END}",
    ),
    Wording("util_gt_one", "invalid_value", "0.6.3.post1", "0.10.2", "ValueError: GPU memory utilization must be less¦ than 1.0. Got <value:e>."),
    Wording(
        *("util_pydantic", "invalid_value", "0.11.2", "0.33.0"),
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig\ngpu_memory_utilization\n"
        "  Input should be less than or equal to 1 [type=less_than_equal, input_value=<_value:e>, input_type=float]",
    ),
    Wording(
        *("profiling_assert", "profiling_memory_released", "0.6.3.post1", "0.8.5.post1"),
        f"{_PROFILING}free memory <initial_bytes:b>, current free memory <current_bytes:b>. This happens when {_CLEANED}",
    ),
    Wording(
        *("profiling_assert", "profiling_memory_released", "0.8.5.post1", "0.10.2"),
        f"{_PROFILING}used memory <initial_bytes:b>, currently used memory <current_bytes:b>. This happens when {_CLEANED}",
    ),
    Wording(
        *("profiling_assert", "profiling_memory_released", "0.9.2", "0.12.0"),
        f"{_PROFILING}free memory <initial_gib:e> GiB, current free memory <current_gib:e> GiB. This happens when {_SHARING}",
    ),
    Wording(
        *("profiling_assert", "profiling_memory_released", "0.15.1", "0.33.0"),
        f"{_PROFILING}free memory <initial_gib:r> GiB, current free memory <current_gib:r> GiB. This happens when {_SHARING}",
    ),
    Wording(
        *("load_oom", "oom_at_load", "0.15.1", "0.33.0"),
        "RuntimeError: Failed to load model - not enough GPU¦ memory. Try lowering --gpu-memory-utilization to free memory for weights, increasing "
        "--tensor-parallel-size, or using --quantization. (original error: CUDA out of memory. Tried to allocate <tried_gib:s>.)",
    ),
    *_torch_oom(),
    Wording("cuda_oom_raw", "oom_at_load", "0.6.3.post1", "0.33.0", "RuntimeError: CUDA error: out of memory"),
    Wording(
        *("cuda_oom_raw", "oom_at_load", "0.6.3.post1", "0.33.0"),
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED¦ when calling `cublasCreate(handle)`",
    ),
    Wording(
        *("sampler_warmup_oom", "oom_at_sampler_warmup", "0.8.5.post1", "0.33.0"),
        f"RuntimeError: CUDA out of memory occurred when¦ warming up sampler with <requests:n> dummy requests. {_WARMING}",
    ),
    Wording(
        *("pooler_warmup_oom", "oom_at_sampler_warmup", "0.9.2", "0.33.0"),
        f"RuntimeError: CUDA out of memory occurred when¦ warming up pooler (task='embed') with <requests:n> dummy requests. {_WARMING}",
    ),
    Wording(
        *("pooler_warmup_oom", "oom_at_sampler_warmup", "0.9.2", "0.33.0"),
        f"RuntimeError: CUDA out of memory occurred when¦ warming up pooler with <requests:n> dummy requests. {_WARMING}",
    ),
    Wording(
        *("mm_ipc_too_big", "gate_cache_blocks", "0.28.0", "0.33.0"),
        "ValueError: frontend multimodal GPU decoding¦ reserves <reserved_gib:r> GiB (4.0 GiB raw-frame budget, 0.0 GiB decoder cache budget), but only "
        "<pool_gib:r> GiB is available for the KV cache. Reduce mm_ipc_gpu_memory_gb or raise gpu_memory_utilization.",
    ),
    Wording("no_cache_blocks", "gate_cache_blocks", "0.6.3.post1", "0.12.0", f"{_BLOCKS}."),
    Wording("no_cache_blocks", "gate_cache_blocks", "0.15.1", "0.33.0", f"{_BLOCKS}{_BESIDE}"),
    *_one_sequence(),
    Wording(
        *("v0_max_len_gate", "gate_one_sequence", "0.6.3.post1", "0.10.2"),
        "ValueError: The model's max seq len (<max_model_len:n>) is larger than¦ the maximum number of tokens that can be stored in KV cache "
        "(<estimate_tokens:n>). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
    ),
    Wording(
        *("autofit_impossible", "gate_cache_blocks", "0.15.1", "0.33.0"),
        "ValueError: Cannot auto-fit max_model_len:¦ not enough GPU memory available to serve even a single token. Try increasing `gpu_memory_utilization`.",
    ),
    Wording(
        *("mnbt_lt_maxlen", "batched_tokens_below_model_len", "0.6.3.post1", "0.33.0"),
        "ValueError: max_num_batched_tokens (<max_num_batched_tokens:n>) is smaller than max_model_len (<max_model_len:n>).¦ This effectively limits the "
        "maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences.",
    ),
    Wording(
        *("mnbt_lt_seqs", "invalid_value", "0.6.3.post1", "0.33.0"),
        "ValueError: max_num_batched_tokens (<max_num_batched_tokens:n>) must be greater than or equal to max_num_seqs (<max_num_seqs:n>).",
    ),
    Wording(
        *("mm_chunk_too_small", "invalid_value", "0.8.5.post1", "0.33.0"),
        "ValueError: Chunked MM input disabled but max_tokens_per_mm_item (<item_tokens:n>) is larger than max_num_batched_tokens "
        "(<max_num_batched_tokens:n>).¦ Please increase max_num_batched_tokens.",
    ),
    Wording(
        *("mamba_align_too_small", "invalid_value", "0.18.1", "0.24.0"),
        "AssertionError: In Mamba cache align mode, block_size (<block_size:n>) must be <= max_num_batched_tokens (<given_tokens:n>).",
    ),
    Wording(
        *("spec_slots", "invalid_value", "0.18.1", "0.33.0"),
        "ValueError: max_num_scheduled_tokens is set to <_slots:n> based on the speculative decoding settings, which does not allow any tokens to be "
        "scheduled.¦ Increase max_num_batched_tokens.",
    ),
    Wording(
        *("max_len_gt_derived", "invalid_value", "0.6.3.post1", "0.33.0"),
        "ValueError: User-specified max_model_len (<max_model_len:n>) is greater than the derived max_model_len "
        "(max_position_embeddings=<derived_tokens:n> or¦ model_max_length=None in model's config.json). This may lead to incorrect model outputs.",
    ),
    Wording(
        *("world_gt_gpus", "device_selection_invalid", "0.15.1", "0.33.0"),
        "ValueError: World size (<world_size:n>) is larger than the number of available GPUs (<gpus:n>)¦ in this node. If this is intentional",
    ),
    Wording(
        "local_rank_oob", "device_selection_invalid", "0.11.2", "0.33.0", "AssertionError: DP adjusted local rank <_rank:n> is out of bounds¦ for 4 devices."
    ),
    Wording("local_rank_oob", "device_selection_invalid", "0.11.2", "0.33.0", "AssertionError: DP adjusted local rank <_rank:n> is out of bounds. "),
    Wording(
        *("cpu_gate", "gate_free_memory", "0.21.0", "0.32.0"),
        "ValueError: Available memory on node 0 (<free_gib:r>/<total_gib:r> GiB) on startup¦ is less than desired CPU memory utilization "
        "(<utilization:u>, <requested_gib:r> GiB). On the CPU backend, the `--gpu-memory-utilization` flag",
    ),
    Wording(
        *("cpu_kv_gate", "oom_at_kv_allocation", "0.21.0", "0.33.0"),
        "ValueError: Available memory on node 0 (<free_gib:r>/<total_gib:r> GiB) on kv cache allocation¦ is less than requested memory for kv "
        "(<pool_gib:r> GiB). Decrease --kv-cache-memory-bytes",
    ),
    Wording(
        *("cpu_kv_gate", "oom_at_kv_allocation", "0.21.0", "0.33.0"),
        "ValueError: Available memory on node 0 (<free_gib:r>/<total_gib:r> GiB) on kv cache allocation¦ is less than requested memory for kv "
        "(<pool_gib:m>/<requested_gib:r> GiB). Reduce CPU memory used by other processes.",
    ),
    Wording(
        *("cpu_footprint_gate", "gate_cache_blocks", "0.33.0", "0.33.0"),
        "ValueError: The worker already uses¦ <used_gib:r> GiB (model weights and runtime), more than the <requested_gib:r> GiB of CPU memory reserved for "
        "it on node 0, leaving none for the KV cache.",
    ),
)

# These say that something failed, and not what: alone they are the end of a log whose beginning is missing.
ENDS: Final = (
    Wording("engine_core_failed", "log_incomplete", "0.8.5.post1", "0.33.0", "RuntimeError: Engine core initialization failed. See root cause above."),
    Wording("engine_core_start", "log_incomplete", "0.8.5.post1", "0.33.0", "EngineCore failed to start."),
    Wording("worker_start", "log_incomplete", "0.8.5.post1", "0.33.0", "WorkerProc failed to start."),
    Wording(
        *("worker_init_failed", "log_incomplete", "0.8.5.post1", "0.33.0"),
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.",
    ),
    Wording(
        *("v0_engine_failed", "log_incomplete", "0.6.3.post1", "0.10.2"),
        "RuntimeError: Engine process failed to start. See stack trace for the root cause.",
    ),
)


def _says(message: str, first: str, last: str, template: str) -> Wording:
    return Wording(message, "", first, last, template)


# What a start says that works: none of it is a cause.
INFORMATION: Final = (
    _says(
        *("external_weights_info", "0.32.0", "0.33.0"),
        "Weights are held outside this process: of the <_a:r> GiB utilization budget, <_b:r> GiB is externally held and <_c:r> GiB remains for the "
        "engine's own allocations.",
    ),
    _says(
        *("rocm_profiling_fallback", "0.30.0", "0.33.0"),
        "Free memory grew by <_d:r> GiB during profiling (initial <_i:r> GiB, current <_c:r> GiB). Sizing the KV cache from the <_r:r> GiB torch reserved "
        "instead of the profiling difference.",
    ),
    _says("weights_loaded", "0.8.5.post1", "0.33.0", "Model loading took <_a:r> GiB memory and <_s:e> seconds"),
    _says("weights_loaded_v063", "0.6.3.post1", "0.6.3.post1", "Loading model weights took <_a:f> GB"),
    _says(
        *("mm_encoder_profile", "0.8.5.post1", "0.33.0"),
        "Encoder cache will be initialized with a budget of <_n:n> tokens, and profiled with 1 image items of the maximum feature size.",
    ),
    _says("init_free_debug", "0.10.2", "0.33.0", "Initial free memory: <_a:r> GiB; Requested memory: <_u:u> (util), <_r:r> GiB"),
    _says("init_free_debug_092", "0.9.2", "0.9.2", "Initial free memory: <_a:f> GiB, free memory: <_b:f> GiB, requested GPU memory: <_c:f> GiB"),
    _says("free_after_profiling_debug", "0.10.2", "0.33.0", "Free memory after profiling: <_a:r> GiB (total), <_b:r> GiB (within requested)"),
    _says(
        *("profiling_result_debug", "0.9.2", "0.33.0"),
        "Memory profiling takes 3.21 seconds. Total non KV cache memory: <_a:r>GiB; torch peak memory increase: <_b:r>GiB; total consumed (from "
        "mem_get_info): <_c:r>GiB; weights memory: <_d:r>GiB.",
    ),
    _says(
        *("v0_profiling_report", "0.8.5.post1", "0.10.2"),
        "Memory profiling takes 1.23 seconds\nthe current vLLM instance can use total_gpu_memory (<_a:f>GiB) x gpu_memory_utilization (0.90) = "
        "<_b:f>GiB\nmodel weights take <_c:f>GiB; non_torch_memory takes 0.10GiB; PyTorch activation peak memory takes <_d:f>GiB; the rest of the memory "
        "reserved for KV Cache is <_e:f>GiB.",
    ),
    _says("available_kv", "0.9.2", "0.33.0", "Available KV cache memory: 4<_a:f> GiB"),
    _says(
        *("kv_bytes_reserved", "0.10.2", "0.33.0"),
        "Initial free memory <_a:e> GiB, reserved <_b:f>GiB memory for KV Cache as specified by kv_cache_memory_bytes config and skipped memory profiling.",
    ),
    _says(
        *("startup_plan_applied", "0.28.0", "0.33.0"),
        "Applying persisted startup plan (fingerprint ab12cd34ef567890): kv_cache_memory_bytes=<_a:b> (<_b:r> GiB), recorded free-memory baseline <_c:f> "
        "GiB, current <_d:f> GiB. Memory profiling will be skipped.",
    ),
    _says(
        *("startup_plan_refused", "0.28.0", "0.33.0"),
        "Startup plan not applied: current free memory (<_a:f> GiB) is below the recorded baseline (<_b:f> GiB); falling back to full memory profiling.",
    ),
    _says(
        *("mm_ipc_reserved", "0.28.0", "0.33.0"),
        "Reserving <_a:r> GiB of GPU memory for frontend multimodal decoding (<_b:r> GiB raw-frame semaphore budget, <_c:r> GiB decoder+CUDA-context across"
        " 1 API server(s) @ 0.5 GiB/server); KV cache memory reduced to <_d:r> GiB.",
    ),
    _says("cudagraph_estimate", "0.18.1", "0.33.0", "Estimated CUDA graph memory: <_a:r> GiB total"),
    _says(
        *("autofit_reduced", "0.15.1", "0.33.0"),
        "Auto-fit max_model_len: reduced from 131072 to <_n:n> to fit in available GPU memory (<_a:r> GiB available for KV cache)",
    ),
    _says("autofit_full", "0.15.1", "0.33.0", "Auto-fit max_model_len: full model context length <_n:n> fits in available KV cache memory"),
    _says("num_blocks_override", "0.6.3.post1", "0.33.0", "Overriding num_gpu_blocks=<_a:n> with num_gpu_blocks_override=<_b:n>"),
    _says("kv_padding_layers", "0.9.2", "0.33.0", "Add 1 padding layers, may waste at most <_a:f>% KV cache memory"),
    _says("hybrid_manager_off", "0.9.2", "0.33.0", "Hybrid KV cache manager is disabled for this hybrid model, This means we do not enable any optimizations"),
    _says("kv_size", "0.8.5.post1", "0.33.0", "GPU KV cache size: 123,456 tokens, Maximum concurrency for 40,960 tokens per request: <_a:f>x"),
    _says("v0_blocks", "0.6.3.post1", "0.10.2", "# GPU blocks: <_a:n>, # CPU blocks: <_b:n>"),
    _says("graph_capture", "0.6.3.post1", "0.33.0", "Graph capturing finished in 12 secs, took <_a:f> GiB"),
    _says("cudagraph_pool", "0.18.1", "0.33.0", "CUDA graph pool memory: <_a:r> GiB (actual), <_b:r> GiB (estimated), difference: <_c:r> GiB (11.1%)."),
    _says(
        *("kv_bytes_suggestion", "0.10.2", "0.33.0"),
        "Free memory on device (<_a:r>/<_b:r> GiB) on startup. Desired GPU memory utilization is (<_u:u>, <_c:r> GiB). Actual usage is <_d:r> GiB for "
        "consumed memory (weights + non-torch), <_e:r> GiB for peak activation, and <_f:r> GiB for CUDAGraph memory. Replace gpu_memory_utilization config "
        "with `--kv-cache-memory=<_g:b>` (<_h:r> GiB) to fit into requested memory, or `--kv-cache-memory=<_i:b>` (<_j:r> GiB) to fully utilize gpu memory."
        " Current kv cache memory in use is <_k:r> GiB.",
    ),
    _says("cudagraph_profile_groups", "0.18.1", "0.33.0", "Profiling CUDA graph memory: PIECEWISE=51 (largest=512), FULL=35 (largest=256)"),
    _says(
        *("cudagraph_profile_enabled", "0.18.1", "0.33.0"),
        "CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization=0.9200 is equivalent to "
        "--gpu-memory-utilization=0.9010 without CUDA graph memory profiling. To maintain the same effective KV cache size as before, increase "
        "--gpu-memory-utilization to 0.9390. To disable, set VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0.",
    ),
    _says(
        *("cudagraph_profile_off", "0.18.1", "0.33.0"),
        "In v0.19, CUDA graph memory profiling will be enabled by default (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1), which more accurately accounts for "
        "CUDA graph memory during KV cache allocation.",
    ),
    _says("hybrid_block_size", "0.10.2", "0.33.0", "Setting attention block size to <_n:n> tokens to ensure that attention page size is >= mamba page size."),
    _says("max_concurrency", "0.6.3.post1", "0.33.0", "Maximum concurrency for 40,960 tokens per request: <_a:f>x"),
    _says("v2_runner", "0.18.1", "0.33.0", "Using V2 Model Runner"),
    _says("cpu_offload", "0.18.1", "0.33.0", "Total CPU offloaded parameters: <_a:r>"),
    _says("chunked_prefill", "0.6.3.post1", "0.33.0", "Chunked prefill is enabled with max_num_batched_tokens=<_n:n>."),
    _says(
        *("mnbt_gt_product", "0.9.2", "0.33.0"),
        "max_num_batched_tokens (<_n:n>) exceeds max_num_seqs * max_model_len (<_m:n>). This may lead to unexpected behavior.",
    ),
    _says(
        *("mnbt_raised_for_mm", "0.24.0", "0.33.0"),
        "Raising max_num_batched_tokens from <_a:n> to <_b:n> to accommodate 'video' input for prefix-LM model google/gemma-4.",
    ),
    _says("dup_keys", "0.9.2", "0.33.0", "Found duplicate keys --gpu-memory-utilization"),
    _says("sleep_freed", "0.8.5.post1", "0.33.0", "Sleep mode freed <_a:r> GiB memory, <_b:r> GiB memory is still in use."),
    _says(
        *("cpu_kv_set", "0.21.0", "0.33.0"),
        "Auto set (<_a:r>/<_b:r>) GiB for KV cache on node 0, with <_c:r> GiB requested memory for the worker. <_d:r> GiB memory was consumed by non-kv "
        "usages.",
    ),
    _says("offloader_set", "0.18.1", "0.33.0", "Offloader set to UVAOffloader"),
    _says(
        *("prefetch_offload", "0.18.1", "0.33.0"),
        "[PrefetchOffloader] Initialized 14 modules. Total GPU memory saved: 5.1234 GB, Static buffer pool: 0.3660 GB (group_size=2, num_in_group=1)",
    ),
    _says("app_ready", "0.6.3.post1", "0.33.0", "Application startup complete."),
)
