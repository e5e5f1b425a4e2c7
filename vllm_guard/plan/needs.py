"""What a model needs of each GPU: the type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_guard.model.peak import Activation, Band
from vllm_guard.model.unknown import Unknown

if TYPE_CHECKING:  # the arithmetic is imported only where there is a model to reckon with
    from vllm_guard.model.kv_cache import KvCache
    from vllm_guard.model.weights import WeightBytes


@dataclass(frozen=True, slots=True)
class Demand:
    """Bytes on one GPU; each part is known in its own way, or unknown with its reason."""

    weights: WeightBytes | Unknown
    activation: Activation | Unknown
    cuda_graphs: Band
    kv: KvCache | Unknown

    @property
    def beside_pool(self) -> Band | None:
        """Weights, activations and graphs together: what the budget loses before the KV cache; None where a part is unknown."""
        if isinstance(self.weights, Unknown) or isinstance(self.activation, Unknown):
            return None
        parts = (self.weights, self.activation, self.cuda_graphs)
        return Band(sum(part.low for part in parts), sum(part.likely for part in parts), sum(part.high for part in parts))
