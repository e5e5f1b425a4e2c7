"""The key-value cache dtype that a checkpoint asks for: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm_guard.model.config import text_config
from vllm_guard.release import Release

_SINCE: Final = Release(0, 15, 1)
_ALGORITHMS: Final = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}
_FP8_BITS: Final = 8


def stored_kv_cache_dtype(config: Mapping[str, Any], release: Release | None) -> str:
    """What `--kv-cache-dtype auto` becomes: the checkpoint's own algorithm from 0.15.1, else `auto`, which is the model's dtype.

    Sources: utils/torch_utils.py get_kv_cache_quant_algo_string for ModelOpt, model_executor/layers/attention/attention.py for compressed-tensors,
    which leaves latent attention alone.
    """
    text = text_config(config)
    quantization = config.get("quantization_config") or text.get("quantization_config") or text.get("compression_config")
    if not isinstance(quantization, dict) or (release is not None and release < _SINCE):
        return "auto"
    method = str(quantization.get("quant_method")).replace("compressed_tensors", "compressed-tensors")
    if method == "compressed-tensors":
        return "fp8" if isinstance(quantization.get("kv_cache_scheme"), dict) and not text.get("kv_lora_rank") else "auto"
    producer, inner = quantization.get("producer"), quantization.get("quantization")
    modelopt = method.startswith("modelopt") or (isinstance(producer, dict) and producer.get("name") == "modelopt")
    if not modelopt:
        return "auto"
    parts = [inner, quantization] if isinstance(inner, dict) else [quantization]
    asked = next((part[key] for key in ("kv_cache_scheme", "kv_cache_quant_algo") for part in parts if part.get(key)), None)
    if isinstance(asked, dict):
        asked = "fp8" if asked.get("type") == "float" and asked.get("num_bits") == _FP8_BITS and asked.get("dynamic") is False else None
    return _ALGORITHMS.get(asked.lower(), "auto") if isinstance(asked, str) else "auto"
