"""The activation peak of vLLM's profile run and its CUDA graphs: pure, and always a band."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_guard.model.config import text_config
from vllm_guard.model.feed_forward import expert_count, is_gated
from vllm_guard.model.fields import Fields
from vllm_guard.model.unknown import Unknown
from vllm_guard.units import GIB, MIB

_VALUE_BYTES: Final = 2
# Bytes for each logit: 16-bit logits, a 32-bit copy, sorted values and indices, temporaries. The V2 runner samples in one kernel and was seen at 1.8 times
# what its buffers alone would take.
_V1_LOGIT_BYTES: Final = 33
_V2_LOGIT_BYTES: Final = 24
# What the largest dummy images or videos of a multimodal model were seen to add: nothing for LLaVA 1.5, 1 to 3.5 GiB for the Qwen families.
_ENCODER_LIKELY_BYTES: Final = 1200 * MIB
_ENCODER_HIGH_BYTES: Final = 4 * GIB
_GRAPHS: Final = (0, 320 * MIB, 1536 * MIB)


@dataclass(frozen=True, slots=True)
class Band:
    """A size that is not known exactly, in bytes: it is hardly below `low` or above `high`."""

    low: int
    likely: int
    high: int


# Python, torch and the kernels of a worker of the CPU build, which count as part of the budget there.
_CPU_WORKER: Final = Band(400 * MIB, 700 * MIB, 1536 * MIB)


@dataclass(frozen=True, slots=True)
class Activation(Band):
    """The peak of the profile run, and what it follows: where the logits of `sampled` sequences decide, only fewer of them help."""

    sampled: int = 0
    vocabulary: int = 0


@dataclass(frozen=True, slots=True)
class ProfileRun:
    """What vLLM profiles: a batch of `tokens` in at most `sequences` requests. `widths_are_known`: the MLPs of this model are as wide as its config says;
    Molmo's and Qwen's are half of it (models/molmo.py, qwen.py up to 0.22), LFM2's two thirds.
    """

    tokens: int
    sequences: int
    tensor_parallel_size: int
    v2_runner: bool
    generates: bool
    multimodal: bool
    cpu: bool
    widths_are_known: bool = False


def activation_peak(config: Mapping[str, Any], run: ProfileRun) -> Activation | Unknown:
    """The peak on one GPU beside the weights (v1/worker/gpu_model_runner.py profile_run).

    Likely: 1.2 times the largest of the MLP with its experts, the attention projections, and the logits with the sampler, and 100 MiB. Of the 29 recorded
    starts that print enough, the band holds 26; the three below it are tensor parallel runs of 0.9.2 and pooling models. `max_num_seqs` times the
    vocabulary decides on small cards. Low: the residual and, in a dense decoder of known widths, what the first projection of one MLP gives
    (models/llama.py).

    The CPU build looks at what its process holds once the run is over, and runs nothing with --enforce-eager (v1/worker/cpu_worker.py
    determine_available_memory): 0.32.0 was seen to hold 0.66 GiB beside the weights after a run of 32768 tokens, which needs 2.1 GiB or more. An allocator
    may keep some of it, so the batch counts at the upper end.
    """
    text = Fields(text_config(config))
    hidden = text.number("hidden_size", "n_embd", "d_model")
    intermediate = text.number("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", default=4 * hidden)
    vocabulary = text.number("vocab_size")
    heads = text.number("num_attention_heads", "n_head", "num_heads", default=1)
    if not hidden or (run.generates and not vocabulary):
        return Unknown("the config does not say hidden_size or vocab_size")
    head_size = text.number("head_dim", default=max(1, hidden // heads))
    kv_heads = text.number("num_key_value_heads", default=heads)
    tp = max(1, run.tensor_parallel_size)
    dense = run.tokens * _VALUE_BYTES * (2 * hidden + 3 * intermediate // tp)
    attention = run.tokens * _VALUE_BYTES * (2 * hidden + 2 * (heads + kv_heads) * head_size // tp)
    largest = max(dense + _experts_bytes(text, run, hidden, intermediate), attention)
    logit_bytes = _V2_LOGIT_BYTES if run.v2_runner else _V1_LOGIT_BYTES
    logits = min(run.sequences, run.tokens) * vocabulary * logit_bytes + run.tokens * hidden * _VALUE_BYTES if run.generates else 0
    likely, high = max(largest, logits) * 6 // 5 + 100 * MIB, max(largest, logits * _V1_LOGIT_BYTES // logit_bytes) * 8 // 5 + 256 * MIB
    dense_generator = run.widths_are_known and run.generates and not expert_count(text)
    width = text.number("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size") if dense_generator else 0
    low = run.tokens * _VALUE_BYTES * (hidden + width * (2 if is_gated(text) else 1) // tp)
    if run.multimodal:
        likely, high = likely + _ENCODER_LIKELY_BYTES, high + _ENCODER_HIGH_BYTES
    if run.cpu:
        return Activation(_CPU_WORKER.low, _CPU_WORKER.likely, high + _CPU_WORKER.high)
    return Activation(low, likely, high, *((min(run.sequences, run.tokens), vocabulary) if logits > largest else ()))


def _experts_bytes(text: Fields, run: ProfileRun, hidden: int, intermediate: int) -> int:
    active = text.number("num_experts_per_tok", "moe_topk", "experts_per_token")
    if not active:
        return 0
    each = text.number("moe_intermediate_size", default=intermediate) // max(1, run.tensor_parallel_size)
    return run.tokens * active * _VALUE_BYTES * (max(2 * each, hidden) + max(each, hidden))


def cuda_graphs(*, counted: bool, enforce_eager: bool) -> Band:
    """What the captured graphs take of the budget: nothing where this release leaves them outside or captures none."""
    return Band(*_GRAPHS) if counted and not enforce_eager else Band(0, 0, 0)
