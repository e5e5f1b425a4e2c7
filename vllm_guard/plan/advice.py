"""What in a command contradicts the model, the card or the host: warnings, for vLLM is the one to answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_guard.facts import Warn
from vllm_guard.model.checkpoint import Checkpoint
from vllm_guard.model.config import takes_less_than_it_can, text_config
from vllm_guard.model.fields import Fields
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan import ask
from vllm_guard.plan.case import Case
from vllm_guard.plan.decision import Gate
from vllm_guard.units import GIB, ceil_mib, floor_mib

_LONG_TOKENS: Final = 131_072
_FIRST_WITH_BFLOAT16: Final = (8, 0)
# Methods that replace each other, by what the checkpoint calls them (config/model.py _verify_quantization, 0.32.0). Others may override anything.
_QUANTIZED_AS: Final = ("awq", "gptq", "fp8", "bitsandbytes", "compressed-tensors", "modelopt", "mxfp4")
# Checkpoints of these are taken for what they are, whatever is asked for (override_quantization_method in layers/quantization/modelopt.py, mxfp4.py).
_OVERRULING: Final = frozenset(("modelopt", "mxfp4"))

# What vLLM answers with an error, or what has no effect.
CONTRADICTIONS: Final = frozenset(("quantization_contradicts", "length_above_config", "heads_do_not_divide", "bfloat16_unsupported", "offload_beyond_layers"))


def advice(case: Case, one_sequence: Gate) -> tuple[Warn, ...]:
    """All that is worth a warning beside the gates; a long length by default only where the third gate is in doubt."""
    return (*_model_warnings(case, one_sequence), *_offload(case), *host_warnings(case))


def host_warnings(case: Case) -> Iterator[Warn]:
    """Host memory against what is offloaded to it or swapped, and the container's limit against the weight files that are read through it."""
    ranks = sum(device.ranks for device in case.chosen.devices[: case.chosen.world])
    host, command = case.facts.host, case.command
    asked = (command.number("cpu_offload_gb") or 0) + (command.number("swap_space") or 0)
    limit = host.cgroup_limit_bytes
    available = host.memory_available_bytes if limit is None else min(limit, host.memory_available_bytes)
    if 0 < asked < GIB and asked * GIB * ranks > available:
        needed = ceil_mib(int(asked * GIB) * ranks)
        message = f"offload and swap take {needed} MiB of host memory for {ranks} GPU(s), {floor_mib(available)} MiB are available"
        yield Warn("host_memory", message)
    files = case.checkpoint.weight_files_bytes if isinstance(case.checkpoint, Checkpoint) else None
    if limit is not None and files is not None and files > limit:
        message = f"this container may use {floor_mib(limit)} MiB and the weight files have {ceil_mib(files)} MiB: loading may be slow, or killed"
        yield Warn("host_memory", message)


def _model_warnings(case: Case, one_sequence: Gate) -> Iterator[Warn]:
    command, traits = case.command, case.traits
    if isinstance(case.checkpoint, Checkpoint):
        yield from _quantization(case, case.checkpoint)
        yield from _heads(case, case.checkpoint)
    length, given = ask.effective_max_model_len(command, traits), command.integer("max_model_len", 0)
    own = traits.max_model_len if traits is not None else None
    allowed = case.facts.environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in {"0", "false", "False", ""}
    most = None if isinstance(case.checkpoint, Checkpoint) and takes_less_than_it_can(case.checkpoint.config) else own
    if most is not None and given > most and not allowed and "hf_overrides" not in command.given:
        yield Warn("length_above_config", f"--max-model-len {given} is above the model's {most}: vLLM rejects it without VLLM_ALLOW_LONG_MAX_MODEL_LEN=1")
    if one_sequence.outcome in {"fail", "uncertain"} and "max_model_len" not in command.given and length is not None and length >= _LONG_TOKENS:
        yield Warn("length_inherited", f"--max-model-len is not given, so the model's own {length} tokens count{_what_it_takes(case)}")
    old = next((each.device for each in case.rooms if (each.device.compute_capability or _FIRST_WITH_BFLOAT16) < _FIRST_WITH_BFLOAT16), None)
    if command.text("dtype") == "bfloat16" and old is not None:
        capability = ".".join(map(str, old.compute_capability or ()))
        yield Warn("bfloat16_unsupported", f"--dtype bfloat16 needs compute capability 8.0, {old.name} has {capability}: vLLM rejects it, --dtype half works")


def _what_it_takes(case: Case) -> str:
    kv = case.demand.kv
    return "" if isinstance(kv, Unknown) or not kv.plan.groups else f": one such sequence takes {ceil_mib(kv.one_sequence_bytes)} MiB of the KV cache"


def _quantization(case: Case, checkpoint: Checkpoint) -> Iterator[Warn]:
    asked, text = case.command.text("quantization"), text_config(checkpoint.config)
    stored = Fields(checkpoint.config).part("quantization_config") or Fields(text).part("quantization_config", "compression_config")
    method = None if stored is None else stored.values.get("quant_method")
    families = [_family(name) for name in (asked, method) if isinstance(name, str)]
    if len(families) == 2 and None not in families and families[0] != families[1] and families[1] not in _OVERRULING:  # noqa: PLR2004 - asked and stored
        yield Warn("quantization_contradicts", f"the checkpoint is quantized with {method}, --quantization says {asked}: vLLM rejects it, leave the flag out")


def _family(method: str) -> str | None:
    name = method.lower().replace("_", "-").removeprefix("auto-")
    return next((family for family in _QUANTIZED_AS if name.startswith(family)), None)


def _heads(case: Case, checkpoint: Checkpoint) -> Iterator[Warn]:
    heads, ranks = Fields(text_config(checkpoint.config)).number("num_attention_heads"), max(1, case.command.integer("tensor_parallel_size", 1))
    if heads and heads % ranks:
        sizes = ", ".join(str(size) for size in range(1, min(heads, 16) + 1) if heads % size == 0)
        yield Warn("heads_do_not_divide", f"{heads} attention heads do not divide by --tensor-parallel-size {ranks}: vLLM rejects it, {sizes} work")


def _offload(case: Case) -> Iterator[Warn]:
    asked, weights = case.command.number("cpu_offload_gb") or 0, case.demand.weights
    if isinstance(weights, Unknown) or not 0 < asked < GIB or asked * GIB <= weights.offloadable_bytes:
        return
    most = f"{weights.offloadable_bytes / GIB:.2f} GiB"
    yield Warn("offload_beyond_layers", f"--cpu-offload-gb {asked:g}: the decoder layers of a GPU hold {most}, no more can move")
