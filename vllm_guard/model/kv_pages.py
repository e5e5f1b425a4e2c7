"""The page of one block of one layer on one rank, in bytes: pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from vllm_guard.model.kv_layers import KvLayers
from vllm_guard.model.kv_setting import KvSetting
from vllm_guard.model.kv_shapes import Attention
from vllm_guard.model.kv_states import State
from vllm_guard.model.unknown import Unknown

PageKind = Literal["full", "mla", "indexer", "sliding", "chunked", "cross", "state"]

_DEFAULT_BLOCK: Final = 16
_MLA_BLOCK: Final = 64  # FlashMLA and FlashInfer MLA; Triton takes 16, CUTLASS 128
_HYBRID_MLA_BLOCK: Final = 128  # platforms/interface.py _align_hybrid_block_size
_VALUE_BYTES: Final = {"half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1}
_PACKED_MLA_BYTES: Final = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_SCALES_BYTES: Final = 8  # a float32 for the key and one for the value of every head


@dataclass(frozen=True, slots=True)
class Page:
    """One block of one layer: how many tokens it holds, its bytes, and the `bound` of what one sequence keeps: tokens of a window, of a chunk or from
    the encoder, for a state the number of blocks.
    """

    kind: PageKind
    block_size: int
    size_bytes: int
    bound: int = 0

    def blocks(self, max_model_len: int, setting: KvSetting) -> int:
        """Blocks that one sequence of this length keeps at most (v1/kv_cache_interface.py max_memory_usage_bytes)."""
        if self.kind == "state":
            return self.bound
        if self.kind == "sliding":
            return -(-min(self.bound - 1 + setting.tokens_in_flight, max_model_len) // self.block_size) + 1
        if self.kind == "chunked":
            return -(-min(self.bound + setting.tokens_in_flight, max_model_len) // self.block_size)
        if self.kind == "cross":
            encoder_tokens = setting.max_num_batched_tokens if setting.since(0, 30) else self.bound
            return -(-encoder_tokens // self.block_size)
        return -(-max_model_len // self.block_size)


def caches_states(held: KvLayers, setting: KvSetting) -> bool:
    """Whether recurrent layers keep states for prefix caching: the default beside attention from 0.27 (engine/arg_utils.py, pull request 50991)."""
    if setting.enable_prefix_caching is not None:
        return setting.enable_prefix_caching
    return setting.since(0, 27) and any(isinstance(layer, Attention) for layer in held.layers)


def pages(held: KvLayers, setting: KvSetting) -> tuple[tuple[int, Page], ...] | Unknown:
    """(decoder layer, page) of everything that is kept, in order, with the block size that this release takes."""
    contents = [content_bytes(layer, setting, sparse=held.sparse) for layer in held.layers if isinstance(layer, Attention)]
    unknown = next((content for content in contents if isinstance(content, Unknown)), None)
    if unknown is not None:
        return unknown
    sizes = [content for content in contents if isinstance(content, int)]
    state = next((layer for layer in held.layers if isinstance(layer, State)), None)
    cached = caches_states(held, setting)
    if state is not None and cached and not setting.since(0, 27) and state.family != "linear":
        return Unknown("before 0.27 prefix caching of mamba layers keeps a state for every block")
    state_bytes = 0 if state is None else state_size_bytes(state, setting)
    block_size = _block_size(held, setting, max(sizes, default=0), state_bytes)
    padded = max(block_size * max(sizes, default=0), state_bytes)
    bound = 0 if state is None else _state_blocks(state, setting, cached=cached)
    kept = Page("state", block_size if cached else setting.max_model_len, padded, bound)
    content = iter(sizes)
    return tuple(
        (layer.index, kept if isinstance(layer, State) else Page(layer.kind, block_size, block_size * next(content), layer.span_tokens))
        for layer in held.layers
    )


def _state_blocks(state: State, setting: KvSetting, *, cached: bool) -> int:
    """One state and one for every speculative token; a second one with prefix caching, and for Mamba 2 a checkpoint inside a prefill (inspected at 0.32,
    mamba_mixer2.py).
    """
    checkpoint = cached and state.family == "mamba2" and setting.since(0, 32)
    return 1 + cached + checkpoint + setting.speculative_tokens


def content_bytes(layer: Attention, setting: KvSetting, *, sparse: bool = False) -> int | Unknown:
    """Bytes of one token of one layer on one rank: rank-local heads times what the cache dtype makes of a key and a value."""
    dtype = setting.kv_cache_dtype
    value_bytes = setting.model_bytes if dtype == "auto" else _VALUE_BYTES.get(dtype)
    if layer.kind == "indexer":
        return layer.head_size
    if layer.kind == "mla":
        if sparse and dtype.startswith("fp8") and dtype != "fp8_ds_mla":
            return Unknown("the layout of an fp8 cache under sparse attention depends on the attention backend")
        packed = _PACKED_MLA_BYTES.get(dtype)
        return packed or (Unknown(f"the layout of a {dtype} cache is not known for latent attention") if value_bytes is None else layer.head_size * value_bytes)
    heads, values = max(1, layer.kv_heads // setting.tensor_parallel_size), layer.head_size + layer.head_size_v
    if value_bytes is not None:
        return heads * values * value_bytes
    if dtype in ("fp8_per_token_head", "int8_per_token_head"):
        return heads * (values + _SCALES_BYTES)
    if dtype == "int4_per_token_head":
        return heads * (values // 2 + _SCALES_BYTES)
    if dtype in ("nvfp4", "nvfp4_4over6"):
        return heads * sum(size // 2 + size // 16 for size in (layer.head_size, layer.head_size_v))
    return Unknown(f"the size of a {dtype} cache is not known")


def state_size_bytes(state: State, setting: KvSetting) -> int:
    """Bytes of one state on one rank."""
    kept = state if setting.recurrent_bytes is None else replace(state, recurrent_bytes=setting.recurrent_bytes)
    return kept.size_bytes(setting.tensor_parallel_size, setting.model_bytes, setting.speculative_tokens)


def _block_size(held: KvLayers, setting: KvSetting, token_bytes: int, state_bytes: int) -> int:
    """The block size; beside recurrent layers it is raised until a page of attention holds a state (platforms/interface.py)."""
    latent = any(isinstance(layer, Attention) and layer.kind == "mla" for layer in held.layers)
    block_size = setting.block_size or (_MLA_BLOCK if latent else _DEFAULT_BLOCK)
    if not state_bytes or not token_bytes:
        return block_size
    step = max(block_size, _HYBRID_MLA_BLOCK) if latent else block_size
    return max(block_size, step * -(-state_bytes // (step * token_bytes)))


def unified(found: tuple[tuple[int, Page], ...]) -> tuple[tuple[int, Page], ...]:
    """The same layers with pages of one size: smaller pages take more tokens, or padding (v1/core/kv_cache_utils.py unify_kv_cache_spec_page_size)."""
    largest = max(page.size_bytes for _, page in found)
    return tuple((index, _grown(page, largest)) for index, page in found)


def _grown(page: Page, largest_bytes: int) -> Page:
    if page.kind == "state" or page.size_bytes <= 0 or largest_bytes % page.size_bytes:
        return replace(page, size_bytes=largest_bytes)
    return replace(page, size_bytes=largest_bytes, block_size=page.block_size * (largest_bytes // page.size_bytes))
