"""The devices of vLLM's CPU build: NUMA nodes of host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vllm_guard.devices import Chosen, Device, Elsewhere, claimed_bytes
from vllm_guard.facts import Claim, Host, NumaNode, Warn
from vllm_guard.release import Release

# vllm/v1/worker/cpu_worker.py: the KV cache was VLLM_CPU_KVCACHE_SPACE before, with nothing measured.
_FIRST_WITH_GATE: Final = Release(0, 21)


def choose_nodes(host: Host, ranks: int, release: Release | None, claims: Sequence[Claim]) -> Chosen | Elsewhere:
    """One device per NUMA node that the ranks use; rank i counts against node i modulo the nodes.

    Total and free are the node's, which the reader counted as vLLM does. A host whose nodes are unknown is one node of at most the cgroup's limit.
    Elsewhere before 0.21.0, whose CPU build measures nothing; an unknown release is taken for a later one.
    """
    if release is not None and release < _FIRST_WITH_GATE:
        return Elsewhere(Warn("cpu_build_without_gate", f"the CPU build of vLLM {release} measures no memory at start, so nothing was changed"))
    nodes = nodes_with_memory(host)
    used = nodes[:ranks]
    devices = (_device(host, ordinal, node, len(range(ordinal, ranks, len(nodes))), claims) for ordinal, node in enumerate(used))
    return Chosen(tuple(devices), ranks)


def nodes_with_memory(host: Host) -> tuple[NumaNode, ...]:
    """The nodes that can take a rank, at least one: one without memory (a device, a hot-plug slot) takes none."""
    return tuple(node for node in host.nodes if node.total_bytes > 0) or (_whole(host),)


def claim_key(host: Host, node: NumaNode) -> str | None:
    """The name under which guards promise the memory of a node to each other; None under a cgroup's limit, which binds a container alone."""
    bound = host.cgroup_limit_bytes is not None and host.cgroup_limit_bytes <= node.total_bytes
    return None if bound else f"numa-node-{node.node}"


def _whole(host: Host) -> NumaNode:
    limit_bytes = host.memory_total_bytes if host.cgroup_limit_bytes is None else min(host.memory_total_bytes, host.cgroup_limit_bytes)
    return NumaNode(0, limit_bytes, min(host.memory_available_bytes, limit_bytes))


def _device(host: Host, ordinal: int, node: NumaNode, ranks: int, claims: Sequence[Claim]) -> Device:
    free_bytes, key = min(node.available_bytes, node.total_bytes), claim_key(host, node)
    return Device(
        kind="cpu",
        ordinal=ordinal,
        nvml_index=None,
        uuid=None,
        name=f"NUMA node {node.node}",
        nvml_total_bytes=node.total_bytes,
        free_bytes=free_bytes,
        tier_total_bytes=node.total_bytes,
        ranks=ranks,
        processes=host.processes,
        claimed_bytes=claimed_bytes(claims, key, free_bytes),
        processes_unreadable=host.processes_unreadable,
        claim_key=key,
    )
