"""The vocabulary of actions, what a log says of one failed start, and the sums that more than one remedy needs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from vllm_guard.explain.attempt import Attempt

Direction = Literal["lower", "raise", "set", "remove", "none"]
Numbers = Mapping[str, float | int | str]
ROUNDED_GIB: Final = 0.005  # vLLM prints hundredths of a GiB: so much may be missing
GIB: Final = 1 << 30
LARGE_BATCH: Final = 8192  # from here on the batch is the first to go


@dataclass(frozen=True, slots=True)
class Fix:
    """One action of the vocabulary; the flag that it turns, where there is one, and the value that follows from the numbers."""

    action: str
    flag: str | None
    direction: Direction
    value: str | None


FLAGS: Final[dict[str, tuple[str | None, Direction]]] = {
    "lower_utilization": ("--gpu-memory-utilization", "lower"),
    "raise_utilization": ("--gpu-memory-utilization", "raise"),
    "lower_model_len": ("--max-model-len", "lower"),
    "lower_num_seqs": ("--max-num-seqs", "lower"),
    "lower_batched_tokens": ("--max-num-batched-tokens", "lower"),
    "raise_batched_tokens": ("--max-num-batched-tokens", "raise"),
    "enable_chunked_prefill": ("--enable-chunked-prefill", "set"),
    "lower_kv_bytes": ("--kv-cache-memory-bytes", "lower"),
    "raise_kv_bytes": ("--kv-cache-memory-bytes", "raise"),
    "remove_override": ("--num-gpu-blocks-override", "remove"),
    "raise_cpu_kv_space": ("VLLM_CPU_KVCACHE_SPACE", "raise"),
    "limit_multimodal": ("--limit-mm-per-prompt", "set"),
    "enforce_eager": ("--enforce-eager", "set"),
    "fewer_graphs": ("--max-cudagraph-capture-size", "lower"),
    "more_gpus": ("--tensor-parallel-size", "raise"),
    "fix_parallel_size": ("--tensor-parallel-size", "set"),
    "fix_port": ("--port", "set"),
    "set_dtype": ("--dtype", "set"),
    "fix_device_selection": ("CUDA_VISIBLE_DEVICES", "set"),
    "use_spawn": ("VLLM_WORKER_MULTIPROC_METHOD", "set"),
}
_VALUES: Final = {"set_dtype": "half", "use_spawn": "spawn"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a log says of one start that failed."""

    numbers: Numbers
    attempt: Attempt

    def number(self, name: str) -> float | None:
        """The number of this name in the line that proves the cause."""
        value = self.numbers.get(name)
        return float(value) if isinstance(value, int | float) else None

    def setting(self, name: str) -> float | None:
        """The value of this setting where the log tells what was given."""
        text = self.attempt.settings.get(name, "")
        factor = {"k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20, "g": 10**9, "G": GIB}.get(text[-1:], 1)
        try:
            return float(text.rstrip("kKmMgG.")) * factor
        except ValueError:
            return None


def fix(action: str, value: str | None = None) -> Fix:
    """The action, with its flag and the value that follows from the numbers or always goes with it."""
    flag, direction = FLAGS.get(action, (None, "none"))
    return Fix(action, flag, direction, value if value is not None else _VALUES.get(action))


def whole(number: float | str | None) -> str | None:
    """The number without its fraction, as a value of a flag."""
    return str(int(number)) if isinstance(number, int | float) else None


def half(number: float | None) -> str | None:
    """Half of it, rounded down; None where there is no half."""
    return None if not number or number <= 1 else str(int(number) // 2)


def share(part_gib: float | None, total_gib: float | None) -> str | None:
    """The largest fraction in hundredths that asks for no more than the part, both as vLLM prints them; None where that is nothing."""
    if part_gib is None or not total_gib:
        return None
    hundredths = math.floor((part_gib - ROUNDED_GIB) / (total_gib + ROUNDED_GIB) * 100)
    return f"{hundredths / 100:.2f}" if hundredths > 0 else None
