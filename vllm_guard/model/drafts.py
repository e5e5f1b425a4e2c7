"""What speculative decoding adds to a model: the weights of the draft, and the layers of it that keep a cache. Pure.

What keeps a cache was read in 0.32 only. Sources: config/speculative.py, v1/worker/gpu/spec_decode/*/speculator.py, v1/core/kv_cache_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.fields import Fields
from vllm_guard.model.kv_layers import KvLayers, read_layers
from vllm_guard.model.kv_shapes import Attention
from vllm_guard.model.parallel import Parallel
from vllm_guard.model.unknown import Unknown
from vllm_guard.model.weights import Loading, WeightBytes, weigh
from vllm_guard.release import Release

# nothing: no model. further: the model's own further layer. heads: layers without attention. model: another model. eagle: layers upon the model's states.
DraftKind = Literal["nothing", "further", "heads", "model", "eagle"]

_READ_RELEASE: Final = Release(0, 32)
_METHODS: Final[Mapping[str, DraftKind]] = {
    "ngram": "nothing",
    "ngram_gpu": "nothing",
    "suffix": "nothing",
    "mtp": "further",
    "medusa": "heads",
    "mlp_speculator": "heads",
    "draft_model": "model",
    "eagle": "eagle",
    "eagle3": "eagle",
}
_EAGLES: Final = {
    "eagle": frozenset(("LlamaForCausalLM", "EagleLlamaForCausalLM")),
    "eagle3": frozenset(("LlamaForCausalLM", "Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3")),
}
# Drafts whose config vLLM does not turn into that of a further layer (hf_config_override), by model_type.
_PLAIN_DRAFTS: Final = frozenset(
    ("llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "granite", "smollm3", "olmo2", "opt", "gemma", "starcoder2")
)
# The key that counts further layers, and whether its absence means one (model_executor/models/*_mtp.py).
_FURTHER_COUNTS: Final = {
    **dict.fromkeys(("deepseek_v3", "glm4_moe", "glm4_moe_lite", "mimo"), ("num_nextn_predict_layers", 0)),
    "qwen3_next": ("num_nextn_predict_layers", 1),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), ("mtp_num_hidden_layers", 1)),
}
_NAMED_AFTER: Final = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft whose kind is known; `checkpoint` is there for the kinds model and eagle. `tensor_parallel_size` None is that of the model.

    `overlaps`: steps may overlap (asynchronous scheduling) as they do without speculation.
    """

    kind: DraftKind
    tokens: int
    checkpoint: Checkpoint | None = None
    tensor_parallel_size: int | None = None
    overlaps: bool = True


def draft_of(method: str, name: str | None, tokens: int, target: Checkpoint, tensor_parallel_size: int | None = None) -> Draft | Unknown:
    """The draft that this method, and the draft's name and config, make of it (config/speculative.py __post_init__)."""
    if name is None:
        kind = _METHODS.get(method)
        further = _further_unknown(target.config) if kind == "further" else None
        return further or (Draft(kind, tokens) if kind in {"nothing", "further"} else Unknown(f"speculation with the method {method} is not modelled"))
    if not isinstance(target.draft, Checkpoint):
        return Unknown(f"the draft model: {target.draft.because if isinstance(target.draft, UnknownCheckpoint) else 'it was not read'}")
    checkpoint = replace(target.draft, config=_plain(target.draft.config))
    text = Fields(checkpoint.config)
    architecture = next(iter(text.words("architectures")), "")
    found = _detected(method, name, text.kind)
    kind = _METHODS.get(found)
    if kind == "heads":
        return Draft(kind, tokens)
    if kind == "eagle" and architecture in _EAGLES[found] and text.kind == "llama":
        return Draft(kind, tokens, checkpoint, tensor_parallel_size)
    if kind == "model" and architecture.endswith("ForCausalLM") and "eagle" not in architecture.lower() and text.kind in _PLAIN_DRAFTS:
        return Draft(kind, tokens, checkpoint, tensor_parallel_size)
    return Unknown(f"a draft of the kind {found} and the architecture {architecture[:60] or 'without a name'} is not modelled")


def _plain(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of an EAGLE 3 layer where the speculators library wrote it (transformers_utils/configs/speculators/algos.py); any other as it is."""
    layer = config.get("transformer_layer_config")
    if config.get("speculators_model_type") != "eagle3" or not isinstance(layer, dict) or layer.get("model_type", "llama") != "llama":
        return config
    return {**layer, "model_type": "llama", "architectures": ["Eagle3LlamaForCausalLM"], "draft_vocab_size": config.get("draft_vocab_size")}


def _detected(method: str, name: str, model_type: str) -> str:
    """The method as the draft's name or config changes it."""
    if method in _EAGLES:
        return method
    named = next((found for part, found in _NAMED_AFTER if part in name.lower()), None)
    return named or (model_type if model_type in {"medusa", "mlp_speculator"} else method)


def _further_unknown(config: Mapping[str, Any]) -> Unknown | None:
    """Why the further layer of this model is not known; None where it is one layer like the model's own that attend."""
    model_type = Fields(config).kind
    if model_type not in _FURTHER_COUNTS:
        return Unknown(f"the further layers of a {model_type[:40] or 'nameless'} model are not modelled")
    key, otherwise = _FURTHER_COUNTS[model_type]
    part = config.get("text_config")
    text = {**config, **part} if isinstance(part, dict) else config
    count = text.get(key, otherwise)
    return None if count == 1 else Unknown("the config does not say that there is one further layer")


def layers_with_draft(layers: KvLayers, draft: Draft, release: Release | None, pipeline_parallel_size: int) -> KvLayers | Unknown:
    """The layers of both models that keep something. Known where all see everything, or where the draft's are like the model's own."""
    if draft.kind in {"nothing", "heads"}:
        return layers
    if not is_read(release) or pipeline_parallel_size > 1:
        return Unknown("what a draft caches is known for 0.32 only, and not for pipeline stages")
    added = _further_layer(layers) if draft.checkpoint is None else read_layers(draft.checkpoint.config, release)
    if isinstance(added, Unknown):
        return Unknown(f"the draft model: {added.because}")
    shapes = {replace(layer, index=0) for layer in layers.layers}
    alike = all(replace(layer, index=0) in shapes for layer in added.layers)
    everything = all(isinstance(layer, Attention) and layer.kind == "full" for layer in (*layers.layers, *added.layers))
    if layers.sparse or not (alike or everything) or any(isinstance(layer, Attention) and layer.kind in {"cross", "chunked"} for layer in layers.layers):
        return Unknown("how a draft shares the cache of a model with layers unlike its own is not modelled")
    count = layers.decoder_layers
    return KvLayers(count + added.decoder_layers, (*layers.layers, *(replace(layer, index=count + layer.index) for layer in added.layers)))


def _further_layer(layers: KvLayers) -> KvLayers | Unknown:
    """A layer like those of the model that see everything."""
    shapes = {replace(layer, index=0) for layer in layers.layers if isinstance(layer, Attention) and layer.kind in {"full", "mla"}}
    return KvLayers(1, tuple(shapes)) if len(shapes) == 1 else Unknown("which attention its further layer has cannot be told")


def is_read(release: Release | None) -> bool:
    """Whether what drafts load and keep was read in this release's source."""
    return release is not None and (release.major, release.minor) == (_READ_RELEASE.major, _READ_RELEASE.minor)


def with_further_layer(weights: WeightBytes, without: WeightBytes | Unknown, release: Release | None) -> WeightBytes | Unknown:
    """The weights with the model's own further layer, which counts for the lower bound only where that was read."""
    if not any(part == "further tokens" for part, _ in weights.parts):
        return Unknown("the weight files have no further layer")
    low = weights.low if is_read(release) or isinstance(without, Unknown) else min(weights.low, without.low)
    return replace(weights, low=low, exact=weights.exact and low == weights.low)


def with_draft(weights: WeightBytes, draft: Draft, parallel: Parallel, loading: Loading) -> WeightBytes | Unknown:
    """The weights of both models on one GPU. The last stage holds the draft; where there are several it counts for the upper bound.

    An EAGLE draft takes the model's embeddings and, where its vocabulary is the same, its head: its own count for the upper bound.
    """
    checkpoint = draft.checkpoint
    if draft.kind == "heads":
        return Unknown("the weights of a draft without attention are not modelled")
    if checkpoint is None:
        return weights
    if checkpoint.headers is None:
        return Unknown("the draft model: its weight files tell nothing of their tensors")
    if draft.tensor_parallel_size not in {None, parallel.tensor_parallel_size} or loading.cpu_offload_bytes or loading.load_format == "bitsandbytes":
        return Unknown("a draft that is split otherwise, offloaded or quantized while it loads is not modelled")
    alone = replace(parallel, pipeline_parallel_size=1, stage=None, stage_layers=())
    own = weigh(checkpoint.config, checkpoint.headers, alone, Loading(loading.release, loading.dtype, load_format=loading.load_format))
    if isinstance(own, Unknown):
        return Unknown(f"the draft model: {own.because}")
    if draft.kind == "eagle":
        own = _upon_states(own, Fields(checkpoint.config), parallel.tensor_parallel_size, 4 if loading.dtype in {"float", "float32"} else 2)
    surely = own.low if is_read(loading.release) and parallel.pipeline_parallel_size == 1 else 0
    return replace(
        weights,
        low=weights.low + surely,
        likely=weights.likely + own.likely,
        high=weights.high + own.high,
        source=own.source if weights.source == "computed" else weights.source,
        parts=(*weights.parts, ("draft model", own.likely)),
        exact=weights.exact and own.exact and draft.kind == "model" and surely == own.low,
    )


def _upon_states(own: WeightBytes, text: Fields, ranks: int, value_bytes: int) -> WeightBytes:
    """An EAGLE draft: its embeddings are the model's, and its head where it has the same words; both may be its own, and are made in any case."""
    tables = {part: size for part, size in own.parts if part in {"embeddings", "lm_head"}}
    shared, words = sum(tables.values()), text.number("vocab_size")
    kept = tables.get("lm_head", 0) if text.number("draft_vocab_size", default=words) != words else 0
    whole = -(-words * text.number("hidden_size") * value_bytes // ranks)
    return replace(own, low=max(0, own.low - shared), likely=own.likely - shared + kept, high=own.high + max(0, 2 * whole - shared))
