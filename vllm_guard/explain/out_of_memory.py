"""What helps where memory ran out after the gates: by where it did. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vllm_guard.explain.fixes import GIB, LARGE_BATCH, ROUNDED_GIB, Fix, Seen, fix, half, share

_LEAST_HOLDER: Final = 0.2
_MOST_HOLDER: Final = 0.9
_MOST_WEIGHTS: Final = 0.8  # of the card: what is left is less than a batch needs


def at_load(seen: Seen) -> list[Fix]:
    """Weights that do not fit; somebody else's memory where another process holds a good part of the card, and not nearly all as this one may."""
    total, holder = seen.number("total_gib"), seen.number("holder_gib")
    if holder is not None and total is not None and _LEAST_HOLDER * total < holder < _MOST_HOLDER * total:
        return [fix("free_gpu", f"{holder:.2f} GiB"), fix("more_gpus")]
    return [fix("quantize_or_smaller_model"), fix("more_gpus")]


def at_profile(seen: Seen) -> list[Fix]:
    """A batch or so many sequences that were given are the first to go; then the model is too large."""
    batch, sequences = seen.setting("max_num_batched_tokens"), seen.setting("max_num_seqs")
    weights, total = seen.number("weights_gib"), seen.number("total_gib")
    if weights and total and weights > _MOST_WEIGHTS * total:
        return [fix("quantize_or_smaller_model"), fix("more_gpus")]
    fixes = [fix("lower_batched_tokens", "2048")] if batch is not None and batch >= LARGE_BATCH else []
    return [*fixes, fix("lower_num_seqs", half(sequences)), fix("lower_batched_tokens", half(batch))]


def at_sampler(seen: Seen) -> list[Fix]:
    """The warm-up makes logits for as many requests as may run."""
    requests = seen.number("requests") or seen.setting("max_num_seqs")
    return [fix("lower_num_seqs", half(requests)), _less(seen)]


def at_graphs(seen: Seen) -> list[Fix]:
    """Do without the graphs, or leave them more beside the cache."""
    return [fix("enforce_eager"), _less(seen)]


def at_cache(seen: Seen) -> list[Fix]:
    """The pool itself: what the fraction leaves of the host's memory, bytes that were given, or a card that others hold."""
    pool, free, total, requested = (seen.number(name) for name in ("pool_gib", "free_gib", "total_gib", "requested_gib"))
    if pool is not None and requested is not None:
        used = requested - pool
        if pool > 0:
            return [fix("lower_utilization", None if free is None else share(free + used - 2 * ROUNDED_GIB, total)), fix("free_host_memory")]
        enough = free is not None and free > used
        return [fix("raise_utilization", share(free, total) if enough else None), fix("free_host_memory")]
    if seen.attempt.cpu or "kv_cache_memory_bytes" in seen.attempt.settings:
        return [_fewer_kv_bytes(seen, pool, free), fix("free_host_memory" if seen.attempt.cpu else "free_gpu")]
    return [fix("free_gpu"), _less(seen)] if seen.attempt.holder_named else [_less(seen), fix("free_gpu")]


def _fewer_kv_bytes(seen: Seen, pool_gib: float | None, free_gib: float | None) -> Fix:
    """Nine tenths of what is free, for the flag or for the variable that silently wins over it (platforms/cpu.py): the pool tells which it was."""
    given = seen.setting("kv_cache_memory_bytes")
    of_flag = given is not None and pool_gib is not None and abs(given / GIB - pool_gib) <= 2 * ROUNDED_GIB
    if pool_gib is None or of_flag or not seen.attempt.cpu or not seen.attempt.settings:
        return fix("lower_kv_bytes", None if free_gib is None else str(int(free_gib * 0.9 * GIB)))
    whole_gib = 0 if free_gib is None else int(free_gib * 0.9)
    return replace(fix("lower_kv_bytes", str(whole_gib) if whole_gib else None), flag="VLLM_CPU_KVCACHE_SPACE")


def at_runtime(seen: Seen) -> list[Fix]:
    """A server that started has too little beside its cache."""
    return [_less(seen), fix("lower_num_seqs", half(seen.setting("max_num_seqs")))]


def _less(seen: Seen) -> Fix:
    """Five hundredths less of the card than was asked."""
    utilization = seen.setting("gpu_memory_utilization")
    return fix("lower_utilization", None if utilization is None else f"{max(0.05, utilization - 0.05):.2f}")
