"""How many bytes a weight takes once it is loaded, by its quantization method: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import Any, Final

from vllm_guard.model.fields import Fields
from vllm_guard.model.matrix import Matrix
from vllm_guard.model.unknown import Unknown

_MOST_PATTERNS: Final = 64
_FP32_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class Scheme:
    """A method: `bits` of a value, and `group_bits` of scales and zero points for every `group` values (0: for every row).

    `kept` are the modules that stay as they are, `of_experts` is another method for the experts.
    `padded`: MXFP4 kernels round the experts up (fused_moe/oracle/mxfp4.py, Marlin).
    """

    method: str
    bits: int
    group: int = 0
    group_bits: int = _FP32_BITS
    online: bool = False
    experts_only: bool = False
    padded: bool = False
    kept: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    of_experts: Scheme | None = None

    def keeps(self, name: str) -> bool:
        """Whether the checkpoint says that this module is not quantized: by its name, a run of its name's words, or a pattern with stars."""
        words = name.split(".")
        runs = {".".join(words[start:stop]) for start in range(len(words)) for stop in range(start + 1, len(words) + 1)}
        return not runs.isdisjoint(self.kept) or (self.pattern is not None and self.pattern.match(name) is not None)

    def size_bytes(self, matrix: Matrix, slices: int = 1) -> int:
        """Bytes of a quantized matrix with its scales; of one padded for this many slices where the kernels pad."""
        inputs, outputs = matrix.inputs, matrix.outputs
        if self.padded and matrix.copies > 1:
            inputs, outputs = _padded(matrix, slices)
        scales = inputs * outputs // self.group if self.group else outputs
        return matrix.copies * (inputs * outputs * self.bits + scales * self.group_bits) // 8


def padding(scheme: Scheme | None, inner: int, width: int, slices: int) -> tuple[int, int]:
    """How much larger the kernels make experts of this inner width, as a ratio."""
    if scheme is None or not scheme.padded or not inner or not width:
        return 1, 1
    rounded = _padded(Matrix("down_proj", inner, width), slices)
    return rounded[0] * rounded[1], inner * width


def _padded(matrix: Matrix, slices: int) -> tuple[int, int]:
    """The inner width of each slice rounded up to 128, the hidden size to 256."""
    down = matrix.name.endswith("down_proj")
    inner, width = (matrix.inputs, matrix.outputs) if down else (matrix.outputs, matrix.inputs)
    inner, width = -(-inner // (128 * slices)) * 128 * slices, -(-width // 256) * 256
    return (inner, width) if down else (width, inner)


_FP8: Final = Scheme("fp8", 8)
_FP4: Final = Scheme("mxfp4", 4, 32, 8)
# By the value of --quantization on a checkpoint of 16 bits: what vLLM makes of it at load (config/quantization.py; bitsandbytes up to 0.24).
_ONLINE: Final[Mapping[str, Scheme]] = {
    "fp8": Scheme("fp8", 8, online=True),
    "fp8_per_tensor": Scheme("fp8_per_tensor", 8, online=True),
    "fp8_per_channel": Scheme("fp8_per_channel", 8, online=True),
    "fp8_per_block": Scheme("fp8_per_block", 8, 128 * 128, online=True),
    "int8_per_channel_weight_only": Scheme("int8_per_channel_weight_only", 8, online=True),
    "experts_int8": Scheme("experts_int8", 8, online=True, experts_only=True),
    "mxfp8": Scheme("mxfp8", 8, 32, 8, online=True),
    "bitsandbytes": Scheme("bitsandbytes", 4, 64, online=True),
}
_MODELOPT: Final[Mapping[str, Scheme]] = {
    "FP8": _FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": _FP8,
    "FP8_PB_WO": Scheme("fp8", 8, 128 * 128),
    "NVFP4": Scheme("nvfp4", 4, 16, 8),
    "W4A16_AWQ": Scheme("awq", 4, 128, 16),
    "MXFP8": Scheme("mxfp8", 8, 32, 8),
}
_COMPRESSED: Final[Mapping[str, Scheme]] = {
    "float-quantized": _FP8,
    "int-quantized": Scheme("int8", 8),
    "naive-quantized": Scheme("int8", 8),
    "pack-quantized": Scheme("wna16", 4, 128, 16),
    "nvfp4-pack-quantized": Scheme("nvfp4", 4, 16, 8),
    "mxfp4-pack-quantized": Scheme("mxfp4", 4, 32, 8, padded=True),
}


def is_one_method(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    """Whether a quantized checkpoint's method is that of all its layers and leaves the head as it is. Else some of it may be smaller than the method says:
    GPTQ and AutoRound have exceptions by module, and heads and embeddings may be quantized too (layers/quantization/*.py get_quant_method).
    """
    stored = _stored(config, text)
    if stored is None:
        return True
    if any(stored.get(key) for key in ("lm_head", "dynamic", "extra_config")):
        return False
    if str(stored.get("quant_method")).startswith(("compressed-tensors", "modelopt")):
        groups, kept = stored.get("config_groups"), Fields(stored).words("ignore") or Fields(stored).words("exclude_modules")
        return any("lm_head" in name for name in kept) and not (isinstance(groups, dict) and len(groups) > 1)
    return True


def _stored(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((part for key in ("quantization_config", "compression_config") for each in (config, text) if isinstance(part := each.get(key), dict)), None)


def scheme_of(config: Mapping[str, Any], text: Mapping[str, Any], asked: str | None) -> Scheme | Unknown | None:
    """The method of a checkpoint or, where it has none, the one asked for at load; None for plain weights."""
    stored = _stored(config, text)
    if stored is not None:
        scheme = _stored_scheme(Fields(stored), asked)
        # DeepSeek V4: experts of four bits in a checkpoint of eight.
        four = isinstance(scheme, Scheme) and scheme.method == "fp8" and text.get("expert_dtype") == "fp4"
        return replace(scheme, of_experts=_FP4) if four and isinstance(scheme, Scheme) else scheme
    if asked in {None, "", "none", "auto"}:
        return None
    return _ONLINE.get(str(asked)) or Unknown(f"what --quantization {asked} makes of weights that are not quantized is not reckoned")


def _stored_scheme(stored: Fields, asked: str | None) -> Scheme | Unknown:
    method = str(stored.values.get("quant_method") or asked or "").lower().replace("_marlin", "").removeprefix("auto_")
    scheme = _by_method(method, stored)
    if scheme is None:
        return Unknown(f"the sizes of weights quantized by {method or 'an unnamed method'} are not reckoned without weight files")
    keys = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
    names = [_pattern(name) for key in keys for name in stored.words(key)]
    starred = [form for name in names if "*" in name for form in (name, f"{name}.*")][:_MOST_PATTERNS]
    # translate() writes stars that never go back.
    pattern = re.compile("|".join(map(translate, starred))) if starred else None
    return replace(scheme, kept=frozenset(name for name in names if "*" not in name), pattern=pattern)


def _by_method(method: str, stored: Fields) -> Scheme | None:
    if method in {"awq", "gptq", "auto-round", "inc"}:
        bits, group = (
            stored.number("bits", "w_bit", default=4),
            stored.number("group_size", "q_group_size", default=0 if stored.values.get("group_size") == -1 else 128),
        )
        return Scheme(method, bits, group, 16 + bits) if bits <= _FP32_BITS else None
    if method in {"fp8", "fbgemm_fp8", "deepspeedfp"}:
        block = stored.values.get("weight_block_size")
        whole = isinstance(block, list) and len(block) == 2 and all(type(side) is int and 0 < side < 1 << 20 for side in block)  # noqa: PLR2004 - rows and columns
        return Scheme("fp8", 8, block[0] * block[1] if whole and block else 0)
    if method in {"mxfp4", "gpt_oss_mxfp4"}:
        return Scheme("mxfp4", 4, 32, 8, experts_only=True, padded=True)
    if method == "bitsandbytes":
        return _FP8 if stored.says("load_in_8bit") else _ONLINE["bitsandbytes"]
    if method.startswith("modelopt") or (not method and stored.values.get("quant_algo")):
        return _MODELOPT.get(str(stored.values.get("quant_algo")))
    return _compressed(stored) if method == "compressed-tensors" else None


def _compressed(stored: Fields) -> Scheme | None:
    """One group of targets, or the format where the groups are not there; None for a mixture."""
    groups = stored.part("config_groups")
    weights = [group.part("weights") for key in (groups.values if groups else {}) if groups and (group := groups.part(key))]
    stated = [each for each in weights if each is not None]
    by_format = _COMPRESSED.get(str(stored.values.get("format")))
    if not stated:
        return by_format
    bits = {each.number("num_bits") for each in stated}
    if len(bits) != 1 or not 0 < min(bits) <= _FP32_BITS:
        return None
    size = stated[0].number("group_size")
    if by_format is not None and by_format.bits == min(bits) and by_format.method in {"nvfp4", "mxfp4"}:
        return by_format
    return Scheme("compressed-tensors", min(bits), size, 16 if size else _FP32_BITS)


def _pattern(name: str) -> str:
    """A module's name as the checkpoint's families write it, or a regular expression of stars, turned into one without prefixes. Expressions are never run."""
    plain = name.removeprefix("re:").replace("\\.", ".").replace(".*", "*").strip("^$") if name.startswith("re:") else name
    return plain.replace("model.language_model.", "model.").replace("language_model.model.", "model.").replace("[", "?")[:512]
