"""What helps, from the numbers in the log: at most two actions, least harmful first, and what not to do. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from vllm_guard.explain.attempt import Attempt
from vllm_guard.explain.fixes import GIB, LARGE_BATCH, ROUNDED_GIB, Fix, Numbers, Seen, fix, share, whole
from vllm_guard.explain.misleading import misleading
from vllm_guard.explain.out_of_memory import at_cache, at_graphs, at_load, at_profile, at_runtime, at_sampler
from vllm_guard.explain.signatures import Signature

# Below this share of the card free, somebody else holds it; above, what was asked is too much by a little.
_SOMEBODY_ELSE_BELOW: Final = 0.75
_HIGHEST_UTILIZATION: Final = 0.95
_TOKENS_OF_A_BLOCK: Final = 16
_MOST_FIXES: Final = 2


def remedies(cause: str, signature: Signature | None, numbers: Numbers, attempt: Attempt) -> tuple[tuple[Fix, ...], tuple[str, ...]]:
    """The fixes, and what misleads: what vLLM's own words or a first thought would have one do."""
    by_numbers = BY_NUMBERS.get(cause)
    fixes = by_numbers(Seen(numbers, attempt)) if by_numbers is not None else []
    if signature is not None and signature.fixes:
        fixes = [_about_flag(signature.cause, numbers) if action == "fix_flag" else fix(action, _value_of(action, numbers)) for action in signature.fixes]
    return tuple(fixes[:_MOST_FIXES]), tuple(misleading(cause, fixes))


def _value_of(action: str, numbers: Numbers) -> str | None:
    """The value that a signature's own numbers give its fix."""
    match action:
        case "lower_model_len":
            return whole(numbers.get("derived_tokens"))
        case "raise_batched_tokens":
            return whole(next((numbers[name] for name in ("item_tokens", "block_size", "max_model_len", "max_num_seqs") if name in numbers), None))
        case "lower_num_seqs":
            return whole(numbers.get("max_num_batched_tokens"))
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


def _divisor(heads: float | str | None, size: float | str | None) -> str | None:
    """The largest parallel size below the one that was asked for that divides the heads."""
    if not isinstance(heads, float | int) or not isinstance(size, float | int):
        return None
    return next((str(smaller) for smaller in range(int(min(size, heads)), 0, -1) if heads % smaller == 0), None)


def _free_memory(seen: Seen) -> list[Fix]:
    """Far too little free: somebody else holds the card. A little too little: ask for less."""
    free, total, requested = (seen.number(name) for name in ("free_gib", "total_gib", "requested_gib"))
    fits = share(free, total)
    less = None if fits is None else fix("lower_utilization", fits)
    missing = None if free is None or requested is None else f"{max(0.0, requested - free):.2f} GiB"
    freed = fix("free_host_memory" if seen.attempt.cpu else "free_gpu", missing)
    if less is None:
        return [freed]
    held = free is not None and total is not None and (free / total < _SOMEBODY_ELSE_BELOW or seen.attempt.holder_named)
    return [freed] if held else [less, freed]


def _cache_blocks(seen: Seen) -> list[Fix]:
    """Nothing is left beside weights and activations: which of them can give way."""
    utilization, batch = seen.setting("gpu_memory_utilization"), seen.setting("max_num_batched_tokens")
    if seen.attempt.cpu:
        if "kv_cache_memory_bytes" in seen.attempt.settings:
            return [fix("raise_kv_bytes")]  # beside it no fraction counts
        return [fix("raise_cpu_kv_space", "4"), fix("raise_utilization")]
    if seen.attempt.holder_named or _is_whole_device(seen.attempt.version):
        return [fix("free_gpu"), fix("raise_utilization")]
    fixes = []
    if batch is not None and batch >= LARGE_BATCH:
        fixes.append(fix("lower_batched_tokens", "2048"))
    if utilization is None or utilization < _HIGHEST_UTILIZATION - 0.05:
        fixes.append(fix("raise_utilization", f"{_HIGHEST_UTILIZATION}"))
    return [*fixes, fix("quantize_or_smaller_model"), fix("more_gpus")]


def _one_sequence(seen: Seen) -> list[Fix]:
    """The printed estimate; without one what follows from need and pool."""
    estimate, length, needed, pool = (seen.number(name) for name in ("estimate_tokens", "max_model_len", "needed_gib", "pool_gib"))
    if estimate is None and length and needed and pool is not None:
        estimate = length * max(pool - ROUNDED_GIB, 0.0) / (needed + ROUNDED_GIB) // _TOKENS_OF_A_BLOCK * _TOKENS_OF_A_BLOCK
    fixes = [fix("lower_model_len", str(int(estimate)) if estimate else None)]
    if "num_gpu_blocks_override" in seen.attempt.settings:
        fixes.append(fix("remove_override"))
    elif "kv_cache_memory_bytes" in seen.attempt.settings:
        fixes.append(fix("raise_kv_bytes", None if needed is None else str(math.ceil((needed + ROUNDED_GIB) * 1.05 * GIB))))
    elif seen.setting("pipeline_parallel_size") is not None:
        fixes.append(fix("rebalance_pipeline"))
    return fixes


def _mamba_blocks(seen: Seen) -> list[Fix]:
    return [fix("lower_num_seqs", whole(seen.numbers.get("blocks")))]


def _is_whole_device(version: str | None) -> bool:
    """Whether this release counts what others hold against the fraction (0.8 of the V1 engine)."""
    return version is not None and version.split(".")[:2] == ["0", "8"]


BY_NUMBERS: Final[dict[str, Callable[[Seen], list[Fix]]]] = {
    "gate_free_memory": _free_memory,
    "gate_cache_blocks": _cache_blocks,
    "gate_one_sequence": _one_sequence,
    "gate_mamba_blocks": _mamba_blocks,
    "oom_at_load": at_load,
    "oom_at_profile": at_profile,
    "oom_at_sampler_warmup": at_sampler,
    "oom_at_graph_capture": at_graphs,
    "oom_at_kv_allocation": at_cache,
    "oom_at_context": lambda _: [fix("free_gpu"), fix("wait")],
    "oom_at_runtime": at_runtime,
}
