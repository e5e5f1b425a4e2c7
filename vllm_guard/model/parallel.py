"""How a model is dealt to GPUs: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Parallel:
    """vLLM's parallel sizes. `stage` is the pipeline stage that is asked for, None the one that holds most; `stage_layers` is VLLM_PP_LAYER_PARTITION."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    stage: int | None = None
    stage_layers: tuple[int, ...] = ()
    mm_encoder_tp_mode: Literal["weights", "data"] = "weights"

    @property
    def expert_ranks(self) -> int:
        """Ranks that share the experts: with and without expert parallelism those of all data parallel replicas (fused_moe FusedMoEParallelConfig.make)."""
        return self.tensor_parallel_size * self.data_parallel_size


def layer_stages(layers: int, parallel: Parallel) -> Sequence[int]:
    """The pipeline stage of each decoder layer. What does not divide goes to the stages before the last, backwards (distributed/utils.py get_pp_indices)."""
    stages = parallel.pipeline_parallel_size
    sizes = list(parallel.stage_layers)
    if len(sizes) != stages or sum(sizes) != layers or min(sizes) < 0:
        sizes = [layers // stages] * stages
        for stage in range(layers % stages):
            sizes[stages - 2 - stage] += 1
    return [stage for stage, size in enumerate(sizes) for _ in range(size)]


def held_bytes(size_bytes: int, units: int, ranks: int) -> int:
    """What the fullest of these ranks holds of something that is dealt in equal units: all of it where there is one unit. Rounded up."""
    return -(-size_bytes * -(-units // ranks) // units)
