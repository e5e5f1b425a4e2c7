"""What the model needs of each GPU beside and inside the KV cache, as far as its files and this release tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from vllm_guard.command.parse import Command
from vllm_guard.facts import Facts, Release, parse_release
from vllm_guard.model.checkpoint import Checkpoint
from vllm_guard.model.config import ModelTraits
from vllm_guard.model.kv_cache import KvCache, kv_cache
from vllm_guard.model.kv_dtype import stored_kv_cache_dtype
from vllm_guard.model.kv_layers import read_layers
from vllm_guard.model.kv_setting import KvSetting
from vllm_guard.model.parallel import Parallel
from vllm_guard.model.peak import Band, ProfileRun, activation_peak, cuda_graphs
from vllm_guard.model.unknown import Unknown
from vllm_guard.model.weights import Loading, WeightBytes, weigh
from vllm_guard.plan import ask
from vllm_guard.plan.batch import BatchPlan
from vllm_guard.plan.defaults import Behaviour, runs_v2
from vllm_guard.plan.needs import Demand
from vllm_guard.units import GIB

_FOUR_BYTES: Final = frozenset(("float32", "float"))
_MOST_RANKS: Final = 4096
_LARGEST_OFFLOAD_GIB: Final = 1 << 20
# Options whose effect on weights and cache, on the weights alone, or on the cache alone is not modelled.
_UNMODELLED: Final = ("hf_overrides", "hf_config_path", "speculative_config", "spec_method", "spec_model")
_WEIGHTS_UNMODELLED: Final = ("quantization_config", "model_loader_extra_config", "offload_backend", "offload_group_size")
_KV_UNMODELLED: Final = ("disable_sliding_window", "mamba_ssm_cache_dtype", "mamba_cache_mode", "mamba_cache_dtype", "mamba_block_size")
# What a pipeline stage is asked for was read in 0.15.1 only, between 0.12 and 0.18.1, and is another thing there.
_PIPELINE_UNKNOWN: Final = (Release(0, 12, 1), Release(0, 18, 1))
_PIPELINE_KNOWN: Final = Release(0, 15, 1)


def gather_demand(
    command: Command, facts: Facts, checkpoint: Checkpoint, traits: ModelTraits, rows: Sequence[Behaviour], batch: BatchPlan, max_model_len: int | None
) -> Demand:
    """The demand of this command on the device type that it runs on."""
    release = parse_release(facts.vllm_version)
    config = checkpoint.config
    unmodelled = _unmodelled(command, _UNMODELLED)
    partitioned = bool(facts.environment.get("VLLM_PP_LAYER_PARTITION"))
    if unmodelled is not None or partitioned or ask.all_ranks(command) > _MOST_RANKS:
        unknown = unmodelled or Unknown("VLLM_PP_LAYER_PARTITION is not modelled" if partitioned else f"more than {_MOST_RANKS} ranks")
        return Demand(unknown, unknown, Band(0, 0, 0), unknown)
    tokens, sequences = batch.max_num_batched_tokens, batch.max_num_seqs
    parallel = Parallel(
        tensor_parallel_size=max(1, command.integer("tensor_parallel_size", 1)),
        pipeline_parallel_size=max(1, command.integer("pipeline_parallel_size", 1)),
        data_parallel_size=max(1, command.integer("data_parallel_size", 1)),
        enable_expert_parallel=command.flag("enable_expert_parallel") is True,
        mm_encoder_tp_mode="data" if command.text("mm_encoder_tp_mode") == "data" else "weights",
    )
    cpu = facts.vllm_device == "cpu"
    v2 = all(runs_v2(row, facts.environment.get("VLLM_USE_V2_MODEL_RUNNER"), traits.architecture) for row in rows) and not cpu
    activation: Band | Unknown = Unknown("the batch budget is not known")
    if tokens is not None and sequences is not None:
        run = ProfileRun(tokens, sequences, parallel.tensor_parallel_size, v2, not ask.is_pooling(command, traits), traits.multimodal, cpu)
        activation = activation_peak(config, run)
    counted = not cpu and all(row.graphs_outside == "never" or (row.graphs_outside == "v2_runner" and not v2) for row in rows)
    return Demand(
        weights=_weights(command, checkpoint, traits, parallel, release),
        activation=activation,
        cuda_graphs=cuda_graphs(counted=counted, enforce_eager=command.flag("enforce_eager") is True),
        kv=_kv(command, facts, config, release, parallel, tokens, max_model_len, pooling=ask.is_pooling(command, traits)),
    )


def _unmodelled(command: Command, dests: Sequence[str]) -> Unknown | None:
    given = next((dest for dest in dests if dest in command.given), None)
    return None if given is None else Unknown(f"--{given.replace('_', '-')} is not modelled")


def _weights(command: Command, checkpoint: Checkpoint, traits: ModelTraits, parallel: Parallel, release: Release | None) -> WeightBytes | Unknown:
    offload = command.number("cpu_offload_gb") or 0
    if not 0 <= offload <= _LARGEST_OFFLOAD_GIB:
        return Unknown("--cpu-offload-gb is no size")
    unmodelled = _unmodelled(command, _WEIGHTS_UNMODELLED)
    if unmodelled is not None:
        return unmodelled
    weighed = weigh(checkpoint.config, checkpoint.headers, parallel, _loading(command, traits, release, int(offload * GIB)))
    return weighed if isinstance(weighed, Unknown) else _cautious(weighed, command, checkpoint, traits)


def _cautious(weights: WeightBytes, command: Command, checkpoint: Checkpoint, traits: ModelTraits) -> WeightBytes:
    """The bound from below where the config may not tell all: files that are smaller than it says (a quantized checkpoint may say nothing of it), no
    files at all (they may be of 4 bits), towers and their like that may not be loaded.
    """
    files, low, likely = checkpoint.weight_files_bytes, weights.low, weights.likely
    share = None if files is None else files // ask.all_ranks(command)
    if checkpoint.headers is None:
        low = low // 4 if share is None else low
        if share is not None and share < low:
            low, likely = share // 2, share
    if traits.multimodal or "limit_mm_per_prompt" in command.given:
        towers = sum(size for part, size in weights.parts if part in {"vision", "audio", "other"})
        low = max(0, min(low - towers, low if share is None else share // 2))
    changed = (low, likely) != (weights.low, weights.likely)
    return replace(weights, low=low, likely=likely, exact=weights.exact and not changed)


def _loading(command: Command, traits: ModelTraits, release: Release | None, cpu_offload_bytes: int) -> Loading:
    limits = command.given["limit_mm_per_prompt"].value if "limit_mm_per_prompt" in command.given else {}
    return Loading(
        release=release,
        dtype=command.text("dtype"),
        quantization=command.text("quantization"),
        load_format=command.text("load_format"),
        cpu_offload_bytes=cpu_offload_bytes,
        language_model_only=command.flag("language_model_only") is True,
        limit_mm_per_prompt={kind: most for kind, limit in limits.items() if (most := _count(limit)) is not None} if isinstance(limits, dict) else {},
        pooling=ask.is_pooling(command, traits),
    )


def _count(limit: object) -> int | None:
    """A limit of items, which may stand in an object with more about them."""
    count = limit.get("count") if isinstance(limit, dict) else limit
    return count if isinstance(count, int) else None


def _kv(
    command: Command,
    facts: Facts,
    config: Mapping[str, Any],
    release: Release | None,
    parallel: Parallel,
    tokens: int | None,
    max_model_len: int | None,
    *,
    pooling: bool,
) -> KvCache | Unknown:
    unmodelled = _unmodelled(command, _KV_UNMODELLED)
    if unmodelled is not None:
        return unmodelled
    first, last = _PIPELINE_UNKNOWN
    if parallel.pipeline_parallel_size > 1 and release is not None and first <= release < last and release != _PIPELINE_KNOWN:
        return Unknown(f"what vLLM {release} asks of a pipeline stage is not known")
    layers = read_layers(config, release)
    if isinstance(layers, Unknown):
        return layers
    if layers.layers and (max_model_len is None or tokens is None):
        return Unknown("the length of a sequence is not known" if max_model_len is None else "the batch budget is not known")
    asked = command.text("kv_cache_dtype") or "auto"
    # Asynchronous scheduling is the default of the multiprocessing executor, and never of the CPU build and of pooling models (config/vllm.py).
    one_at_a_time = facts.vllm_device == "cpu" or pooling or command.flag("async_scheduling") is False or "distributed_executor_backend" in command.given
    setting = KvSetting(
        release=release,
        max_model_len=max_model_len or 1,  # where nothing is kept, that is so for any length and batch
        max_num_batched_tokens=tokens or 1,
        model_bytes=4 if command.text("dtype") in _FOUR_BYTES else 2,
        kv_cache_dtype=stored_kv_cache_dtype(config, release) if asked == "auto" else asked,
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        block_size=command.integer("block_size", None) or (128 if facts.vllm_device == "cpu" else None),
        concurrent_batches=1 if one_at_a_time else 2,
        enable_prefix_caching=command.flag("enable_prefix_caching"),
        hybrid_kv_cache_manager=False if command.flag("disable_hybrid_kv_cache_manager") else None,
        context_parallel=any(command.integer(dest, 1) > 1 for dest in ("decode_context_parallel_size", "prefill_context_parallel_size")),
    )
    return kv_cache(layers, setting)
