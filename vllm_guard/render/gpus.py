"""The cards of a host as a table and as JSON, without any launch in mind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from vllm_guard.devices import Device
from vllm_guard.facts import Facts
from vllm_guard.plan.decision import Assessment, DevicePlan
from vllm_guard.plan.holders import why_incomplete
from vllm_guard.render.devices import age_text, device_label, device_lines, plain
from vllm_guard.render.document import SCHEMA_VERSION, device_document
from vllm_guard.units import floor_mib

_BUDGET_KEYS: Final = frozenset(("start_overhead_bytes", "outside_budget_bytes", "margin_bytes", "budget_bytes", "gpu_memory_utilization", "limiting"))


def gpus_lines(facts: Facts, devices: Sequence[Device]) -> list[str]:
    """Each device with its equation, its bar and its holders, the largest first; then what other guards promised."""
    usage = Assessment(tuple(_usage(facts, device) for device in devices), {}, (), (), (), ())
    return [*(line.removeprefix("  ") for line in device_lines(usage, refused=True)), *_claim_lines(facts, usage)]


def gpus_document(facts: Facts, devices: Sequence[Device]) -> dict[str, Any]:
    """The same as JSON values, sizes in bytes."""
    shown = [{key: value for key, value in device_document(_usage(facts, device)).items() if key not in _BUDGET_KEYS} for device in devices]
    return {"schema_version": SCHEMA_VERSION, "devices": shown, "claims": [asdict(claim) for claim in facts.claims]}


def _usage(facts: Facts, device: Device) -> DevicePlan:
    return DevicePlan(device, 0, 0, 0, device.free_bytes, None, limiting=False, holders_incomplete=why_incomplete(facts, device))


def _claim_lines(facts: Facts, usage: Assessment) -> Iterator[str]:
    """What other guards promised their vLLM, card by card, with whose promise it is."""
    for plan in usage.devices:
        for claim in facts.claims:
            if claim.uuid == plan.device.claim_key:
                age = "" if claim.age_seconds is None else f"  up {age_text(claim.age_seconds)}"
                to_come = "does not count any more" if claim.ended else f"{floor_mib(claim.outstanding_bytes)} MiB to come"
                owner = f"pid {claim.pid}  {plain(claim.user or 'unknown')}{age}"
                promised, used = floor_mib(claim.promised_bytes), floor_mib(claim.used_bytes)
                yield f"{device_label(plan)}  {promised} MiB claimed by {owner}   {used} MiB of it used, {to_come}"
