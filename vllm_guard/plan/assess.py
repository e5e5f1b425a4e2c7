"""What a decision reports: the effective settings, and the equation of each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from typing_extensions import assert_never

from vllm_guard.command.parse import Command
from vllm_guard.facts import Warn
from vllm_guard.model.peak import Band
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan import ask
from vllm_guard.plan.budget import Room, cuda_total_bytes, fraction_within
from vllm_guard.plan.case import Case
from vllm_guard.plan.choice import Choice, Emit, Keep, NoRoom
from vllm_guard.plan.decision import Change, DevicePlan, Fits, Gate, Setting
from vllm_guard.plan.holders import why_incomplete
from vllm_guard.plan.largest import given_up
from vllm_guard.plan.pool import pool_band
from vllm_guard.units import MIB, requested_bytes

_REPORTED: Final = (
    "gpu_memory_utilization",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enforce_eager",
    "cpu_offload_gb",
)


def given_settings(command: Command) -> Mapping[str, Setting]:
    """What the user gave, as far as a report names it."""
    return {dest: Setting(given.value, given.value, given.source) for dest, given in command.given.items() if dest in _REPORTED}


def effective_settings(case: Case, changes: Sequence[Change]) -> Mapping[str, Setting]:
    """The values that vLLM will use after these changes; without changes what was asked."""
    defaults: dict[str, object] = {
        "gpu_memory_utilization": case.asked.most,
        "max_num_batched_tokens": case.batch.max_num_batched_tokens,
        "max_num_seqs": case.batch.max_num_seqs,
        "max_model_len": ask.effective_max_model_len(case.command, case.traits),
        "kv_cache_memory_bytes": None,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
    }
    settings = {dest: Setting(value, None, "vllm_default") for dest, value in defaults.items()}
    settings.update(given_settings(case.command))
    if settings["max_num_batched_tokens"].given is not None:  # which the CPU build overrules for some models
        settings["max_num_batched_tokens"] = replace(settings["max_num_batched_tokens"], value=case.batch.max_num_batched_tokens)
    if case.pool_bytes is not None:  # VLLM_CPU_KVCACHE_SPACE wins over the flag
        settings["kv_cache_memory_bytes"] = replace(settings["kv_cache_memory_bytes"], value=case.pool_bytes)
    for change in changes:
        before = case.command.given.get(change.dest)
        value = float(change.after) if change.dest == "gpu_memory_utilization" else int(change.after)
        settings[change.dest] = Setting(value, before.value if before else None, "guard")
    return settings


def device_plans(case: Case, choice: Choice) -> tuple[DevicePlan, ...]:
    """The equation per device. `limiting` is the device that decides the fraction, or the one that refuses."""
    match choice:
        case Emit(limiting=index) | NoRoom(device=index):
            limiting = index
        case Keep():
            limiting = min(range(len(case.rooms)), key=lambda i: case.rooms[i].usable_bytes / case.rooms[i].device.nvml_total_bytes)
        case _:
            assert_never(choice)
    return tuple(_device_plan(case, each, choice, limits=index == limiting) for index, each in enumerate(case.rooms))


def _device_plan(case: Case, each: Room, choice: Choice, *, limits: bool) -> DevicePlan:
    outside, margin = given_up(each, choice.fraction) if isinstance(choice, Emit) else (0, 0)
    budget = each.usable_bytes + outside + margin
    safe = min(case.asked.most, fraction_within(budget, each.device.nvml_total_bytes))
    return DevicePlan(
        device=each.device,
        start_overhead_bytes=each.start_overhead.likely,
        outside_budget_bytes=each.outside_budget_bytes - outside,
        margin_bytes=each.margin_bytes - margin,
        budget_bytes=budget,
        gpu_memory_utilization=case.asked.most if isinstance(choice, Keep) else safe,
        limiting=limits,
        holders_incomplete=why_incomplete(case.facts, each.device),
    )


def fits_at(case: Case, fraction: float) -> Fits | None:
    """What the pool holds on the device with the smallest budget; None where the demand or the pool is not known, or nothing is kept."""
    kv, budget = case.demand.kv, min(requested_bytes(cuda_total_bytes(each.device)[1], fraction) for each in case.rooms)
    band, known = pool_band(case.demand, budget, case.weights_floor_bytes)
    if case.pool_bytes is not None:
        band, known = Band(case.pool_bytes, case.pool_bytes, case.pool_bytes), True
    elif case.pool_is_explicit:
        return None
    if not known or isinstance(kv, Unknown) or not kv.one_sequence_bytes or ask.effective_max_model_len(case.command, case.traits) is None:
        return None
    band = Band(max(0, band.low), max(0, band.likely), max(0, band.high))
    return Fits(band, kv.printed_tokens(band.likely), kv.largest_max_model_len(band.likely), round(band.likely / kv.one_sequence_bytes, 2))


def pool_warnings(judged: Sequence[Gate]) -> tuple[Warn, ...]:
    """What to say where vLLM may run out of memory for its KV cache."""
    return tuple(
        Warn(f"{gate.gate}_uncertain", f"vLLM may find too little for its KV cache: {gate.detail}, have {_mib(gate.have_bytes)}, need {_mib(gate.need_bytes)}")
        for gate in judged
        if gate.gate != "free_memory" and gate.outcome == "uncertain"
    )


def _mib(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"about {max(0, size_bytes) // MIB} MiB"
