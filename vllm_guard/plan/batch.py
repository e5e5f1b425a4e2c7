"""The batch budget that vLLM itself chooses for `max_num_batched_tokens`, by release: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vllm_guard.command.launcher import Usage
from vllm_guard.devices import Device
from vllm_guard.model.config import ModelTraits
from vllm_guard.plan.defaults import (
    CPU_MAX_NUM_BATCHED_TOKENS,
    CPU_MAX_NUM_SEQS,
    OTHER_MAX_NUM_BATCHED_TOKENS,
    OTHER_MAX_NUM_SEQS,
    Behaviour,
)

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
