"""A model's weights as lots: what has one rule and one layer, with its bytes in the whole model. From headers, or from the config. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

from vllm_guard.model.config import text_config
from vllm_guard.model.fields import Fields
from vllm_guard.model.matrix import Matrix
from vllm_guard.model.parameters import decoder, further_layer, tied
from vllm_guard.model.placement import Rule, further_rule, layer_of, rule_of
from vllm_guard.model.storage import Scheme
from vllm_guard.model.tensors import Headers, Tensor
from vllm_guard.model.towers import Modality, modalities, towers
from vllm_guard.model.unknown import Unknown
from vllm_guard.release import Release

_VOCABULARY_MULTIPLE: Final = 64
_FLOATS: Final = frozenset(("F64", "F32", "F16", "BF16"))
# Written by older transformers; vLLM makes them itself.
_NOT_LOADED: Final = ("inv_freq", "position_ids", "masked_bias", "attn.bias")
# Before, a 16-bit checkpoint was loaded whole and made smaller afterwards.
_QUANTIZES_BY_LAYER_SINCE: Final = Release(0, 15, 1)


@dataclass(frozen=True, slots=True)
class Lot:
    """Bytes of the whole model, before any rank takes its share. `layer` is None outside of the decoder."""

    rule: Rule
    layer: int | None
    low: int
    likely: int
    high: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a checkpoint vLLM loads, and as what. `padding` is how much larger kernels make stored experts, as a ratio."""

    dtype_bytes: int
    scheme: Scheme | None
    skipped: frozenset[Modality]
    pooling: bool
    predicts_further: bool
    release: Release | None
    expert_slices: int
    padding: tuple[int, int] = (1, 1)

    def loads(self, rule: Rule) -> bool:
        """Whether this part is loaded at all."""
        if rule.further:
            return self.predicts_further
        return rule.part not in self.skipped and not (rule.part == "lm_head" and self.pooling)


def stored_lots(headers: Headers, config: Mapping[str, Any], layers: int | None, wanted: Wanted) -> list[Lot]:
    """The lots of a checkpoint's tensors: exact where nothing is cast that the rules do not know."""
    sums: dict[tuple[Rule, int | None], list[int]] = {}
    one_table, has_head, described = tied(config), False, modalities(config)
    for tensor, count in _alike(headers.tensors):
        rule, layer = rule_of(tensor.name), layer_of(tensor.name)
        if rule.home == "layer" and layer is not None and layers is not None and layer >= layers:
            rule = further_rule(rule)
        if rule.home == "towers" and rule.part not in described:
            rule = replace(rule, dealing="unclear")  # vLLM builds no tower that the config does not describe
        has_head |= rule.part == "lm_head" and not rule.further
        if not wanted.loads(rule) or (one_table and rule.part == "lm_head") or tensor.name.endswith(_NOT_LOADED):
            continue
        total = sums.setdefault((rule, layer if rule.home == "layer" else None), [0, 0, 0])
        for index, size_bytes in enumerate(_loaded_bytes(tensor, rule, wanted)):
            total[index] += size_bytes * count if index == _HIGH or not rule.shared else 0
    lots = [Lot(rule, layer, *totals) for (rule, layer), totals in sums.items()]
    if not has_head and not one_table and not wanted.pooling:
        # vLLM makes the head all the same; the embeddings have its size.
        tables = [lot for lot in lots if lot.rule.part == "embeddings" and lot.rule.dealing == "rows" and not lot.rule.further]
        lots += [Lot(_HEAD, None, 0, lot.likely, lot.high) for lot in tables[:1]]
    return lots


def _alike(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    """Tensors, and how many of each there are: the experts of a layer, of which there may be 90,000 in all, are alike."""
    groups: dict[Any, list[Any]] = {}
    for tensor in tensors:
        layer, experts, rest = tensor.name.partition(".experts.")
        number, _, leaf = rest.partition(".")
        alike = (layer, leaf, tensor.dtype, tensor.shape, tensor.size_bytes) if experts and number.isdigit() else tensor.name
        group = groups.get(alike)
        if group is None:
            groups[alike] = [tensor, 1]
        else:
            group[1] += 1
    return [(tensor, count) for tensor, count in groups.values()]


_HIGH: Final = 2  # of low, likely and high: tables that are shared are freed again, but not before they were loaded
_HEAD: Final = rule_of("lm_head.weight")


def _loaded_bytes(tensor: Tensor, rule: Rule, wanted: Wanted) -> tuple[int, int, int]:
    stored, values = tensor.size_bytes, prod(tensor.shape)
    if tensor.dtype not in _FLOATS:
        # Quantized latent projections are kept once more in 16 bits (attention/mla_attention.py process_weights_after_loading).
        again = values * wanted.dtype_bytes if rule.linear and ".kv_b_proj." in tensor.name else 0
        swollen = stored * wanted.padding[0] // wanted.padding[1] if rule.part == "experts" else stored
        # Zero points and orders of columns go where a kernel has no use for them.
        least = 0 if tensor.name.endswith((".qzeros", ".g_idx", "zero_point")) else stored
        return least, swollen + again, swollen + again
    if rule.buffer and not tensor.name.endswith("bias"):
        return stored, stored, stored
    cast = values * wanted.dtype_bytes
    if rule.part in {"embeddings", "lm_head"} and rule.dealing == "rows" and tensor.shape:
        cast = _padded(tensor.shape[0]) * (cast // max(1, tensor.shape[0]))
        return cast, cast, cast
    scheme = wanted.scheme
    if scheme is not None and scheme.online and rule.linear and len(tensor.shape) > 1 and (rule.part == "experts" or not scheme.experts_only):
        rows = tensor.shape[-2]
        small = scheme.size_bytes(Matrix(tensor.name, tensor.shape[-1], rows, prod(tensor.shape[:-2])))
        return small, small, _peak(small, cast, wanted.release)
    # States such as A_log stay in 32 bits; they have one dimension.
    return (cast, cast, cast) if len(tensor.shape) > 1 else (min(stored, cast), cast, max(stored, cast))


def _peak(small: int, whole: int, release: Release | None) -> int:
    return small if release is not None and release >= _QUANTIZES_BY_LAYER_SINCE else max(small, whole)


def _padded(rows: int) -> int:
    return -(-rows // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE


def config_lots(config: Mapping[str, Any], wanted: Wanted) -> list[Lot] | Unknown:
    """The lots of a model by its config alone, or why they are not known."""
    matrices = decoder(config)
    if isinstance(matrices, Unknown):
        return matrices
    further = further_layer(config) if wanted.predicts_further else ()
    if isinstance(further, Unknown):
        return further
    seen_and_heard = towers(config)
    if isinstance(seen_and_heard, Unknown):
        return seen_and_heard
    one_table = tied(config)
    return list(_matrix_lots((*matrices, *further, *seen_and_heard), wanted, one_table=one_table))


def _matrix_lots(matrices: Iterable[Matrix], wanted: Wanted, *, one_table: bool) -> Iterator[Lot]:
    for matrix in matrices:
        rule, scheme = rule_of(matrix.name), wanted.scheme
        if scheme is not None and rule.part == "experts":
            scheme = scheme.of_experts or scheme
        if not wanted.loads(rule) or (one_table and rule.part == "lm_head"):
            continue
        rows = _padded(matrix.outputs) if rule.part in {"embeddings", "lm_head"} and rule.dealing == "rows" else matrix.outputs
        whole = rows * matrix.inputs * matrix.copies * wanted.dtype_bytes
        layer = layer_of(matrix.name) if rule.home == "layer" else None
        if scheme is None or not matrix.linear or (scheme.experts_only and rule.part != "experts") or scheme.keeps(matrix.name):
            yield Lot(rule, layer, whole, whole, whole)
            continue
        small = min(whole, scheme.size_bytes(matrix, wanted.expert_slices))
        if rule.home == "towers":
            # Most checkpoints leave them as they are, whether they say so or not.
            yield Lot(rule, layer, small, whole, whole)
            continue
        # Quantized latent projections are kept once more in 16 bits (attention/mla_attention.py process_weights_after_loading).
        again = whole if matrix.name.endswith("kv_b_proj") else 0
        least = matrix.values * scheme.bits // 8
        yield Lot(rule, layer, least, small + again, (_peak(small, whole, wanted.release) if scheme.online else small) + again)


def rotary_bytes(config: Mapping[str, Any], dtype_bytes: int) -> int:
    """The table of rotary positions, kept once for all layers: part of what loading takes. 0 where the config says nothing of it."""
    text = Fields(text_config(config))
    rope = text.part("rope_parameters", "rope_scaling")
    heads = text.number("num_attention_heads")
    head = text.number("qk_rope_head_dim") or text.number("head_dim") or (text.number("hidden_size") // heads if heads else 0)
    shares = (part.get("partial_rotary_factor") for part in ((rope.values if rope else {}), text.values))
    share = next((value for value in shares if isinstance(value, int | float) and 0 < value <= 1), 0.25 if text.kind.startswith(_QUARTER_TURNED) else 1)
    # Positions in several dimensions have a table four times as long (rotary_embedding/mrope.py).
    several = text.kind.removesuffix("_text") in _SEVERAL_DIMENSIONS or (rope is not None and "mrope_section" in rope.values)
    return min(text.number("max_position_embeddings"), 1 << 24) * int(min(head, 1 << 12) * share) * dtype_bytes * (4 if several else 1)


_SEVERAL_DIMENSIONS: Final = frozenset(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"))
_QUARTER_TURNED: Final = ("qwen3_5", "qwen3_next")
