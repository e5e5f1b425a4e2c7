"""What a model would find on cards of some size: one row for each tensor parallel size. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

from typing_extensions import assert_never

from vllm_guard.command.parse import Command, Given
from vllm_guard.facts import Facts, Gpu
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan.decision import Decision, Gate, Launch, Refusal, Unmeasured
from vllm_guard.plan.needs import Demand

_SIZES: Final = (1, 2, 4, 8)
_PLACES: Final = frozenset(("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"))
Verdict = Literal["yes", "likely", "unlikely", "no", "unknown"]


@dataclass(frozen=True, slots=True)
class Row:
    """What fits at one tensor parallel size; bytes are those of one GPU. `pool_bytes` is the likely KV cache, `full_sequences` how many of `max_model_len`
    it holds, `longest` the largest length of a single sequence, and `longest_at_concurrency` that of as many as were asked for. None is unknown.
    """

    tensor_parallel_size: int
    verdict: Verdict
    because: str
    gpu_memory_utilization: float | None
    demand: Demand | None
    pool_bytes: int | None
    full_sequences: float | None
    longest: int | None
    longest_at_concurrency: int | None


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one kind of cards."""

    cards: str
    memory_bytes: int | None
    rows: tuple[Row, ...]


def empty_cards(facts: Facts, memory_bytes: int, count: int) -> Facts:
    """A host with this many equal cards on which nothing runs. `memory_bytes` counts as what CUDA sees of a card, so nothing is the driver's."""
    name = f"a card of {memory_bytes} bytes"
    cards = tuple(Gpu(index, f"GPU-{index}", name, memory_bytes, memory_bytes, driver_reserved_bytes=0) for index in range(count))
    environment = {variable: value for variable, value in facts.environment.items() if variable not in _PLACES}
    return replace(facts, gpus=cards, nvml_fault=None, claims=(), environment=MappingProxyType(environment))


def parallel_sizes(command: Command, heads: int, most: int) -> tuple[int, ...]:
    """The tensor parallel sizes to show: the given one, else those up to `most` that divide the attention heads (0: none are known)."""
    if "tensor_parallel_size" in command.given:
        return (max(1, command.integer("tensor_parallel_size", 1)),)
    sizes = sorted({*(size for size in _SIZES if size <= most), most})
    return tuple(size for size in sizes if heads == 0 or heads % size == 0)


def with_parallel_size(command: Command, tensor_parallel_size: int) -> Command:
    """The command as if this size had been given."""
    given = Given(tensor_parallel_size, str(tensor_parallel_size), "argv")
    return replace(command, given=MappingProxyType({**command.given, "tensor_parallel_size": given}))


def row_of(decision: Decision, tensor_parallel_size: int, concurrency: int, longest_tokens: int | None) -> Row:
    """What a decision says about one size. `longest_tokens` is the most that the model itself can."""
    match decision:
        case Unmeasured(message=message):
            return Row(tensor_parallel_size, "unknown", message, None, None, None, None, None, None)
        case Launch(assessment):
            verdict, because = _verdict(assessment.gates)
            capped = [f"{change.flag} {change.after}" for change in assessment.changes if change.dest != "gpu_memory_utilization"]
            because = because or (f"with {' '.join(capped)}" if capped else "")
        case Refusal(assessment=assessment):
            verdict, because = "no", decision.reason
        case _:
            assert_never(decision)
    fraction = assessment.settings["gpu_memory_utilization"].value if "gpu_memory_utilization" in assessment.settings else None
    row = Row(
        tensor_parallel_size, verdict, because, fraction if isinstance(fraction, float) else None, assessment.demand, _pool(assessment.gates), None, None, None
    )
    kv = assessment.demand.kv if assessment.demand is not None else None
    if row.pool_bytes is None or kv is None or isinstance(kv, Unknown) or not kv.plan.groups:
        return row
    up_to = longest_tokens or kv.setting.max_model_len
    return replace(
        row,
        full_sequences=round(row.pool_bytes / kv.one_sequence_bytes, 2),
        longest=kv.longest_of(row.pool_bytes, 1, up_to),
        longest_at_concurrency=kv.longest_of(row.pool_bytes, concurrency, up_to),
    )


def _pool(gates: Sequence[Gate]) -> int | None:
    have = next((gate.have_bytes for gate in gates if gate.gate == "one_sequence"), None)
    return None if have is None else max(0, have)


def _verdict(gates: Sequence[Gate]) -> tuple[Verdict, str]:
    """The second and the third gate: certain either way, or by the likely figures."""
    judged = [gate for gate in gates if gate.gate != "free_memory"]
    unknown = next((gate for gate in judged if gate.outcome == "unknown"), None)
    if unknown is not None:
        return "unknown", unknown.detail
    if all(gate.outcome == "pass" for gate in judged):
        return "yes", ""
    return ("likely", "") if all((gate.have_bytes or 0) >= (gate.need_bytes or 0) for gate in judged) else ("unlikely", "")
