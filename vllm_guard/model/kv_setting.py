"""What of a command and its release decides the size of the key-value cache: types only."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_guard.release import Release


@dataclass(frozen=True, slots=True)
class KvSetting:
    """One launch. None is vLLM's own choice; `release` None is beyond the last one that was inspected.

    `kv_cache_dtype` is what the flag says, or what the checkpoint's quantization says where the flag is `auto`; `model_bytes` the size of one value of
    the model's dtype; `recurrent_bytes` that of a recurrent state's value where --mamba-ssm-cache-dtype says it, or a CPU with AVX512-BF16, which takes 4;
    `concurrent_batches` how many steps are in flight at once (2 with asynchronous scheduling); `layer_partition` the layers of each
    pipeline stage where VLLM_PP_LAYER_PARTITION says it.
    """

    release: Release | None
    max_model_len: int
    max_num_batched_tokens: int
    model_bytes: int = 2
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    layer_partition: tuple[int, ...] | None = None
    recurrent_bytes: int | None = None
    block_size: int | None = None
    concurrent_batches: int = 2
    speculative_tokens: int = 0
    enable_prefix_caching: bool | None = None
    hybrid_kv_cache_manager: bool | None = None
    context_parallel: bool = False

    def since(self, major: int, minor: int, patch: int = 0) -> bool:
        """Whether this release is at least that one."""
        return self.release is None or self.release >= Release(major, minor, patch)

    @property
    def tokens_in_flight(self) -> int:
        """Tokens that are scheduled and not settled yet: one batch before 0.28, after that one for each step in flight (config/vllm.py)."""
        return self.max_num_batched_tokens * (self.concurrent_batches if self.since(0, 28) else 1)

    def stage_sizes(self, decoder_layers: int) -> tuple[int, ...]:
        """Decoder layers of each pipeline stage: what does not divide goes to the stages before the last (distributed/utils.py get_pp_indices)."""
        stages = self.pipeline_parallel_size
        if self.layer_partition is not None and len(self.layer_partition) == stages and sum(self.layer_partition) == decoder_layers:
            return self.layer_partition
        sizes = [decoder_layers // stages] * stages
        for number in range(decoder_layers % stages):
            sizes[-2 - number] += 1
        return tuple(sizes)
