"""Raw NVML, without the guard's readers: a program that answers `card`, `memory`, `lists` and `free` for the card of a UUID.

It is a program of its own because a driver that hangs must not hang the whole check, and because it is started in other namespaces too.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import pynvml

from gpu_steps.answers import answer_lines

LISTS: Final = ("Compute", "Graphics", "MPSCompute")
_MEMORY_V2: Final = 0x02000028


class Reader:
    """One NVML session on one card. What a call cannot answer is `{"error": reason}` in its place."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._handle: Any = None

    def commands(self) -> dict[str, Any]:
        """What `answer_lines` offers."""
        return {"card": self.card, "memory": self.memory, "lists": self.lists, "free": self.free}

    def handle(self) -> Any:
        """The card, with NVML initialised at the first use."""
        if self._handle is None:
            try:
                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
            except pynvml.NVMLError as error:
                msg = f"NVML: {error}"
                raise RuntimeError(msg) from error
        return self._handle

    def card(self) -> dict[str, Any]:
        """Versions and modes."""
        handle = self.handle()
        return {
            "driver_version": _tried("nvmlSystemGetDriverVersion"),
            "nvml_version": _tried("nvmlSystemGetNVMLVersion"),
            "cuda_driver_version": _tried("nvmlSystemGetCudaDriverVersion"),
            "card_name": _tried("nvmlDeviceGetName", handle),
            "mig_mode": _tried("nvmlDeviceGetMigMode", handle),
            "persistence_mode": _tried("nvmlDeviceGetPersistenceMode", handle),
            "compute_mode": _tried("nvmlDeviceGetComputeMode", handle),
        }

    def memory(self) -> dict[str, Any]:
        """Both versions of the memory call, in bytes, one right after the other."""
        answers = {"v1": _tried("nvmlDeviceGetMemoryInfo", self.handle()), "v2": _tried("nvmlDeviceGetMemoryInfo", self.handle(), _MEMORY_V2)}
        names = {"v1": ("total", "free", "used"), "v2": ("total", "reserved", "free", "used")}
        return {key: value if isinstance(value, dict) else {name: getattr(value, name) for name in names[key]} for key, value in answers.items()}

    def free(self) -> int:
        """NVML's free bytes."""
        answer = _tried("nvmlDeviceGetMemoryInfo", self.handle())
        if isinstance(answer, dict):
            raise RuntimeError(answer["error"])  # noqa: TRY004 - not a wrong type: the driver's own reason
        return int(answer.free)

    def lists(self) -> dict[str, Any]:
        """Pid and bytes of each process list, as the driver gives them."""
        answers = {kind: _tried(f"nvmlDeviceGet{kind}RunningProcesses", self.handle()) for kind in LISTS}
        return {
            kind: answer if isinstance(answer, dict) else [{"pid": entry.pid, "used_bytes": entry.usedGpuMemory} for entry in answer]
            for kind, answer in answers.items()
        }


def _tried(function: str, *arguments: Any) -> Any:
    try:
        return getattr(pynvml, function)(*arguments)
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, AttributeError, UnicodeDecodeError) as error:
        return {"error": f"{function}: {error}"}


if __name__ == "__main__":
    answer_lines(Reader(sys.argv[1]).commands())
