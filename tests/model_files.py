"""Checkpoints for tests: their tensors, and as files with holes in the place of the data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from vllm_guard.model.tensors import Headers, Tensor


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    """One tensor as the format writes it."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_shard(path: Path, header: object, data_bytes: int, *, length: int | None = None) -> Path:
    """A safetensors file with this header (JSON, or raw bytes) and a hole for its data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    with path.open("wb") as file:
        file.write((len(raw) if length is None else length).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + data_bytes)
    return path


def stored(config: Mapping[str, Any], dtype: str = "BF16", width: int = 2) -> Headers:
    """The tensors that a checkpoint of this config holds, with norms, in the usual names."""
    layers, hidden, inner = config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.self_attn.q_proj.weight": (heads, hidden), f"{name}.self_attn.k_proj.weight": (keys, hidden)}
        shapes |= {f"{name}.self_attn.v_proj.weight": (keys, hidden), f"{name}.self_attn.o_proj.weight": (hidden, heads)}
        shapes |= {f"{name}.mlp.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
        shapes |= {f"{name}.mlp.down_proj.weight": (hidden, inner), f"{name}.input_layernorm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return Headers(tuple(Tensor(name, dtype, shape, prod(shape) * width) for name, shape in shapes.items()))


def write_checkpoint(folder: Path, config: dict[str, Any], headers: Headers, shards: int = 1) -> Path:
    """A model's folder with these tensors in one file, or dealt to several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weight_map = {}
    for shard in range(shards):
        name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header, end = {}, 0
        for tensor in headers.tensors[shard::shards]:
            header[tensor.name] = entry(tensor.dtype, list(tensor.shape), end, end := end + tensor.size_bytes)
            weight_map[tensor.name] = name
        write_shard(folder / name, header, end)
    if shards > 1:
        index = {"metadata": {"total_size": headers.size_bytes}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
