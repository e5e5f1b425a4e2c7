"""How many devices of this host a vLLM command line takes.

Sources: vLLM 0.33.0 config/parallel.py (worker index = local rank + local data-parallel rank * ranks of a replica), engine/arg_utils.py.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from vllm_guard.devices import Elsewhere
from vllm_guard.facts import Warn

if TYPE_CHECKING:
    from vllm_guard.command.parse import Command

# Decode context parallelism is absent on purpose: it reuses the tensor-parallel ranks.
_SIZES: Final = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")


def local_ranks(command: Command) -> int | Elsewhere:
    """The number n of this command's ranks on this host, at least 1: they take the logical devices 0 to n - 1, one each.

    Sizes that vLLM will reject (zero, negative) count as 1. Elsewhere when something other than this host's vLLM places the ranks.
    """
    placed_elsewhere = _placed_elsewhere(command)
    if placed_elsewhere is not None:
        return Elsewhere(placed_elsewhere)
    replica = prod(_size(command, dest) for dest in _SIZES)
    nodes = _size(command, "nnodes")
    replicas = _size(command, "data_parallel_size")
    local_replicas = _local_replicas(command, replica, replicas, nodes)
    nodes_per_replica = nodes // max(1, replicas // local_replicas)
    if nodes_per_replica > 1:
        return max(1, replica // nodes_per_replica)
    return replica * local_replicas


def _size(command: Command, dest: str) -> int:
    return max(1, command.integer(dest, 1))


def _local_replicas(command: Command, replica: int, replicas: int, nodes: int) -> int:
    """Data-parallel replicas on this host. With --data-parallel-multi-port-external-lb one supervisor starts all of them here, so it is no special case."""
    if "data_parallel_size_local" in command.given:
        return _size(command, "data_parallel_size_local")
    if "data_parallel_rank" in command.given or command.flag("data_parallel_external_lb"):
        return 1
    return max(replicas * replica // nodes // replica, 1)


def _placed_elsewhere(command: Command) -> Warn | None:
    executor = command.text("distributed_executor_backend")
    if executor == "ray" or command.text("data_parallel_backend") == "ray" or command.flag("worker_use_ray"):
        return Warn("ray_places_ranks", "Ray chooses the GPUs of this command, so nothing was measured and nothing changed")
    if executor == "external_launcher":
        return Warn("launcher_places_ranks", "an external launcher chooses the GPU of each rank, so nothing was measured and nothing changed")
    if command.integer("data_parallel_size_local", 1) == 0:
        return Warn("no_local_ranks", "--data-parallel-size-local 0 takes no device of this host, so nothing was measured and nothing changed")
    return None
