"""What the user could ask for instead so that one full sequence likely fits, each tried with its number: pure. Nothing of it is ever done by the guard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_guard.model.unknown import Unknown
from vllm_guard.plan import ask
from vllm_guard.plan.budget import format_fraction, fraction_within
from vllm_guard.plan.capping import capping_is_unsafe
from vllm_guard.plan.case import Case
from vllm_guard.plan.trial import CEILING, Trial, try_case

_SHORTEST: Final = 256
_LEAST_BATCH: Final = 64
_SMALL: Final = {"max_num_batched_tokens": 2048, "max_num_seqs": 16}
_SIXTEEN_BITS: Final = ("auto", "bfloat16", "float16")
_FIRST_WITH_FP8: Final = (8, 9)  # older cards have it with some attention backends only (v1/attention/backends/*.py supports_kv_cache_dtype)


def smaller_requests(case: Case) -> Iterator[str]:
    """Flags with values that were tried, least harmful first: more of the card where less was asked than is safe, a batch budget that was given, a length
    that was not, fewer sequences, a length that was given, an 8-bit cache, no CUDA graphs; where none is enough, three of them at once. Nothing where the
    model's needs are not what fails.
    """
    trial = try_case(case)
    if not trial.misses:
        return
    alone = False
    for request in _alone(case, trial):
        alone = True
        yield request
    if not alone:
        yield from _together(case)


def _alone(case: Case, trial: Trial) -> Iterator[str]:
    given = case.command.given
    safe = min(CEILING, *(fraction_within(each.usable_bytes, each.device.nvml_total_bytes) for each in case.rooms))
    if case.asked.given and safe > case.asked.most and _helps(case, "gpu_memory_utilization", safe):
        yield f"--gpu-memory-utilization {format_fraction(safe)}"
    if "max_num_batched_tokens" in given:
        yield from _halved(case, "max_num_batched_tokens", case.batch.effective, max(_LEAST_BATCH, case.batch.max_num_seqs or 0))
    if "max_model_len" not in given:
        yield from _shorter(case, trial)
    yield from _fewer(case, trial)
    if "max_model_len" in given:
        yield from _shorter(case, trial)
    kv, old = case.demand.kv, any((each.device.compute_capability or _FIRST_WITH_FP8) < _FIRST_WITH_FP8 for each in case.rooms)
    if not isinstance(kv, Unknown) and kv.setting.kv_cache_dtype in _SIXTEEN_BITS and not old and _helps(case, "kv_cache_dtype", "fp8"):
        yield "--kv-cache-dtype fp8"
    if case.demand.cuda_graphs.likely and _helps(case, "enforce_eager", value=True):
        yield "--enforce-eager"


def _together(case: Case) -> Iterator[str]:
    """A small batch of few sequences, and the longest one that the pool would likely hold then."""
    batch = case.command.integer("max_num_batched_tokens", 0) or case.batch.effective
    now = {"max_num_batched_tokens": batch, "max_num_seqs": case.batch.max_num_seqs}
    if capping_is_unsafe(case.rows, ask.batch_ask(case.command, case.traits)) is not None:
        del now["max_num_batched_tokens"]
    values: dict[str, object] = {dest: _SMALL[dest] for dest, value in now.items() if value is not None and value > _SMALL[dest]}
    kv, length = case.demand.kv, ask.effective_max_model_len(case.command, case.traits)
    if isinstance(kv, Unknown) or length is None or not values:
        return
    longest = kv.largest_max_model_len(try_case(case.asking(values)).gates[2].have_bytes or 0)
    values = {"max_model_len": longest, **values} if longest < length else values
    if longest >= _SHORTEST and not try_case(case.asking(values)).misses:
        yield " ".join(f"--{dest.replace('_', '-')} {value}" for dest, value in values.items())


def _helps(case: Case, dest: str, value: object) -> bool:
    return not try_case(case.asking({dest: value})).misses


def _halved(case: Case, dest: str, now: int | None, least: int) -> Iterator[str]:
    """The largest power of two below the present value that helps."""
    power = 1 << max(0, ((now or 0) - 1).bit_length() - 1)
    while power >= least and power < (now or 0):
        if _helps(case, dest, power):
            yield f"--{dest.replace('_', '-')} {power}"
            return
        power //= 2


def _fewer(case: Case, trial: Trial) -> Iterator[str]:
    """As many sequences as the pool likely has blocks for, where recurrent layers keep a state for each; else the largest power of two that helps."""
    kv, now = case.demand.kv, case.batch.max_num_seqs or 0
    blocks = 0 if isinstance(kv, Unknown) or not kv.keeps_states else kv.blocks_in(trial.gates[2].have_bytes or 0)
    if 0 < blocks < now and _helps(case, "max_num_seqs", blocks):
        yield f"--max-num-seqs {blocks}"
    else:
        yield from _halved(case, "max_num_seqs", now, 1)


def _shorter(case: Case, trial: Trial) -> Iterator[str]:
    """The longest sequence that the pool would likely hold; where the batch follows the length, the largest power of two that helps."""
    kv, length = case.demand.kv, ask.effective_max_model_len(case.command, case.traits)
    if not isinstance(kv, Unknown):
        longest = kv.largest_max_model_len(trial.gates[2].have_bytes or 0)
        if longest >= _SHORTEST and _helps(case, "max_model_len", longest):
            yield f"--max-model-len {longest}"
            return
    yield from _halved(case, "max_model_len", length, _SHORTEST)
