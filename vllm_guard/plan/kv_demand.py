"""The key-value cache that this command asks for, as far as the model's config and this release tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm_guard.command.parse import Command
from vllm_guard.facts import Facts
from vllm_guard.model.drafts import Draft, layers_with_draft
from vllm_guard.model.kv_cache import KvCache, kv_cache
from vllm_guard.model.kv_dtype import stored_kv_cache_dtype
from vllm_guard.model.kv_layers import KvLayers, read_layers
from vllm_guard.model.kv_setting import KvSetting
from vllm_guard.model.kv_shapes import Attention
from vllm_guard.model.parallel import Parallel
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan import ask
from vllm_guard.release import Release, parse_release

_FOUR_BYTES: Final = frozenset(("float32", "float"))
_FLOAT32_BYTES: Final = 4
# Options whose effect on the cache is not modelled.
_UNMODELLED: Final = (
    *("disable_sliding_window", "mamba_ssm_cache_dtype", "mamba_cache_mode", "mamba_cache_dtype", "mamba_block_size"),
    *("use_replayssm", "kv_cache_dtype_skip_layers", "swa_bounded_replay"),
)
# What a pipeline stage is asked for was read in 0.15.1 only, between 0.12 and 0.18.1, and is another thing there.
_PIPELINE_UNKNOWN: Final = (Release(0, 12, 1), Release(0, 18, 1))
_PIPELINE_KNOWN: Final = Release(0, 15, 1)


def kv_demand(
    command: Command,
    facts: Facts,
    config: Mapping[str, Any],
    draft: Draft,
    parallel: Parallel,
    tokens: int | None,
    max_model_len: int | None,
    *,
    pooling: bool,
) -> KvCache | Unknown:
    """The cache of the model and its draft on one GPU, for batches of `tokens`; or why it is not known."""
    unmodelled = ask.unmodelled(command, _UNMODELLED)
    if unmodelled is not None:
        return unmodelled
    release, (first, last) = parse_release(facts.vllm_version), _PIPELINE_UNKNOWN
    if parallel.pipeline_parallel_size > 1 and release is not None and first <= release < last and release != _PIPELINE_KNOWN:
        return Unknown(f"what vLLM {release} asks of a pipeline stage is not known")
    own = read_layers(config, release)
    layers = own if isinstance(own, Unknown) else layers_with_draft(own, draft, release, parallel.pipeline_parallel_size)
    if isinstance(layers, Unknown):
        return layers
    if layers.layers and (max_model_len is None or tokens is None):
        return Unknown("the length of a sequence is not known" if max_model_len is None else "the batch budget is not known")
    instructed = _left_to_the_processor(layers) if facts.vllm_device == "cpu" else None
    if instructed is not None:
        return instructed
    asked = command.text("kv_cache_dtype") or "auto"
    # Asynchronous scheduling is the default of the multiprocessing executor, and never of the CPU build and of pooling models (config/vllm.py).
    alone = facts.vllm_device == "cpu" or pooling or command.flag("async_scheduling") is False or "distributed_executor_backend" in command.given
    setting = KvSetting(
        release=release,
        max_model_len=max_model_len or 1,  # where nothing is kept, that is so for any length and batch
        max_num_batched_tokens=tokens or 1,
        model_bytes=4 if command.text("dtype") in _FOUR_BYTES else 2,
        kv_cache_dtype=stored_kv_cache_dtype(config, release) if asked == "auto" else asked,
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        block_size=command.integer("block_size", None) or (128 if facts.vllm_device == "cpu" else None),
        concurrent_batches=2 if draft.overlaps and not alone else 1,
        speculative_tokens=draft.tokens,
        enable_prefix_caching=command.flag("enable_prefix_caching"),
        hybrid_kv_cache_manager=False if command.flag("disable_hybrid_kv_cache_manager") else None,
        context_parallel=any(command.integer(dest, 1) > 1 for dest in ("decode_context_parallel_size", "prefill_context_parallel_size")),
    )
    return kv_cache(layers, setting)


def _left_to_the_processor(layers: KvLayers) -> Unknown | None:
    """What the CPU build decides by the instructions of the processor, which are not read here; None where nothing depends on them.

    It keeps recurrent states in float32 where there is AVX512-BF16, and elsewhere in what the config or the model's dtype says; it cuts latent attention into
    blocks of 16 tokens where there is no AMX, whatever was asked for (platforms/cpu.py check_and_update_config, 0.32.0).
    """
    for layer in layers.layers:
        if isinstance(layer, Attention):
            if layer.kind == "mla":
                return Unknown("on a CPU the blocks of latent attention depend on the processor")
        elif layer.recurrent_values and layer.recurrent_bytes != _FLOAT32_BYTES:
            return Unknown("on a CPU the size of recurrent states depends on the processor")
    return None
