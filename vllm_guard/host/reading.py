"""One reading of this host, as `Facts`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from types import MappingProxyType

from vllm_guard.errors import MeasureError
from vllm_guard.facts import Facts, Gpu, NvmlFault, UnreadableGpu, decides
from vllm_guard.host.memory import read_host


def read_facts(vllm_version: str | None, vllm_device: str, environ: Mapping[str, str]) -> Facts:
    """Host memory, and the cards unless vLLM was built for another device. An NVML that fails as a whole is a fact too: `nvml_fault`."""
    gpus: tuple[Gpu | UnreadableGpu, ...] = ()
    fault = None
    if vllm_device == "cuda":
        from vllm_guard.host.nvml import read_gpus  # noqa: PLC0415 - other builds never need NVML

        try:
            gpus = read_gpus()
        except MeasureError as error:
            fault = NvmlFault(error.reason, error.message, error.fix)
    return Facts(
        taken_at=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        vllm_version=vllm_version,
        vllm_device=vllm_device,
        host=read_host(environ),
        gpus=gpus,
        nvml_fault=fault,
        environment=MappingProxyType({name: value for name, value in environ.items() if decides(name)}),
    )
