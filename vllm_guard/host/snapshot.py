"""`Facts` as the JSON document of `vllm-guard snapshot`, and back. A document that is read is anybody's data: every value is checked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, Final

from vllm_guard.command.mask import mask_text
from vllm_guard.facts import Claim, Facts, Gpu, GpuProcess, Host, NumaNode, NvmlFault, UnreadableGpu, decides
from vllm_guard.host.printable import printable
from vllm_guard.host.untrusted import Reader

SCHEMA_VERSION: Final = 1
_PID: Final = re.compile(r"pid \d+")
_END_COMMAND: Final = re.compile(r"kill (?:[2-9]|[1-9]\d{1,9})")
_CAPABILITY: Final = re.compile(r"(\d{1,3})\.(\d{1,3})")


def facts_document(facts: Facts, own_user: str | None, *, with_commands: bool) -> dict[str, Any]:
    """The facts as JSON values. Without `with_commands` no user name and no command line of another user is in it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "taken_at": facts.taken_at,
        "vllm_version": facts.vllm_version,
        "vllm_device": facts.vllm_device,
        "environment": dict(facts.environment),
        "host": {**asdict(facts.host), "processes": _process_documents(facts.host.processes, own_user, with_commands=with_commands)},
        "gpus": [_gpu_document(gpu, own_user, with_commands=with_commands) for gpu in facts.gpus],
        "nvml_fault": None if facts.nvml_fault is None else asdict(facts.nvml_fault),
        "claims": [asdict(claim if with_commands or claim.user == own_user else replace(claim, user=None)) for claim in facts.claims],
    }


def _gpu_document(gpu: Gpu | UnreadableGpu, own_user: str | None, *, with_commands: bool) -> dict[str, Any]:
    if isinstance(gpu, UnreadableGpu):
        return {**asdict(gpu), "unreadable": True}
    capability = None if gpu.compute_capability is None else ".".join(map(str, gpu.compute_capability))
    return {
        **asdict(gpu),
        "compute_capability": capability,
        "processes": _process_documents(gpu.processes, own_user, with_commands=with_commands),
    }


def _process_documents(processes: Iterable[GpuProcess], own_user: str | None, *, with_commands: bool) -> list[dict[str, Any]]:
    return [asdict(process if with_commands or _is_own(process, own_user) else _anonymous(process)) for process in processes]


def _anonymous(process: GpuProcess) -> GpuProcess:
    """The process without its user's name and command lines; of its server the pid is left."""
    server = _PID.match(process.server or "")
    return replace(process, user=None, command=None, server=server and server[0])


def _is_own(process: GpuProcess, own_user: str | None) -> bool:
    return own_user is not None and process.user == own_user


def parse_facts(document: object, caller_environment: Mapping[str, str]) -> Facts:
    """The facts of a document. The caller's environment counts only where the document has none. Raises UsageError for anything else than a snapshot."""
    root = Reader(document, "snapshot")
    if root.number("schema_version") != SCHEMA_VERSION:
        raise root.wrong(key="schema_version", what=f"is not {SCHEMA_VERSION}")
    given = root.get("environment")
    environment = caller_environment if given is None else Reader(given, "snapshot.environment").texts()
    fault = root.get("nvml_fault")
    return Facts(
        taken_at=root.text("taken_at", ""),
        vllm_version=root.optional_text("vllm_version"),
        vllm_device=root.text("vllm_device", "cuda"),
        host=_parse_host(root.child("host")),
        gpus=root.each("gpus", _parse_gpu),
        nvml_fault=None if fault is None else _parse_fault(Reader(fault, "nvml_fault")),
        claims=root.each("claims", _parse_claim),
        environment=MappingProxyType({name: value for name, value in environment.items() if decides(name)}),
    )


def _parse_host(host: Reader) -> Host:
    return Host(
        memory_total_bytes=host.number("memory_total_bytes"),
        memory_available_bytes=host.number("memory_available_bytes"),
        cgroup_limit_bytes=host.optional_number("cgroup_limit_bytes"),
        wsl=host.get("wsl") is True,
        pid_namespace_initial=host.get("pid_namespace_initial") is not False,
        nodes=host.each("nodes", lambda node: NumaNode(node.number("node"), node.number("total_bytes"), node.number("available_bytes"))),
        processes=host.each("processes", _parse_process),
        processes_unreadable=host.optional_text("processes_unreadable"),
    )


def _parse_gpu(gpu: Reader) -> Gpu | UnreadableGpu:
    if gpu.get("unreadable") is True:
        return UnreadableGpu(gpu.number("nvml_index"), gpu.optional_text("uuid"), gpu.optional_text("name"), gpu.text("message"), gpu.text("fix"))
    total = gpu.number("nvml_total_bytes")
    if total == 0:
        raise gpu.wrong(key="nvml_total_bytes", what="is not above 0")
    return Gpu(
        nvml_index=gpu.number("nvml_index"),
        uuid=gpu.text("uuid"),
        name=_clean(gpu.text("name")),
        nvml_total_bytes=total,
        free_bytes=gpu.number("free_bytes"),
        driver_reserved_bytes=gpu.optional_number("driver_reserved_bytes"),
        compute_capability=_parse_capability(gpu.get("compute_capability")),
        processes=gpu.each("processes", _parse_process),
        processes_unreadable=gpu.optional_text("processes_unreadable"),
        unified=gpu.get("unified") is True,
        mig_parent_uuid=gpu.optional_text("mig_parent_uuid"),
        mig_parent_total_bytes=gpu.optional_number("mig_parent_total_bytes"),
    )


def _parse_process(process: Reader) -> GpuProcess:
    kind, end_command = process.text("kind", "compute"), process.optional_text("end_command")
    return GpuProcess(
        pid=process.number("pid"),
        kind="graphics" if kind == "graphics" else "mps" if kind == "mps" else "compute",
        name=_clean(process.text("name", "")),
        user=process.optional_text("user"),
        command=_optional_clean(process.optional_text("command")),
        used_bytes=process.optional_number("used_bytes"),
        age_seconds=_seconds(process.get("age_seconds")),
        container=_optional_clean(process.optional_text("container")),
        unit=_optional_clean(process.optional_text("unit")),
        vllm=process.get("vllm") is True,
        orphan=process.get("orphan") is True,
        exiting=process.get("exiting") is True,
        server=_optional_clean(process.optional_text("server")),
        end_command=end_command if end_command is not None and _END_COMMAND.fullmatch(end_command) else None,
    )


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _clean(text: str) -> str:
    """What somebody wrote about a process or a card, as a live reading would have it: masked and printable."""
    return printable(mask_text(text))


def _optional_clean(text: str | None) -> str | None:
    return None if text is None else _clean(text)


def _parse_claim(claim: Reader) -> Claim:
    return Claim(
        uuid=claim.text("uuid"),
        promised_bytes=claim.number("promised_bytes"),
        used_bytes=claim.number("used_bytes"),
        pid=claim.number("pid"),
        user=_optional_clean(claim.optional_text("user")),
        age_seconds=_seconds(claim.get("age_seconds")),
        ended=claim.get("ended") is True,
    )


def _parse_fault(fault: Reader) -> NvmlFault:
    return NvmlFault("no_gpu" if fault.text("reason") == "no_gpu" else "driver", fault.text("message"), fault.text("fix"))


def _parse_capability(value: object) -> tuple[int, int] | None:
    match = _CAPABILITY.fullmatch(value) if isinstance(value, str) else None
    return (int(match[1]), int(match[2])) if match else None
