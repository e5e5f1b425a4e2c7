"""How much of a card a launch will take: what other guards must leave to it until it has."""

from __future__ import annotations

from vllm_guard.plan.budget import cuda_total_bytes
from vllm_guard.plan.decision import DevicePlan, Launch
from vllm_guard.units import requested_bytes


def promised_bytes(launch: Launch, plan: DevicePlan) -> int:
    """What vLLM will take of this device at most: what it requests there, what its process takes before and what it adds beyond; at most the card.

    Where the size of the KV cache is given in bytes, the fraction only decides the gate: then it is that cache and the model, if that is known.
    """
    change = next((change for change in launch.assessment.changes if change.dest == "gpu_memory_utilization"), None)
    fraction = plan.gpu_memory_utilization if change is None else float(change.after)
    total = cuda_total_bytes(plan.device)[1]
    budget = total if fraction is None else requested_bytes(total, fraction)
    given = launch.assessment.settings.get("kv_cache_memory_bytes")
    demand = launch.assessment.demand
    if given is not None and isinstance(given.value, int) and demand is not None and demand.beside_pool is not None:
        budget = demand.beside_pool.high + given.value
    return min(budget + plan.start_overhead_bytes + plan.outside_budget_bytes, plan.device.nvml_total_bytes)
