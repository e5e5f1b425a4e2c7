"""Writes a Llama checkpoint of 0.7 MB with random weights and a byte-level tokenizer: what vLLM needs to start and to answer."""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VOCABULARY: Final = 320
HIDDEN: Final = 128
INTERMEDIATE: Final = 256
LAYERS: Final = 2
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD_DIM: Final = 32  # with 16 the CPU build of vLLM 0.32.0 starts and dies at the first request

SPECIAL: Final = ("<s>", "</s>", "<unk>", "<pad>")
_BF16_BYTES: Final = 2
_ONE: Final = b"\x80\x3f"  # 1.0 as bfloat16, little endian

CONFIG: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 3,
    "torch_dtype": "bfloat16",
}


def tensor_shapes() -> dict[str, tuple[int, ...]]:
    """Shape by tensor name; one dimension means a norm."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        of_layer = {
            "input_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        shapes.update({f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()})
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def render_safetensors() -> bytes:
    """The whole weight file: header length, JSON header, data. Norms are 1, the rest is drawn from a fixed seed."""
    drawn = random.Random(0)  # noqa: S311 - weights, not secrets
    values = [struct.pack("<f", drawn.gauss(0, 0.05))[2:] for _ in range(4096)]
    header: dict[str, dict[str, object]] = {}
    data = bytearray()
    for name, shape in tensor_shapes().items():
        start = len(data)
        data += _ONE * shape[0] if len(shape) == 1 else b"".join(drawn.choices(values, k=shape[0] * shape[1]))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes in a byte-level BPE: printable Latin-1 for itself, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def render_tokenizer() -> dict[str, object]:
    """`tokenizer.json`: one token a byte, no merges."""
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *byte_alphabet()))}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": token, **plain} for number, token in enumerate(SPECIAL)],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocabulary, "merges": []},
    }


def write_folder(folder: Path, config: Mapping[str, object]) -> None:
    """A model folder without weights, which `vllm serve FOLDER --load-format dummy` starts from. The vocabulary has `VOCABULARY` places at least."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    documents: dict[str, object] = {"config.json": config, "tokenizer.json": render_tokenizer(), "tokenizer_config.json": tokenizer_config}
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1), encoding="utf-8")


def write_tiny_model(folder: Path) -> None:
    """A checkpoint that `vllm serve FOLDER` starts from without a network. KV cache: 512 bytes a token."""
    write_folder(folder, CONFIG)
    (folder / "model.safetensors").write_bytes(render_safetensors())


if __name__ == "__main__":
    write_tiny_model(Path(sys.argv[1]))
