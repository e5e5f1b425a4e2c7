"""Memory of the profile run's activations: pure arithmetic."""

from __future__ import annotations

from vllm_guard.model.config import ModelTraits

_BYTES_PER_VALUE = 2


def activation_floor_bytes(traits: ModelTraits | None, max_num_batched_tokens: int | None, tensor_parallel_size: int) -> int:
    """The least that a dense decoder's profile run of this many tokens takes on one device: the residual and the gate and up projections of one layer, 16 bits.

    A bound from below: attention, logits and the sampler come on top. 0 where the config does not say enough. Source: the MLP of
    model_executor/models/llama.py, run by v1/worker/gpu_model_runner.py profile_run.
    """
    if traits is None or max_num_batched_tokens is None or traits.hidden_size is None or traits.intermediate_size is None or traits.experts:
        return 0
    return max_num_batched_tokens * _BYTES_PER_VALUE * (traits.hidden_size + 2 * traits.intermediate_size // tensor_parallel_size)
