"""An estimate as a table for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_guard.model.unknown import Unknown
from vllm_guard.plan.decision import RefusalReason
from vllm_guard.plan.defaults import BEHAVIOURS, is_assumed
from vllm_guard.plan.estimate import Row, Table
from vllm_guard.plan.needs import Demand
from vllm_guard.release import parse_release
from vllm_guard.render.demand import demand_document
from vllm_guard.render.devices import plain
from vllm_guard.render.document import SCHEMA_VERSION
from vllm_guard.units import ceil_mib, floor_mib

_UNKNOWN: Final = "?"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is estimated: the model, its architecture, the release that counts, and how many sequences at once were asked for."""

    model: str
    architecture: str | None
    vllm_version: str | None
    concurrency: int


def estimate_lines(subject: Subject, tables: Sequence[Table]) -> Iterator[str]:
    """The model's needs on one GPU, and for each kind of cards what fits at each tensor parallel size; sizes in MiB of one GPU."""
    release = parse_release(subject.vllm_version)
    named = f"{BEHAVIOURS[-1].last} (assumed)" if is_assumed(release) else str(release)
    yield f"{plain(subject.model)}   {plain(subject.architecture or 'architecture unknown')}   vLLM {named}"
    first = next((row for table in tables for row in table.rows if row.demand is not None), None)
    if first is not None and first.demand is not None:
        yield from _needs(first.demand, first.tensor_parallel_size, subject.concurrency)
    for table in tables:
        yield ""
        yield from _table(table, subject.concurrency)


def _needs(demand: Demand, tensor_parallel_size: int, concurrency: int) -> Iterator[str]:
    where = "" if tensor_parallel_size == 1 else f" on each of {tensor_parallel_size} GPUs"
    weights = demand.weights
    if isinstance(weights, Unknown):
        yield f"  weights    unknown: {plain(weights.because)}"
    else:
        parts = " + ".join(f"{name} {floor_mib(size)}" for name, size in weights.parts if size)
        bounds = f"{floor_mib(weights.low)} to {ceil_mib(weights.high)}, {weights.source}"
        yield f"  weights    {ceil_mib(weights.likely)} MiB{where} ({bounds}): {parts}"
    kv = demand.kv
    if isinstance(kv, Unknown):
        yield f"  KV cache   unknown: {plain(kv.because)}"
        return
    token = "no fixed size a token" if kv.bytes_per_token is None else f"{kv.bytes_per_token} bytes a token"
    one = f"{ceil_mib(kv.one_sequence_bytes)} MiB for a sequence of {kv.setting.max_model_len} tokens"
    many = "" if concurrency == 1 else f", {ceil_mib(kv.one_sequence_bytes * concurrency)} MiB for {concurrency}"
    yield f"  KV cache   {token}{where}, {one}{many}"


def _table(table: Table, concurrency: int) -> Iterator[str]:
    heads = [
        "TP",
        "utilization",
        "weights",
        "activations",
        "graphs",
        "KV cache",
        "sequences",
        "longest",
        *([f"longest of {concurrency}"] if concurrency > 1 else []),
        "fits",
    ]
    cells = [heads, *(_cells(row, concurrency) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    yield f"{table.cards}   [MiB on each GPU]"
    for line in cells:
        *numbers, last = line
        yield "  " + "  ".join([*(cell.rjust(width) for cell, width in zip(numbers, widths, strict=False)), last]).rstrip()


def _cells(row: Row, concurrency: int) -> list[str]:
    demand = row.demand
    weights = _UNKNOWN if demand is None or isinstance(demand.weights, Unknown) else str(ceil_mib(demand.weights.likely))
    activation = _UNKNOWN if demand is None or isinstance(demand.activation, Unknown) else str(ceil_mib(demand.activation.likely))
    graphs = _UNKNOWN if demand is None else str(ceil_mib(demand.cuda_graphs.likely))
    pool = _UNKNOWN if row.pool_bytes is None else str(floor_mib(row.pool_bytes))
    sequences = _UNKNOWN if row.full_sequences is None else f"{row.full_sequences:g}"
    lengths = [row.longest, *([row.longest_at_concurrency] if concurrency > 1 else [])]
    verdict = row.verdict if not row.because else f"{row.verdict}: {plain(_REASONS.get(row.because, row.because))}"
    fraction = _UNKNOWN if row.gpu_memory_utilization is None else f"{row.gpu_memory_utilization:g}"
    numbers = [str(row.tensor_parallel_size), fraction, weights, activation, graphs, pool, sequences]
    return [*numbers, *(_UNKNOWN if one is None else str(one) for one in lengths), verdict]


_REASONS: Final[dict[RefusalReason | str, str]] = {
    "gpu_busy": "not beside what is on the cards",
    "model_too_large": "the weights leave nothing for the KV cache",
    "context_too_long": "one sequence of this length is too long",
    "below_min_kv_cache": "the KV cache would be too small",
}


def estimate_document(subject: Subject, tables: Sequence[Table]) -> dict[str, Any]:
    """The same as JSON values; sizes in bytes of one GPU, unknown is null."""
    release = parse_release(subject.vllm_version)
    return {
        "schema_version": SCHEMA_VERSION,
        "model": subject.model,
        "architecture": subject.architecture,
        "vllm": {"version": subject.vllm_version, "assumed": is_assumed(release)},
        "concurrency": subject.concurrency,
        "cards": [{"name": table.cards, "memory_bytes": table.memory_bytes, "rows": [_row(row) for row in table.rows]} for table in tables],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "tensor_parallel_size": row.tensor_parallel_size,
        "fits": row.verdict,
        "because": row.because or None,
        "gpu_memory_utilization": row.gpu_memory_utilization,
        "max_model_len": None if row.demand is None or isinstance(row.demand.kv, Unknown) else row.demand.kv.setting.max_model_len,
        "demand": demand_document(row.demand),
        "kv_pool_bytes": row.pool_bytes,
        "full_sequences": row.full_sequences,
        "longest_max_model_len": row.longest,
        "longest_max_model_len_at_concurrency": row.longest_at_concurrency,
    }
