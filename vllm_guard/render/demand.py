"""What the model needs, as text and as JSON. What is not known is said as unknown."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vllm_guard.model.peak import Activation, Band
from vllm_guard.model.unknown import Unknown
from vllm_guard.plan.decision import Assessment, Fits
from vllm_guard.plan.needs import Demand
from vllm_guard.units import ceil_mib, floor_mib

if TYPE_CHECKING:
    from vllm_guard.model.weights import WeightBytes


def demand_lines(assessment: Assessment) -> list[str]:
    """The needs of one GPU and what the pool holds; nothing where nothing is known of the model."""
    demand = assessment.demand
    if demand is None or (isinstance(demand.weights, Unknown) and isinstance(demand.kv, Unknown)):
        return []
    weights = "weights unknown" if isinstance(demand.weights, Unknown) else f"weights {ceil_mib(demand.weights.likely)} ({demand.weights.source})"
    parts = [weights, _about("activations", demand.activation) + _sampler(demand.activation), _about("CUDA graphs", demand.cuda_graphs)]
    lines = [f"  needs of each GPU beside the KV cache: {' + '.join(parts)}   [MiB]"]
    if not isinstance(demand.kv, Unknown):
        token = demand.kv.bytes_per_token
        each = "" if token is None else f"{token} bytes a token, "
        one = f"{ceil_mib(demand.kv.one_sequence_bytes)} MiB for one sequence of {demand.kv.setting.max_model_len} tokens"
        lines.append(f"  KV cache: {each}{one}{_fits(assessment)}")
    return lines


def _about(name: str, band: Band | Unknown) -> str:
    return f"{name} unknown" if isinstance(band, Unknown) else f"{name} about {ceil_mib(band.likely)}"


def _sampler(activation: Activation | Unknown) -> str:
    if isinstance(activation, Unknown) or not activation.sampled:
        return ""
    return f" (--max-num-seqs {activation.sampled} x {activation.vocabulary} words decide)"


def _fits(assessment: Assessment) -> str:
    """What the pool holds, and how many sequences at once are comfortable beside what may come."""
    fits, most = assessment.fits, assessment.settings.get("max_num_seqs")
    if fits is None:
        return ""
    held = f"; the pool has about {floor_mib(fits.kv_pool_bytes.likely)} MiB, {fits.full_sequences:g} such sequences"
    comfortable = fits.comfortable_sequences
    if comfortable is None or most is None or not isinstance(most.value, int) or comfortable >= most.value:
        return held
    return f"{held} ({comfortable} of --max-num-seqs {most.value} in 70 % of it)"


def demand_document(demand: Demand | None) -> dict[str, Any] | None:
    """The needs of one GPU in bytes; null when nothing is known of the model."""
    if demand is None or (isinstance(demand.weights, Unknown) and isinstance(demand.kv, Unknown)):
        return None
    kv = demand.kv
    token: dict[str, Any] | None = _unknown(kv.because) if isinstance(kv, Unknown) else _exact(kv.bytes_per_token)
    one = _unknown(kv.because) if isinstance(kv, Unknown) else _both(kv.tested_bytes, kv.one_sequence_bytes)
    return {
        "weights": _weights(demand.weights),
        "activation": _band(demand.activation),
        "cuda_graphs": _band(demand.cuda_graphs),
        "kv_bytes_per_token": token,
        "kv_one_sequence": one,
    }


def fits_document(fits: Fits | None) -> dict[str, Any] | None:
    """What the pool holds."""
    return None if fits is None else {**asdict(fits), "comfortable_sequences": fits.comfortable_sequences}


def _weights(weights: WeightBytes | Unknown) -> dict[str, Any]:
    if isinstance(weights, Unknown):
        return _unknown(weights.because)
    return {"low": weights.low, "likely": weights.likely, "high": weights.high, "source": weights.source}


def _band(band: Band | Unknown) -> dict[str, Any]:
    return _unknown(band.because) if isinstance(band, Unknown) else {"low": band.low, "likely": band.likely, "high": band.high, "source": "estimated"}


def _exact(size_bytes: int | None) -> dict[str, Any] | None:
    return None if size_bytes is None else {"low": size_bytes, "likely": size_bytes, "high": size_bytes, "source": "computed"}


def _both(one: int, other: int) -> dict[str, Any]:
    """What the release tests, and what a sequence really takes, where they differ."""
    return {"low": min(one, other), "likely": max(one, other), "high": max(one, other), "source": "computed"}


def _unknown(because: str) -> dict[str, Any]:
    return {"low": None, "likely": None, "high": None, "source": "unknown", "because": because}
