"""A decision as the JSON document of the contract. Keys are added freely; one that changes its meaning raises `schema_version`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from vllm_guard.command.mask import mask_text
from vllm_guard.facts import Facts, GpuProcess, Warn
from vllm_guard.plan.decision import NOT_JUDGED, Assessment, Decision, DevicePlan, Launch, Refusal, Setting, Unmeasured
from vllm_guard.plan.defaults import is_assumed
from vllm_guard.release import parse_release
from vllm_guard.render.demand import demand_document, fits_document
from vllm_guard.render.devices import device_label
from vllm_guard.render.text import summary

SCHEMA_VERSION: Final = 1
_HIDDEN_PROCESS_KEYS: Final = ("exiting",)
_UNKNOWN: Final = {
    dest: Setting(None, None, "vllm_default")
    for dest in ("gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs", "max_model_len", "kv_cache_memory_bytes", "tensor_parallel_size")
}


def decision_document(
    decision: Decision,
    facts: Facts,
    *,
    executable: str | None,
    given: Mapping[str, Setting],
    masked_argv: Sequence[str],
    warnings: Sequence[Warn],
    elapsed_seconds: float,
    starts_unmeasured: bool = False,
) -> dict[str, Any]:
    """The whole decision; sizes in bytes, unknown is null, secrets are masked."""
    assessment = decision.assessment if isinstance(decision, Launch | Refusal) else None
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": {Launch: "launch", Refusal: "refuse", Unmeasured: "unmeasured"}[type(decision)],
        "exit_code": exit_code(decision, starts_unmeasured=starts_unmeasured),
        "reason": None if isinstance(decision, Launch) else decision.reason,
        "summary": mask_text(summary(decision)),
        "vllm": {
            "executable": executable,
            "version": facts.vllm_version,
            "device": facts.vllm_device,
            "assumed": is_assumed(parse_release(facts.vllm_version)),
        },
        "devices": [device_document(plan) for plan in assessment.devices] if assessment else [],
        "settings": {dest: _setting(setting) for dest, setting in {**_UNKNOWN, **(assessment.settings if assessment else given)}.items()},
        "changes": [{"flag": c.flag, "from": c.before, "to": c.after, "because": c.because} for c in assessment.changes] if assessment else [],
        "demand": demand_document(assessment.demand) if assessment else None,
        "gates": [asdict(gate) for gate in (assessment.gates if assessment else NOT_JUDGED)],
        "fits": fits_document(assessment.fits) if assessment else None,
        "host": _host(facts, warnings),
        "warnings": [_warning(warning) for warning in (*warnings, *_incomplete(assessment))],
        "fixes": _fixes(decision, assessment),
        "argv": list(masked_argv),
        "elapsed_seconds": round(elapsed_seconds, 4),
    }


def exit_code(decision: Decision, *, starts_unmeasured: bool = False) -> int:
    """What `check` exits with."""
    if isinstance(decision, Refusal):
        return int(decision.exit_code)
    return 0 if isinstance(decision, Launch) or starts_unmeasured else 69


def device_document(plan: DevicePlan) -> dict[str, Any]:
    """One device and the equation of its budget."""
    device = plan.device
    return {
        "kind": device.kind,
        "ordinal": device.ordinal,
        "nvml_index": device.nvml_index,
        "uuid": device.uuid,
        "name": device.name,
        "nvml_total_bytes": device.nvml_total_bytes,
        "driver_reserved_bytes": device.driver_reserved_bytes,
        "free_bytes": device.free_bytes,
        "claimed_bytes": device.claimed_bytes,
        "start_overhead_bytes": plan.start_overhead_bytes,
        "outside_budget_bytes": plan.outside_budget_bytes,
        "margin_bytes": plan.margin_bytes,
        "budget_bytes": plan.budget_bytes,
        "unaccounted_bytes": device.unaccounted_bytes,
        "holders_incomplete": plan.holders_incomplete,
        "gpu_memory_utilization": plan.gpu_memory_utilization,
        "limiting": plan.limiting,
        "processes": [process_document(process) for process in device.processes],
    }


def process_document(process: GpuProcess) -> dict[str, Any]:
    """A process as the contract lists it."""
    return {key: value for key, value in asdict(process).items() if key not in _HIDDEN_PROCESS_KEYS}


def _setting(setting: Setting) -> dict[str, Any]:
    return {"value": _finite(setting.value), "given": _finite(setting.given), "source": setting.source}


def _finite(value: object) -> object:
    """The value; JSON has no nan and no inf, they are text."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _incomplete(assessment: Assessment | None) -> Iterator[Warn]:
    """As text this is a line of evidence."""
    for plan in assessment.devices if assessment else ():
        if plan.holders_incomplete is not None:
            yield Warn("holders_incomplete", f"{device_label(plan)}: {plan.holders_incomplete}")


def _warning(warning: Warn) -> dict[str, str]:
    return {"code": warning.code, "message": mask_text(warning.message)}


def _host(facts: Facts, warnings: Sequence[Warn]) -> dict[str, Any]:
    host = facts.host
    about_it = [_warning(warning)["message"] for warning in warnings if warning.code == "host_memory"]
    return {"memory_available_bytes": host.memory_available_bytes, "cgroup_limit_bytes": host.cgroup_limit_bytes, "warnings": about_it}


def _fixes(decision: Decision, assessment: Assessment | None) -> list[str]:
    if isinstance(decision, Unmeasured):
        return [decision.fix]
    return list(assessment.fixes) if assessment else []
