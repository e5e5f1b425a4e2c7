"""NVML calls that fail, in words: what is wrong, and the action that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
INSUFFICIENT_SIZE: Final = 7
FUNCTION_NOT_FOUND: Final = 13
ARGUMENT_VERSION_MISMATCH: Final = 25
GPU_NOT_FOUND: Final = 28
UNKNOWN: Final = 999
SENSELESS: Final = -1  # ours, not NVML's: the call succeeded with figures or text that cannot be


@dataclass(frozen=True, slots=True)
class ErrorText:
    """What a code means, and what to do about it."""

    what: str
    fix: str


_OTHER_CARD: Final = "choose another card with CUDA_VISIBLE_DEVICES"
ERRORS: Final = MappingProxyType(
    {
        1: ErrorText("NVML was not initialized", "start again; when it comes back, update the NVIDIA driver"),
        NOT_SUPPORTED: ErrorText("not supported for this card by this driver", f"update the NVIDIA driver, or {_OTHER_CARD}"),
        NO_PERMISSION: ErrorText("no permission", "let this user open /dev/nvidiactl and /dev/nvidia*, or start the container with --gpus all"),
        INSUFFICIENT_SIZE: ErrorText("the driver's answer did not fit (the list grew while it was read)", "start again"),
        9: ErrorText("the nvidia kernel module is not loaded", "run modprobe nvidia, read dmesg if that fails; in a unit: After=nvidia-persistenced.service"),
        12: ErrorText(
            "libnvidia-ml.so.1 is missing or cannot be loaded",
            "install the NVIDIA driver, or start the container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        FUNCTION_NOT_FOUND: ErrorText("this driver is too old to know the function", "update the NVIDIA driver"),
        15: ErrorText("the GPU is lost (fallen off the bus)", f"read the Xid lines in dmesg and reboot, or {_OTHER_CARD}"),
        16: ErrorText("the GPU needs a reset", "run nvidia-smi --gpu-reset -i INDEX while nobody uses the card, or reboot"),
        18: ErrorText("driver and library are of different versions (upgraded, not reloaded)", "reboot, or unload and load the nvidia kernel modules"),
        23: ErrorText("the driver is short of resources", "end programs that poll the driver, then start again"),
        ARGUMENT_VERSION_MISMATCH: ErrorText("the driver does not know this version of the call", "update the NVIDIA driver"),
        27: ErrorText("the GPU is not ready (confidential computing)", "attest it, then run nvidia-smi conf-compute -srs 1"),
        GPU_NOT_FOUND: ErrorText("no NVIDIA GPU found", "check lspci and dmesg, or start the container with --gpus all"),
        UNKNOWN: ErrorText(
            "unknown driver error (in a container: device access lost by systemctl daemon-reload on the host)",
            "restart the container; on the host read the NVRM and Xid lines in dmesg",
        ),
        SENSELESS: ErrorText("the driver's answer makes no sense", "run nvidia-smi on this host, and update the NVIDIA driver"),
    }
)


class CallFailedError(Exception):
    """An NVML call answered an error. `what` is `function: meaning` (pynvml's own exceptions cannot be hashed and do not name the call)."""

    def __init__(self, function: str, code: int, driver_text: str = "") -> None:
        super().__init__(function, code)
        self.code = code
        text = ERRORS.get(code) or ErrorText(f"NVML error {code} ({driver_text})", "run nvidia-smi on this host, and read dmesg")
        self.what = f"{function}: {text.what}"
        self.fix = text.fix


class Call(Protocol):
    """An NVML function called by its name; raises CallFailedError."""

    def __call__(self, function: str, *args: object) -> Any:
        """What the binding returns."""


def optional(call: Call, function: str, *args: object) -> Any:
    """What the function returns, None when it fails: for what a card may lack."""
    try:
        return call(function, *args)
    except CallFailedError:
        return None
