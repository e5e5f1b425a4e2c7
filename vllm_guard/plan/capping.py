"""Whether the batch budget needs a cap, and which: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vllm_guard.devices import Device
from vllm_guard.plan.batch import BatchAsk, own_choice
from vllm_guard.plan.defaults import Behaviour
from vllm_guard.plan.policy import Policy
from vllm_guard.units import GIB

_SMALL_CARD_BYTES: Final = 8 * GIB
_SMALL_CARD_TOKENS: Final = 1024
_LEAST_POWER: Final = 6  # a server of fewer than 64 tokens a step is none that anybody wants


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The values without the guard, and the batch budget to emit: None when nothing is emitted, and why."""

    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    emit: int | None
    because: str

    @property
    def effective(self) -> int | None:
        """The batch budget that vLLM will use; None when it cannot be known."""
        return self.max_num_batched_tokens if self.emit is None else self.emit


def decide_batch(rows: Sequence[Behaviour], devices: Sequence[Device], ask: BatchAsk, policy: Policy) -> BatchPlan:
    """The batch budget of a command whose memory needs are not weighed: whether to cap it, and why or why not."""
    device = smallest(devices)
    return _planned(rows, device, ask, _wish(rows, device, ask, policy))


def smaller_batches(rows: Sequence[Behaviour], devices: Sequence[Device], ask: BatchAsk, policy: Policy) -> Iterator[BatchPlan]:
    """What to try, the largest first, where the launch fails or its pool misses one full sequence: for a given value that follows a long context vLLM's own
    choice, for vLLM's own choice the powers of two below it. Nothing where capping is unsafe, not wanted, or not the same in every release of the rows.
    """
    device = smallest(devices)
    if _hands_off(device, policy) is not None or capping_is_unsafe(rows, ask) is not None:
        return
    given = ask.max_num_batched_tokens
    own = _least_own(rows, device, replace(ask, max_num_batched_tokens=None))
    if own is None:
        return
    if given is not None:
        alone = {own_choice(row, device, replace(ask, max_num_batched_tokens=None)) for row in rows}
        if len(alone) == 1 and ask.max_model_len is not None and given >= ask.max_model_len and given > own:
            because = f"the given {given} follows --max-model-len {ask.max_model_len} and leaves too little for the KV cache; vLLM alone would take {own}"
            yield _planned(rows, device, ask, (own, because))
        return
    now = decide_batch(rows, devices, ask, policy).effective or own
    for power in range((now - 1).bit_length() - 1, _LEAST_POWER - 1, -1):
        tried = _planned(rows, device, ask, (1 << power, f"with {now} the KV cache would likely miss one full sequence"))
        if tried.emit is not None and tried.emit < now:
            yield tried


def smallest(devices: Sequence[Device]) -> Device:
    """The device that decides about the batch budget."""
    return min(devices, key=lambda each: each.nvml_total_bytes)


def _planned(rows: Sequence[Behaviour], device: Device, ask: BatchAsk, wish: tuple[int, str] | str) -> BatchPlan:
    """The plan of a wish, or of the reason why there is none."""
    choices = [own_choice(row, device, ask) for row in rows]
    same = choices[0] if len(set(choices)) == 1 else None
    kept = BatchPlan(
        same.max_num_batched_tokens if same else ask.max_num_batched_tokens,
        same.max_num_seqs if same else ask.max_num_seqs,
        None,
        "",
    )
    if isinstance(wish, str):
        return replace(kept, because=wish)
    target, because = wish
    unsafe = capping_is_unsafe(rows, ask)
    if unsafe is not None:
        return replace(kept, because=f"not capped at {target}: {unsafe}")
    seqs = max(choice.max_num_seqs for choice in choices)
    if target < seqs:
        target, because = seqs, f"{because}; not below --max-num-seqs {seqs}"
    if any((choice.max_num_batched_tokens or 0) <= target for choice in choices):
        return replace(kept, because=f"not capped: it may not be below --max-num-seqs {seqs}")
    return replace(kept, emit=target, because=because)


def _hands_off(device: Device, policy: Policy) -> str | None:
    """Why the batch budget is not the guard's to change, or None."""
    if device.kind == "cpu":
        return "the CPU build's batch budget is left alone"
    if policy.batched_tokens == "off" or "batched_tokens" not in policy.levers:
        return "left alone by the guard's settings"
    return None


def _wish(rows: Sequence[Behaviour], device: Device, ask: BatchAsk, policy: Policy) -> tuple[int, str] | str:
    """The cap that is wanted with its reason, or why none is."""
    own = _least_own(rows, device, ask)
    hands_off = _hands_off(device, policy)
    if hands_off is not None:
        return hands_off
    if ask.max_num_batched_tokens is not None:
        return f"the given {ask.max_num_batched_tokens} stays"
    if own is None:
        return "vLLM's own choice is not known for this model and release"
    if isinstance(policy.batched_tokens, int):
        if own <= policy.batched_tokens:
            return f"vLLM's own choice {own} is within the ceiling {policy.batched_tokens}"
        return policy.batched_tokens, f"batched_tokens sets a ceiling, vLLM would take {own}"
    if ask.traits is None:
        return "without a readable config.json nothing is known"
    if device.nvml_total_bytes < _SMALL_CARD_BYTES and own > _SMALL_CARD_TOKENS:
        return _SMALL_CARD_TOKENS, f"the card has less than 8 GiB and vLLM would take {own}"
    return f"vLLM's own choice {own} is kept"


def _least_own(rows: Sequence[Behaviour], device: Device, ask: BatchAsk) -> int | None:
    """The smallest choice that a release of these rows may make; None when one of them is unknown."""
    owns = [own_choice(row, device, ask).max_num_batched_tokens for row in rows]
    known = [own for own in owns if own is not None]
    return min(known) if len(known) == len(owns) else None


def capping_is_unsafe(rows: Sequence[Behaviour], ask: BatchAsk) -> str | None:
    """Why an explicit batch budget could break this command, or None. An explicit value switches off the raises that vLLM makes itself."""
    traits = ask.traits
    if ask.chunked_prefill is False:
        return "chunked prefill is off, so a batch must hold a whole sequence"
    if ask.pooling or (traits is not None and not traits.generates):
        return "a pooling model may run without chunked prefill"
    if traits is not None and traits.encoder_decoder:
        return "encoder-decoder models run without chunked prefill"
    if traits is not None and not traits.causal:
        return "layers that are not causal switch chunked prefill off"
    if ask.disable_chunked_mm_input or (traits is not None and traits.prefix_lm):
        return "a multimodal item cannot be split, and must fit into one batch"
    if ask.speculative:
        return "speculative decoding takes slots from the batch"
    if traits is not None and traits.hybrid and ask.prefix_caching and any(row.hybrid_batch_floor for row in rows):
        return "this release needs a batch of at least the hybrid model's block size"
    return None
