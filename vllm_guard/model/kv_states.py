"""The recurrent states of mamba and linear attention layers: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from vllm_guard.model.config import _positive_int
from vllm_guard.model.kv_kinds import first_int
from vllm_guard.model.unknown import Unknown
from vllm_guard.release import Release

_DTYPE_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
# model_executor/models/config.py: Nemotron-H keeps its state in float32 unless the config says otherwise; not so in the releases before.
_NEMOTRON_FLOAT32_SINCE: Final = Release(0, 12)


@dataclass(frozen=True, slots=True)
class State:
    """What one layer keeps of every request, however long it is, before tensor parallelism (model_executor/layers/mamba/mamba_utils.py).

    The convolution keeps `conv_positions` of `conv_channels` and, where the state has groups, of two `group_width` a group. `recurrent_bytes` is
    the size of one recurrent value, None for the model's own dtype. Short convolutions count as mamba1, whose convolution keeps no speculated positions.
    """

    index: int
    conv_channels: int
    conv_positions: int
    recurrent_values: int
    recurrent_bytes: int | None = None
    groups: int = 0
    group_width: int = 0
    family: Literal["linear", "mamba1", "mamba2"] = "linear"

    def size_bytes(self, tensor_parallel_size: int, model_bytes: int, speculative_tokens: int) -> int:
        """Bytes on one rank."""
        groups = self.groups if self.groups % tensor_parallel_size == 0 else tensor_parallel_size
        channels = self.conv_channels + 2 * groups * self.group_width
        positions = self.conv_positions + (0 if self.family == "mamba1" else speculative_tokens)
        conv = -(-channels // tensor_parallel_size) * positions * model_bytes
        return conv + -(-self.recurrent_values // tensor_parallel_size) * (self.recurrent_bytes or model_bytes)


def read_state(text: Mapping[str, Any], release: Release | None) -> State | Unknown:
    """The state of this model's recurrent layers; index 0."""
    model_type = str(text.get("model_type"))
    if isinstance(text.get("linear_attn_config"), dict):
        return _kimi_delta(text["linear_attn_config"])
    if text.get("linear_num_value_heads"):
        return _gated_delta(text)
    if model_type.startswith("lfm2"):
        return _short_convolution(text)
    if model_type in ("mamba", "falcon_mamba", "jamba"):
        return _mamba1(text)
    if model_type.startswith("minimax"):
        return _lightning(text)
    return _mamba2(text, model_type, release)


def _numbers(text: Mapping[str, Any], *names: str) -> list[int] | Unknown:
    """Positive integers of these keys (`a|b`: the first that is there), or which one is missing."""
    numbers = []
    for name in names:
        number = first_int(text, name.split("|"))
        if number is None:
            return Unknown(f"the config does not say {name.replace('|', ' or ')}, which the size of the state follows")
        numbers.append(number)
    return numbers


def _recurrent_bytes(text: Mapping[str, Any], key: str) -> int | None:
    return _DTYPE_BYTES.get(str(text.get(key)))


def _gated_delta(text: Mapping[str, Any]) -> State | Unknown:
    """Qwen3-Next, Qwen3.5 (mamba_ssm_dtype from 0.17), Olmo-Hybrid: gated_delta_net_state_shape."""
    numbers = _numbers(text, "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim")
    if isinstance(numbers, Unknown):
        return numbers
    key_heads, value_heads, key_dim, value_dim, kernel = numbers
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return State(0, channels, kernel - 1, value_heads * value_dim * key_dim, _recurrent_bytes(text, "mamba_ssm_dtype"))


def _kimi_delta(linear: Mapping[str, Any]) -> State | Unknown:
    """Kimi Linear: kda_state_shape; the recurrent state is float32."""
    numbers = _numbers(linear, "num_heads", "head_dim", "short_conv_kernel_size")
    if isinstance(numbers, Unknown):
        return numbers
    heads, width, kernel = numbers
    return State(0, 3 * heads * width, kernel - 1, heads * width * width, 4)


def _short_convolution(text: Mapping[str, Any]) -> State | Unknown:
    numbers = _numbers(text, "conv_dim|hidden_size", "conv_L_cache")
    return numbers if isinstance(numbers, Unknown) else State(0, numbers[0], numbers[1] - 1, 0, family="mamba1")


def _lightning(text: Mapping[str, Any]) -> State | Unknown:
    """MiniMax-Text-01: linear_attention_state_shape."""
    numbers = _numbers(text, "num_attention_heads", "head_dim")
    return numbers if isinstance(numbers, Unknown) else State(0, 0, 0, numbers[0] * numbers[1] * numbers[1])


def _mamba1(text: Mapping[str, Any]) -> State | Unknown:
    numbers = _numbers(text, "mamba_d_state|state_size", "mamba_d_conv|conv_kernel")
    inner = _positive_int(text.get("intermediate_size"))
    if text.get("model_type") == "jamba":
        sizes = _numbers(text, "mamba_expand", "hidden_size")
        inner = None if isinstance(sizes, Unknown) else sizes[0] * sizes[1]
    if isinstance(numbers, Unknown):
        return numbers
    if inner is None:
        return Unknown("the config does not say how wide the mamba layers are")
    return State(0, inner, numbers[1] - 1, inner * numbers[0], family="mamba1")


def _mamba2(text: Mapping[str, Any], model_type: str, release: Release | None) -> State | Unknown:
    """Mamba 2, Nemotron-H, Granite 4, Bamba, Falcon-H1: mamba2_state_shape."""
    heads = "mamba_num_heads|mamba_n_heads|num_heads"
    numbers = _numbers(text, heads, "mamba_head_dim|mamba_d_head|head_dim", "ssm_state_size|mamba_d_state|state_size", "conv_kernel|mamba_d_conv")
    if isinstance(numbers, Unknown):
        return numbers
    head_count, width, state, kernel = numbers
    groups = first_int(text, ("n_groups", "mamba_n_groups"))
    if groups is None and model_type.startswith("nemotron_h"):
        groups = 8  # what the Hugging Face class fills in
    if groups is None:
        return Unknown("the config does not say n_groups, which the size of the state follows")
    recurrent = _recurrent_bytes(text, "mamba_ssm_cache_dtype") if model_type.startswith("nemotron_h") else None
    if recurrent is None and model_type.startswith("nemotron_h") and (release is None or release >= _NEMOTRON_FLOAT32_SINCE):
        recurrent = 4
    return State(0, head_count * width, kernel - 1, head_count * width * state, recurrent, groups, state, "mamba2")
