"""What the command asks of vLLM, read from the command line and the model's config: pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vllm_guard.command.parse import Command
from vllm_guard.facts import Facts
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.config import ModelTraits, derived_max_model_len, language_part
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan.batch import BatchAsk
from vllm_guard.plan.budget import Workload
from vllm_guard.plan.largest import Weights
from vllm_guard.release import Release
from vllm_guard.units import GIB

# Formats that read the safetensors files of the folder (model_executor/model_loader).
_PLAIN_LOAD_FORMATS: Final = frozenset((None, "auto", "hf", "safetensors", "fastsafetensors", "runai_streamer"))
_TOKENIZER_ONLY_WHEN_POOLING: Final = Release(0, 10, 2)
_ENCODERS: Final = ("Bert", "Roberta")
_OPTIONS_THAT_SHRINK_WEIGHTS: Final = (
    "quantization_config",
    "hf_overrides",
    "model_loader_extra_config",
    "language_model_only",
    "offload_backend",
    "offload_group_size",  # alone it turns prefetch offloading on (config/offload.py)
)


def all_ranks(command: Command) -> int:
    """Ranks over all hosts: tp * pp * pcp * dp."""
    return model_ranks(command) * max(1, command.integer("prefill_context_parallel_size", 1)) * max(1, command.integer("data_parallel_size", 1))


def model_ranks(command: Command) -> int:
    """Ranks of one replica of the model: tp * pp."""
    return max(1, command.integer("tensor_parallel_size", 1)) * max(1, command.integer("pipeline_parallel_size", 1))


def is_pooling(command: Command, traits: ModelTraits | None) -> bool:
    """Whether the server embeds, scores or classifies instead of generating."""
    tasks = (command.text("runner"), command.text("task"), command.text("convert"))
    asked = any(task not in {None, "auto", "none", "generate", "transcription"} for task in tasks)
    return asked or (traits is not None and not traits.generates)


def workload(command: Command, facts: Facts, traits: ModelTraits | None, max_num_seqs: int) -> Workload:
    """What decides about memory outside the budget."""
    backend = command.text("attention_backend") or facts.environment.get("VLLM_ATTENTION_BACKEND") or ""
    return Workload(
        world=all_ranks(command),
        enforce_eager=command.flag("enforce_eager") is True,
        flashinfer=backend.upper().startswith("FLASHINFER"),
        v2_runner_forced=facts.environment.get("VLLM_USE_V2_MODEL_RUNNER"),
        architecture=traits.architecture if traits else None,
        max_num_seqs=max_num_seqs,
        vocab_size=traits.vocab_size if traits else None,
    )


def derived_length(command: Command, checkpoint: Checkpoint, traits: ModelTraits, release: Release | None) -> int | None:
    """The length that vLLM derives from the model's files for this command; None when it is not known (config/model.py get_and_verify_max_len).

    The tokenizer's limit counts for pooling models with absolute positions only; 0.9.2 lies between two releases that differ in that. A config without
    `position_embedding_type` may have one by its class, and only the names of encoders tell that a model surely pools. How far --disable-sliding-window
    shortens the length is up to the config's class too.
    """
    limit = checkpoint.tokenizer_max_length
    derived = derived_max_model_len(checkpoint.config, release)
    if command.flag("disable_sliding_window") and language_part(checkpoint.config).get("sliding_window", 0) is not None:
        return None
    if derived is None or limit is None or derived <= limit:
        return derived
    if release is not None and release < _TOKENIZER_ONLY_WHEN_POOLING:
        return None
    if not is_pooling(command, traits) or checkpoint.config.get("position_embedding_type", "absolute") != "absolute":
        return derived
    surely = "position_embedding_type" in checkpoint.config and any(name in (traits.architecture or "") for name in _ENCODERS)
    return derived_max_model_len(checkpoint.config, release, limit) if surely else None


def effective_max_model_len(command: Command, traits: ModelTraits | None) -> int | None:
    """The given length, else what the config derives; None when neither is known (`auto` counts as the derived one)."""
    given = command.integer("max_model_len", 0)
    if given > 0:
        return given
    if any(dest in command.given for dest in ("hf_overrides", "tokenizer", "hf_config_path")) or traits is None:
        return None
    return traits.max_model_len


def batch_ask(command: Command, traits: ModelTraits | None) -> BatchAsk:
    """What the command and the model say about batches."""
    return BatchAsk(
        max_num_batched_tokens=command.integer("max_num_batched_tokens", 0) or None,
        max_num_seqs=command.integer("max_num_seqs", 0) or None,
        max_model_len=effective_max_model_len(command, traits),
        chunked_prefill=command.flag("enable_chunked_prefill"),
        disable_chunked_mm_input=command.flag("disable_chunked_mm_input") is True,
        throughput_mode=command.text("performance_mode") == "throughput",
        speculative=any(dest in command.given for dest in ("speculative_config", "spec_method", "spec_model", "speculative_model")),
        pooling=is_pooling(command, traits),
        prefix_caching=command.flag("enable_prefix_caching") is not False,
        expert_all2all="all2all_backend" in command.given and command.integer("data_parallel_size", 1) > 1,
        world=model_ranks(command),
        traits=traits,
        usage=command.entry.usage,
    )


def weights_bounds(command: Command, facts: Facts, model: Checkpoint | UnknownCheckpoint, traits: ModelTraits | None) -> Weights | str:
    """What the checkpoint's files prove about the weights on one device, or why they prove nothing.

    Half of the files' bytes over tp * pp * pcp * dp is the floor, because float32 checkpoints are cast to 16 bits; a quarter where half may be all of it and
    tied or unused parts may be left out. Nothing is proved where weights are offloaded, quantized while loading, invented, or loaded from elsewhere.
    """
    if isinstance(model, UnknownCheckpoint):
        return model.because
    if model.weight_files_bytes is None or traits is None:
        return model.weights_unknown_because or "no weight files"
    if (command.number("cpu_offload_gb") or 0) > 0:
        return "weights are offloaded to the host"
    if command.text("quantization") is not None and not traits.quantized:
        return "weights are quantized while they load"
    if command.text("load_format") not in _PLAIN_LOAD_FORMATS:
        return f"--load-format {command.text('load_format')} loads other bytes"
    changing = next((dest for dest in _OPTIONS_THAT_SHRINK_WEIGHTS if dest in command.given), None)
    if changing is not None:
        return f"--{changing.replace('_', '-')} may change the weights"
    if is_pooling(command, traits):
        return "a pooling model may leave weights out"
    if facts.environment.get("VLLM_PP_LAYER_PARTITION"):
        return "VLLM_PP_LAYER_PARTITION splits the layers unevenly"
    share = model.weight_files_bytes // all_ranks(command)
    cast = traits.stored_dtype in {None, "float32"}
    floor = share // 4 if cast and (traits.tied or traits.multimodal) else share // 2
    return Weights(floor_bytes=floor, share_bytes=share // 2 if cast else share)


def unmodelled(command: Command, dests: Sequence[str]) -> Unknown | None:
    """The first of these options that was given, as a reason."""
    given = next((dest for dest in dests if dest in command.given), None)
    return None if given is None else Unknown(f"--{given.replace('_', '-')} is not modelled")


def explicit_pool_bytes(command: Command, facts: Facts) -> int | None:
    """The KV cache size that the user gave in bytes, or None. On the CPU build VLLM_CPU_KVCACHE_SPACE (GiB) wins over the flag (facts of 0.32.0)."""
    if facts.vllm_device == "cpu":
        gib = facts.environment.get("VLLM_CPU_KVCACHE_SPACE", "")
        if gib.isdigit() and int(gib) > 0:
            return int(gib) * GIB
    return command.integer("kv_cache_memory_bytes", 0) or None
