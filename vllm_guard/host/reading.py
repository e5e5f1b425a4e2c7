"""One reading of this host, or of a snapshot of one, as `Facts`."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vllm_guard.errors import MeasureError, UsageError
from vllm_guard.facts import Facts, Gpu, NvmlFault, UnreadableGpu, decides
from vllm_guard.host.memory import read_host
from vllm_guard.host.snapshot import parse_facts
from vllm_guard.host.vllm_install import device_of_version

_LARGEST_SNAPSHOT_BYTES: Final = 64 << 20
_TAKE_AGAIN: Final = "take it again with vllm-guard snapshot"


def read_facts(vllm_version: str | None, vllm_device: str, environ: Mapping[str, str]) -> Facts:
    """Host memory, and the cards or, for the CPU build, who holds host memory. An NVML that fails as a whole is a fact too: `nvml_fault`."""
    gpus: tuple[Gpu | UnreadableGpu, ...] = ()
    fault = None
    host = read_host(environ)
    if vllm_device == "cuda":
        from vllm_guard.host.nvml import read_gpus  # noqa: PLC0415 - other builds never need NVML

        try:
            gpus = read_gpus()
        except MeasureError as error:
            fault = NvmlFault(error.reason, error.message, error.fix)
    elif vllm_device == "cpu":
        from vllm_guard.host.memory_holders import with_memory_holders  # noqa: PLC0415 - other builds never walk /proc

        host = with_memory_holders(host)
    return Facts(
        taken_at=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        vllm_version=vllm_version,
        vllm_device=vllm_device,
        host=host,
        gpus=gpus,
        nvml_fault=fault,
        environment=MappingProxyType({name: value for name, value in environ.items() if decides(name)}),
    )


def read_snapshot(path: str, vllm_version: str | None, environ: Mapping[str, str]) -> Facts:
    """The facts of a snapshot file, a pipe included; `vllm_version` overrides the file's release and build. Raises UsageError when it is none."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST_SNAPSHOT_BYTES + 1)
        if len(data) > _LARGEST_SNAPSHOT_BYTES:
            msg = f"the snapshot {path!r} is larger than 64 MiB"
            raise UsageError(msg, _TAKE_AGAIN)
        document = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        msg = f"the snapshot {path!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise UsageError(msg, _TAKE_AGAIN) from error
    facts = parse_facts(document, environ)
    return facts if vllm_version is None else replace(facts, vllm_version=vllm_version, vllm_device=device_of_version(vllm_version))
