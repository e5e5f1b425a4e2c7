"""The cards of this host as NVML tells them: the session with the driver. The only importer of pynvml."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from vllm_guard.errors import MeasureError
from vllm_guard.facts import Gpu, UnreadableGpu
from vllm_guard.host.card import read_card
from vllm_guard.host.nvml_errors import FUNCTION_NOT_FOUND, GPU_NOT_FOUND, SENSELESS, Call, CallFailedError
from vllm_guard.host.printable import printable

_BINDING_NEEDS: Final = ("nvmlMemory_v2", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3")


def read_gpus() -> tuple[Gpu | UnreadableGpu, ...]:
    """All cards in NVML's order, MIG devices in place of a card that is cut into them, bytes as the driver gives them.

    A card that cannot be read is an `UnreadableGpu`. Raises MeasureError when NVML as a whole fails or lists no card.
    """
    call: Call = partial(_call, _import_binding())
    try:
        call("nvmlInit")
        try:
            cards = [card for index in range(call("nvmlDeviceGetCount")) for card in read_card(call, index)]
        finally:
            with suppress(CallFailedError):
                call("nvmlShutdown")
    except CallFailedError as error:
        msg = f"cannot read GPU memory: {error.what}"
        raise MeasureError("no_gpu" if error.code == GPU_NOT_FOUND else "driver", msg, error.fix) from error
    if not cards:
        msg = "cannot read GPU memory: nvmlDeviceGetCount: the driver lists no GPU"
        raise MeasureError(reason="no_gpu", message=msg, fix="start the container with --gpus all, or run nvidia-smi on the host")
    return tuple(_describe(cards))


def _import_binding() -> Any:
    """NVIDIA's own pynvml: older distributions put another module of that name in front of it."""
    try:
        with warnings.catch_warnings():
            # The distribution pynvml 12 and later warns at import, although NVIDIA's module is what gets imported.
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml  # noqa: PLC0415 - a missing binding is a MeasureError of this reader
    except ImportError as error:
        msg = "cannot read GPU memory: the Python module pynvml is missing"
        raise MeasureError(reason="driver", message=msg, fix="pip install nvidia-ml-py") from error
    missing = [name for name in _BINDING_NEEDS if not hasattr(pynvml, name)]
    if missing:
        msg = f"cannot read GPU memory: the module pynvml comes from {_distributions()} and lacks {missing[0]}"
        fix = "pip uninstall pynvml nvidia-ml-py3, then pip install --force-reinstall 'nvidia-ml-py>=12.560'"
        raise MeasureError(reason="driver", message=msg, fix=fix)
    return pynvml


def _distributions() -> str:
    """The installed distributions that bring a module pynvml, with their versions."""
    from importlib.metadata import packages_distributions, version  # noqa: PLC0415 - 20 ms, for this message only

    owners = dict.fromkeys(packages_distributions().get("pynvml", ()))
    return " and ".join(f"{owner} {version(owner)}" for owner in owners) or "an unknown place"


def _call(pynvml: Any, function: str, *args: object) -> Any:
    try:
        return getattr(pynvml, function)(*args)
    except pynvml.NVMLError as error:
        raise CallFailedError(function, error.value, printable(str(error))) from error
    except (pynvml.NVMLLibraryMismatchError, AttributeError) as error:
        raise CallFailedError(function, FUNCTION_NOT_FOUND) from error
    except UnicodeDecodeError as error:
        raise CallFailedError(function, SENSELESS) from error


def _describe(cards: Iterable[Gpu | UnreadableGpu]) -> Iterable[Gpu | UnreadableGpu]:
    """Each pid of all cards is looked up once, after the driver was left in peace."""
    pids = {process.pid for card in cards if isinstance(card, Gpu) for process in card.processes}
    if not pids:
        yield from cards
        return
    from vllm_guard.host.processes import read_processes  # noqa: PLC0415 - imports psutil: 13 ms with ours, which idle cards do not need

    known = read_processes(pids)
    for card in cards:
        if isinstance(card, Gpu):
            yield replace(card, processes=tuple(known[process.pid].of(process) for process in card.processes))
        else:
            yield card
