"""What helps, from the numbers in the log: at most two actions, least harmful first, and what not to do. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from vllm_guard.explain.attempt import Attempt
from vllm_guard.explain.signatures import Signature

Direction = Literal["lower", "raise", "set", "remove", "none"]
Numbers = Mapping[str, float | int | str]
# Below this share of the card free, somebody else holds it; above, what was asked is too much by a little.
_SOMEBODY_ELSE_BELOW: Final = 0.75
_HIGHEST_UTILIZATION: Final = 0.95
_LARGE_BATCH: Final = 8192
_TOKENS_OF_A_BLOCK: Final = 16
_MOST_FIXES: Final = 2
_LEAST_HOLDER: Final = 0.2
_MOST_HOLDER: Final = 0.9
_MOST_WEIGHTS: Final = 0.8  # of the card: what is left is less than a batch needs
_ROUNDED_GIB: Final = 0.005  # vLLM prints hundredths of a GiB: so much may be missing
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Fix:
    """One action of the vocabulary; the flag that it turns, where there is one, and the value that follows from the numbers."""

    action: str
    flag: str | None
    direction: Direction
    value: str | None


_FLAGS: Final[dict[str, tuple[str | None, Direction]]] = {
    "lower_utilization": ("--gpu-memory-utilization", "lower"),
    "raise_utilization": ("--gpu-memory-utilization", "raise"),
    "lower_model_len": ("--max-model-len", "lower"),
    "lower_num_seqs": ("--max-num-seqs", "lower"),
    "lower_batched_tokens": ("--max-num-batched-tokens", "lower"),
    "raise_batched_tokens": ("--max-num-batched-tokens", "raise"),
    "enable_chunked_prefill": ("--enable-chunked-prefill", "set"),
    "lower_kv_bytes": ("--kv-cache-memory-bytes", "lower"),
    "raise_kv_bytes": ("--kv-cache-memory-bytes", "raise"),
    "remove_override": ("--num-gpu-blocks-override", "remove"),
    "raise_cpu_kv_space": ("VLLM_CPU_KVCACHE_SPACE", "raise"),
    "limit_multimodal": ("--limit-mm-per-prompt", "set"),
    "enforce_eager": ("--enforce-eager", "set"),
    "fewer_graphs": ("--max-cudagraph-capture-size", "lower"),
    "more_gpus": ("--tensor-parallel-size", "raise"),
    "fix_parallel_size": ("--tensor-parallel-size", "set"),
    "fix_port": ("--port", "set"),
    "set_dtype": ("--dtype", "set"),
    "fix_device_selection": ("CUDA_VISIBLE_DEVICES", "set"),
    "use_spawn": ("VLLM_WORKER_MULTIPROC_METHOD", "set"),
}
_VALUES: Final = {"set_dtype": "half", "use_spawn": "spawn"}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a log says of one start that failed."""

    numbers: Numbers
    attempt: Attempt

    def number(self, name: str) -> float | None:
        """The number of this name in the line that proves the cause."""
        value = self.numbers.get(name)
        return float(value) if isinstance(value, int | float) else None

    def setting(self, name: str) -> float | None:
        """The value of this setting where the log tells what was given."""
        text = self.attempt.settings.get(name, "")
        factor = {"k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20, "g": 10**9, "G": _GIB}.get(text[-1:], 1)
        try:
            return float(text.rstrip("kKmMgG.")) * factor
        except ValueError:
            return None


def remedies(cause: str, signature: Signature | None, numbers: Numbers, attempt: Attempt) -> tuple[tuple[Fix, ...], tuple[str, ...]]:
    """The fixes, and what misleads: what vLLM's own words or a first thought would have one do."""
    by_numbers = _BY_NUMBERS.get(cause)
    fixes = by_numbers(_Seen(numbers, attempt)) if by_numbers is not None else []
    if signature is not None and signature.fixes:
        fixes = [_about_flag(signature.cause, numbers) if action == "fix_flag" else _fix(action, _value_of(action, numbers)) for action in signature.fixes]
    return tuple(fixes[:_MOST_FIXES]), tuple(_misleading(cause, fixes))


def _fix(action: str, value: str | None = None) -> Fix:
    flag, direction = _FLAGS.get(action, (None, "none"))
    return Fix(action, flag, direction, value if value is not None else _VALUES.get(action))


def _value_of(action: str, numbers: Numbers) -> str | None:
    """The value that a signature's own numbers give its fix."""
    match action:
        case "lower_model_len":
            return _whole(numbers.get("derived_tokens"))
        case "raise_batched_tokens":
            return _whole(next((numbers[name] for name in ("item_tokens", "block_size", "max_model_len", "max_num_seqs") if name in numbers), None))
        case "lower_num_seqs":
            return _whole(numbers.get("max_num_batched_tokens"))
        case "fix_parallel_size":
            return _divisor(numbers.get("heads"), numbers.get("tensor_parallel_size"))
        case _:
            return None


def _about_flag(cause: str, numbers: Numbers) -> Fix:
    """The flag that the message names: unknown ones go, of others the value is wrong."""
    words = " ".join(str(numbers.get(name, "")) for name in ("flag", "option", "arguments")).split()
    flag = next((word.partition("=")[0].partition("/")[0] for word in words if word.startswith("-")), None)
    known = flag is None or cause != "unknown_flag" or "option" in numbers
    return Fix("fix_flag", flag, "none" if flag is None else "set" if known else "remove", None)


def _whole(number: float | str | None) -> str | None:
    return str(int(number)) if isinstance(number, int | float) else None


def _divisor(heads: float | str | None, size: float | str | None) -> str | None:
    """The largest parallel size below the one that was asked for that divides the heads."""
    if not isinstance(heads, float | int) or not isinstance(size, float | int):
        return None
    return next((str(smaller) for smaller in range(int(min(size, heads)), 0, -1) if heads % smaller == 0), None)


def _free_memory(seen: _Seen) -> list[Fix]:
    """Far too little free: somebody else holds the card. A little too little: ask for less."""
    free, total, requested = (seen.number(name) for name in ("free_gib", "total_gib", "requested_gib"))
    share = _share(free, total)
    less = None if share is None else _fix("lower_utilization", share)
    missing = None if free is None or requested is None else f"{max(0.0, requested - free):.2f} GiB"
    freed = _fix("free_host_memory" if seen.attempt.cpu else "free_gpu", missing)
    if less is None:
        return [freed]
    held = free is not None and total is not None and (free / total < _SOMEBODY_ELSE_BELOW or seen.attempt.holder_named)
    return [freed] if held else [less, freed]


def _share(part_gib: float | None, total_gib: float | None) -> str | None:
    """The largest fraction in hundredths that asks for no more than the part, both as vLLM prints them; None where that is nothing."""
    if part_gib is None or not total_gib:
        return None
    hundredths = math.floor((part_gib - _ROUNDED_GIB) / (total_gib + _ROUNDED_GIB) * 100)
    return f"{hundredths / 100:.2f}" if hundredths > 0 else None


def _cache_blocks(seen: _Seen) -> list[Fix]:
    """Nothing is left beside weights and activations: which of them can give way."""
    utilization, batch = seen.setting("gpu_memory_utilization"), seen.setting("max_num_batched_tokens")
    if seen.attempt.cpu:
        if "kv_cache_memory_bytes" in seen.attempt.settings:
            return [_fix("raise_kv_bytes")]  # beside it no fraction counts
        return [_fix("raise_cpu_kv_space", "4"), _fix("raise_utilization")]
    if seen.attempt.holder_named or _is_whole_device(seen.attempt.version):
        return [_fix("free_gpu"), _fix("raise_utilization")]
    fixes = []
    if batch is not None and batch >= _LARGE_BATCH:
        fixes.append(_fix("lower_batched_tokens", "2048"))
    if utilization is None or utilization < _HIGHEST_UTILIZATION - 0.05:
        fixes.append(_fix("raise_utilization", f"{_HIGHEST_UTILIZATION}"))
    return [*fixes, _fix("quantize_or_smaller_model"), _fix("more_gpus")]


def _one_sequence(seen: _Seen) -> list[Fix]:
    """The printed estimate; without one what follows from need and pool."""
    estimate, length, needed, pool = (seen.number(name) for name in ("estimate_tokens", "max_model_len", "needed_gib", "pool_gib"))
    if estimate is None and length and needed and pool is not None:
        estimate = length * max(pool - _ROUNDED_GIB, 0.0) / (needed + _ROUNDED_GIB) // _TOKENS_OF_A_BLOCK * _TOKENS_OF_A_BLOCK
    fixes = [_fix("lower_model_len", str(int(estimate)) if estimate else None)]
    if "num_gpu_blocks_override" in seen.attempt.settings:
        fixes.append(_fix("remove_override"))
    elif "kv_cache_memory_bytes" in seen.attempt.settings:
        fixes.append(_fix("raise_kv_bytes", None if needed is None else str(math.ceil((needed + _ROUNDED_GIB) * 1.05 * _GIB))))
    elif seen.setting("pipeline_parallel_size") is not None:
        fixes.append(_fix("rebalance_pipeline"))
    return fixes


def _mamba_blocks(seen: _Seen) -> list[Fix]:
    return [_fix("lower_num_seqs", _whole(seen.numbers.get("blocks")))]


def _at_load(seen: _Seen) -> list[Fix]:
    """Weights that do not fit; somebody else's memory where another process holds a good part of the card, and not nearly all as this one may."""
    total, holder = seen.number("total_gib"), seen.number("holder_gib")
    if holder is not None and total is not None and _LEAST_HOLDER * total < holder < _MOST_HOLDER * total:
        return [_fix("free_gpu", f"{holder:.2f} GiB"), _fix("more_gpus")]
    return [_fix("quantize_or_smaller_model"), _fix("more_gpus")]


def _at_profile(seen: _Seen) -> list[Fix]:
    """A batch or so many sequences that were given are the first to go; then the model is too large."""
    batch, sequences = seen.setting("max_num_batched_tokens"), seen.setting("max_num_seqs")
    weights, total = seen.number("weights_gib"), seen.number("total_gib")
    if weights and total and weights > 0.8 * total:
        return [_fix("quantize_or_smaller_model"), _fix("more_gpus")]
    fixes = [_fix("lower_batched_tokens", "2048")] if batch is not None and batch >= _LARGE_BATCH else []
    return [*fixes, _fix("lower_num_seqs", _half(sequences)), _fix("lower_batched_tokens", _half(batch))]


def _at_sampler(seen: _Seen) -> list[Fix]:
    requests = seen.number("requests") or seen.setting("max_num_seqs")
    return [_fix("lower_num_seqs", _half(requests)), _less(seen)]


def _at_graphs(seen: _Seen) -> list[Fix]:
    return [_fix("enforce_eager"), _less(seen)]


def _at_cache(seen: _Seen) -> list[Fix]:
    """The pool itself: what the fraction leaves of the host's memory, bytes that were given, or a card that others hold."""
    pool, free, total, requested = (seen.number(name) for name in ("pool_gib", "free_gib", "total_gib", "requested_gib"))
    if pool is not None and requested is not None:
        used = requested - pool
        if pool > 0:
            return [_fix("lower_utilization", None if free is None else _share(free + used - 2 * _ROUNDED_GIB, total)), _fix("free_host_memory")]
        enough = free is not None and free > used
        return [_fix("raise_utilization", _share(free, total) if enough else None), _fix("free_host_memory")]
    if seen.attempt.cpu or "kv_cache_memory_bytes" in seen.attempt.settings:
        return [_fewer_kv_bytes(seen, pool, free), _fix("free_host_memory" if seen.attempt.cpu else "free_gpu")]
    return [_fix("free_gpu"), _less(seen)] if seen.attempt.holder_named else [_less(seen), _fix("free_gpu")]


def _fewer_kv_bytes(seen: _Seen, pool_gib: float | None, free_gib: float | None) -> Fix:
    """Nine tenths of what is free, for the flag or for the variable that silently wins over it (platforms/cpu.py): the pool tells which it was."""
    given = seen.setting("kv_cache_memory_bytes")
    of_flag = given is not None and pool_gib is not None and abs(given / _GIB - pool_gib) <= 2 * _ROUNDED_GIB
    if pool_gib is None or of_flag or not seen.attempt.cpu or not seen.attempt.settings:
        return _fix("lower_kv_bytes", None if free_gib is None else str(int(free_gib * 0.9 * _GIB)))
    whole = 0 if free_gib is None else int(free_gib * 0.9)
    return replace(_fix("lower_kv_bytes", str(whole) if whole else None), flag="VLLM_CPU_KVCACHE_SPACE")


def _at_runtime(seen: _Seen) -> list[Fix]:
    return [_less(seen), _fix("lower_num_seqs", _half(seen.setting("max_num_seqs")))]


def _less(seen: _Seen) -> Fix:
    """Five hundredths less of the card than was asked."""
    utilization = seen.setting("gpu_memory_utilization")
    return _fix("lower_utilization", None if utilization is None else f"{max(0.05, utilization - 0.05):.2f}")


def _half(number: float | None) -> str | None:
    return None if not number or number <= 1 else str(int(number) // 2)


def _is_whole_device(version: str | None) -> bool:
    """Whether this release counts what others hold against the fraction (0.8 of the V1 engine)."""
    return version is not None and version.split(".")[:2] == ["0", "8"]


def _misleading(cause: str, fixes: list[Fix]) -> list[str]:
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


_BY_NUMBERS: Final[dict[str, Callable[[_Seen], list[Fix]]]] = {
    "gate_free_memory": _free_memory,
    "gate_cache_blocks": _cache_blocks,
    "gate_one_sequence": _one_sequence,
    "gate_mamba_blocks": _mamba_blocks,
    "oom_at_load": _at_load,
    "oom_at_profile": _at_profile,
    "oom_at_sampler_warmup": _at_sampler,
    "oom_at_graph_capture": _at_graphs,
    "oom_at_kv_allocation": _at_cache,
    "oom_at_context": lambda _: [_fix("free_gpu"), _fix("wait")],
    "oom_at_runtime": _at_runtime,
}
