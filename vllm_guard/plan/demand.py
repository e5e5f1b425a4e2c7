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
_UNMODELLED: Final = ("hf_overrides", "speculative_config", "spec_method", "spec_model")


def gather_demand(
    command: Command, facts: Facts, checkpoint: Checkpoint, traits: ModelTraits, rows: Sequence[Behaviour], batch: BatchPlan, max_model_len: int | None
) -> Demand:
    """The demand of this command on the device type that it runs on."""
    release = parse_release(facts.vllm_version)
    config = checkpoint.config
    unmodelled = next((dest for dest in _UNMODELLED if dest in command.given), None)
    if unmodelled is not None:
        unknown = Unknown(f"--{unmodelled.replace('_', '-')} is not modelled")
        return Demand(unknown, unknown, Band(0, 0, 0), unknown)
    tokens, sequences = batch.max_num_batched_tokens, batch.max_num_seqs
    parallel = Parallel(
        tensor_parallel_size=max(1, command.integer("tensor_parallel_size", 1)),
        pipeline_parallel_size=max(1, command.integer("pipeline_parallel_size", 1)),
        data_parallel_size=max(1, command.integer("data_parallel_size", 1)),
        enable_expert_parallel=command.flag("enable_expert_parallel") is True,
        stage_layers=_layer_partition(facts),
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
        weights=_bounded(weigh(config, checkpoint.headers, parallel, _loading(command, traits, release)), checkpoint, ask.all_ranks(command)),
        activation=activation,
        cuda_graphs=cuda_graphs(counted=counted, enforce_eager=command.flag("enforce_eager") is True),
        kv=_kv(command, facts, config, release, parallel, tokens, max_model_len),
    )


def _bounded(weights: WeightBytes | Unknown, checkpoint: Checkpoint, ranks: int) -> WeightBytes | Unknown:
    """An estimate from the config that the files contradict gives way to them: a quantized checkpoint may say nothing of it in its config."""
    if isinstance(weights, Unknown) or checkpoint.headers is not None or checkpoint.weight_files_bytes is None:
        return weights
    share = checkpoint.weight_files_bytes // ranks
    if share >= weights.low:
        return weights
    return replace(weights, low=share // 2, likely=share, exact=False)


def _loading(command: Command, traits: ModelTraits, release: Release | None) -> Loading:
    limits = command.given["limit_mm_per_prompt"].value if "limit_mm_per_prompt" in command.given else {}
    return Loading(
        release=release,
        dtype=command.text("dtype"),
        quantization=command.text("quantization"),
        load_format=command.text("load_format"),
        cpu_offload_bytes=int((command.number("cpu_offload_gb") or 0) * GIB),
        language_model_only=command.flag("language_model_only") is True,
        limit_mm_per_prompt={kind: most for kind, most in limits.items() if isinstance(most, int)} if isinstance(limits, dict) else {},
        pooling=ask.is_pooling(command, traits),
    )


def _kv(
    command: Command, facts: Facts, config: Mapping[str, Any], release: Release | None, parallel: Parallel, tokens: int | None, max_model_len: int | None
) -> KvCache | Unknown:
    if max_model_len is None or tokens is None:
        return Unknown("the length of a sequence is not known" if max_model_len is None else "the batch budget is not known")
    layers = read_layers(config, release)
    if isinstance(layers, Unknown):
        return layers
    asked = command.text("kv_cache_dtype") or "auto"
    setting = KvSetting(
        release=release,
        max_model_len=max_model_len,
        max_num_batched_tokens=tokens,
        model_bytes=4 if command.text("dtype") in _FOUR_BYTES else 2,
        kv_cache_dtype=stored_kv_cache_dtype(config, release) if asked == "auto" else asked,
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        layer_partition=parallel.stage_layers or None,
        block_size=command.integer("block_size", None) or (128 if facts.vllm_device == "cpu" else None),
        concurrent_batches=1 if command.flag("async_scheduling") is False else 2,
        enable_prefix_caching=command.flag("enable_prefix_caching"),
        hybrid_kv_cache_manager=False if command.flag("disable_hybrid_kv_cache_manager") else None,
        context_parallel=any(command.integer(dest, 1) > 1 for dest in ("decode_context_parallel_size", "prefill_context_parallel_size")),
    )
    return kv_cache(layers, setting)


def _layer_partition(facts: Facts) -> tuple[int, ...]:
    words = facts.environment.get("VLLM_PP_LAYER_PARTITION", "").split(",")
    return tuple(int(word) for word in words) if all(word.strip().isdigit() for word in words) else ()
