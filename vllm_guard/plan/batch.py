"""The batch budget: what vLLM itself would choose for `max_num_batched_tokens`, and whether that needs a cap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from vllm_guard.command.launcher import Usage
from vllm_guard.facts import Device
from vllm_guard.model.config import ModelTraits
from vllm_guard.plan.defaults import (
    CPU_MAX_NUM_BATCHED_TOKENS,
    CPU_MAX_NUM_SEQS,
    OTHER_MAX_NUM_BATCHED_TOKENS,
    OTHER_MAX_NUM_SEQS,
    Behaviour,
)
from vllm_guard.plan.policy import Policy
from vllm_guard.units import GIB

_SMALL_CARD_BYTES: Final = 8 * GIB
_SMALL_CARD_TOKENS: Final = 1024
# No model that vLLM serves is shorter: R * L is above every default batch where R is a default too.
_SHORTEST_MODEL_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class BatchAsk:
    """What the command and the model say about batches. None is "not given" or "not known"."""

    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    max_model_len: int | None
    chunked_prefill: bool | None
    disable_chunked_mm_input: bool
    throughput_mode: bool
    speculative: bool
    pooling: bool
    prefix_caching: bool
    expert_all2all: bool
    world: int
    traits: ModelTraits | None
    usage: Usage = "api_server"


@dataclass(frozen=True, slots=True)
class OwnChoice:
    """What one release takes, given values included; the batch budget is None when it cannot be known."""

    max_num_batched_tokens: int | None
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The values without the guard, and the batch budget to emit: None when nothing is emitted, and why."""

    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    emit: int | None
    because: str


def own_choice(row: Behaviour, device: Device, ask: BatchAsk) -> OwnChoice:
    """vLLM's own rule of this release, given values included: tier, throughput mode, chunked prefill, R * L (engine/arg_utils.py)."""
    tokens, seqs = _tier(row, device, ask)
    factor = 2 if ask.throughput_mode else 1
    tokens, seqs = tokens * factor, (seqs * factor if ask.max_num_seqs is None else ask.max_num_seqs)
    if ask.max_num_batched_tokens is not None:
        own: int | None = ask.max_num_batched_tokens
    elif ask.usage == "unknown" or ask.expert_all2all or (row.prefix_lm_raises_batch and ask.traits is not None and ask.traits.large_items):
        own = None
    else:
        own = _follow_lengths(row, ask, tokens, seqs)
    if ask.max_num_seqs is None and row.default_seqs_are_clipped and own is not None:
        seqs = min(seqs, own)
    if device.kind == "cpu" and ask.traits is not None and ask.traits.latent:
        own = None  # without AMX the CPU build takes a whole sequence and at least 2048 in the end, whatever was given (platforms/cpu.py)
    return OwnChoice(own, seqs)


def _tier(row: Behaviour, device: Device, ask: BatchAsk) -> tuple[int, int]:
    if ask.usage == "other":
        return OTHER_MAX_NUM_BATCHED_TOKENS, OTHER_MAX_NUM_SEQS
    llm_class = ask.usage == "llm_class"
    if device.kind == "cpu":
        factor = 2 * ask.world if llm_class else ask.world
        return CPU_MAX_NUM_BATCHED_TOKENS * factor, CPU_MAX_NUM_SEQS * factor
    total = 0 if device.unified else device.tier_total_bytes
    a100 = "a100" in device.tier_name.lower()
    tier = next(tier for tier in row.tiers if total >= tier.at_least_total_bytes and not (a100 and tier.not_a100))
    return tier.llm_class_tokens if llm_class else tier.max_num_batched_tokens, tier.max_num_seqs


def _follow_lengths(row: Behaviour, ask: BatchAsk, tokens: int, seqs: int) -> int | None:
    """The batch budget after the lengths: at least one whole sequence where chunked prefill is off, and no more than R * L. None when not known."""
    length, unchunked = ask.max_model_len, _unchunked(ask)
    if length is None:
        short = row.batch_follows_lengths and seqs * _SHORTEST_MODEL_TOKENS < tokens
        return None if short or unchunked is not False else tokens
    if unchunked is None and length > tokens:
        return None
    raised = max(length, tokens) if unchunked else tokens
    return min(seqs * length, raised) if row.batch_follows_lengths else raised


def _unchunked(ask: BatchAsk) -> bool | None:
    """Whether chunked prefill is off; None where the class of a pooling model decides (config/model.py is_chunked_prefill_supported)."""
    if ask.chunked_prefill is not None:
        return not ask.chunked_prefill
    if ask.traits is not None and ask.traits.encoder_decoder:
        return True
    return None if ask.pooling else False


def decide_batch(rows: Sequence[Behaviour], devices: Sequence[Device], ask: BatchAsk, policy: Policy, *, starved: bool) -> BatchPlan:
    """Whether to cap the batch budget, and why or why not. `starved`: the launch would fail, or its pool would miss one full sequence."""
    device = min(devices, key=lambda each: each.nvml_total_bytes)
    choices = [own_choice(row, device, ask) for row in rows]
    same = choices[0] if len(set(choices)) == 1 else None
    kept = BatchPlan(
        same.max_num_batched_tokens if same else ask.max_num_batched_tokens,
        same.max_num_seqs if same else ask.max_num_seqs,
        None,
        "",
    )
    wish = _wish(rows, device, ask, policy, starved=starved)
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


def _wish(rows: Sequence[Behaviour], device: Device, ask: BatchAsk, policy: Policy, *, starved: bool) -> tuple[int, str] | str:
    """The cap that is wanted with its reason, or why none is."""
    own = _least_own(rows, device, ask)
    if device.kind == "cpu":
        return "the CPU build's batch budget is left alone"
    if policy.batched_tokens == "off" or "batched_tokens" not in policy.levers:
        return "left alone by the guard's settings"
    if ask.max_num_batched_tokens is not None:
        return _wish_for_given(rows, device, ask, ask.max_num_batched_tokens, starved=starved)
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


def _wish_for_given(rows: Sequence[Behaviour], device: Device, ask: BatchAsk, given: int, *, starved: bool) -> tuple[int, str] | str:
    """A given value stays, but for one that follows a long context and starves the pool; nothing is emitted where two releases would differ."""
    own = _least_own(rows, device, replace(ask, max_num_batched_tokens=None))
    if len({own_choice(row, device, replace(ask, max_num_batched_tokens=None)) for row in rows}) > 1:
        return f"the given {given} stays"
    if starved and ask.max_model_len is not None and own is not None and given >= ask.max_model_len and given > own:
        return own, f"the given {given} follows --max-model-len {ask.max_model_len} and leaves too little for the KV cache; vLLM alone would take {own}"
    return f"the given {given} stays"


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
