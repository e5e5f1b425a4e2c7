"""The devices of a decision as text: what each has, how it is shared, who holds it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from vllm_guard.facts import GpuProcess
from vllm_guard.plan.decision import Assessment, DevicePlan
from vllm_guard.plan.promise import fixed_pool_bytes
from vllm_guard.render.bars import bar, legend
from vllm_guard.render.ledger import is_split, ledger, sum_line
from vllm_guard.units import floor_mib

_MOST_PROCESSES: Final = 8


def device_lines(assessment: Assessment, *, refused: bool = False) -> Iterator[str]:
    """Each device: its equation, its bar, who holds its memory; what the parts of the one that decides add up to where the model's needs are known; and what
    the signs in the bars mean.
    """
    setting = assessment.settings.get("gpu_memory_utilization")
    fraction = setting.value if setting and isinstance(setting.value, float) and not refused else None
    ledgers = [ledger(plan, fraction, assessment.demand, fixed_pool_bytes(assessment)) for plan in assessment.devices]
    for plan, parts in zip(assessment.devices, ledgers, strict=True):
        yield f"  {equation(plan)}{'  decides' if plan.limiting and len(ledgers) > 1 else ''}"
        yield f"    {bar(parts)}"
        if plan.limiting and is_split(parts):
            yield f"    {sum_line(parts)}"
        yield from _holders(plan)
    if ledgers:
        yield f"    {legend(ledgers)}"


def _holders(plan: DevicePlan) -> Iterator[str]:
    holders = sorted(plan.device.processes, key=lambda process: process.used_bytes or 0, reverse=True)
    shown = holders[:_MOST_PROCESSES]
    pids_listed = {process.pid for process in holders}
    rows = [_process_columns(process, pids_listed) for process in shown]
    pids, sizes, users, commands, _ = (max(map(len, column)) for column in zip(*rows, strict=True)) if rows else (0,) * 5
    for pid, used, user, command, notes in rows:
        yield f"    pid {pid:<{pids}}  {used:>{sizes}}  {user:<{users}}  {command:<{commands}}  {notes}".rstrip()
    if len(holders) > len(shown):
        yield f"    and {len(holders) - len(shown)} smaller ones"
    if plan.holders_incomplete is not None:
        yield f"    {plain(plan.holders_incomplete)}"


def equation(plan: DevicePlan) -> str:
    """The device's memory as an equation in MiB that adds up: total = free + driver + processes + unaccounted."""
    device = plan.device
    total, free = floor_mib(device.nvml_total_bytes), floor_mib(device.free_bytes)
    driver = floor_mib(device.driver_reserved_bytes or 0)
    known = [process.used_bytes for process in device.processes if process.used_bytes is not None]
    listed = floor_mib(sum(known))
    name = f"{device_label(plan)}  {plain(device.name)}" if device.kind == "cuda" else device_label(plan)
    uuid = f"  {plain(device.uuid)[:12]}" if device.uuid else ""
    reserved = f" + driver {driver}" if device.driver_reserved_bytes is not None else ""
    parts = f"total {total} = free {free}{reserved} + processes {listed} + unaccounted {total - free - driver - listed}"
    return f"{name}{uuid}   {parts}   [MiB]"


def _process_columns(process: GpuProcess, listed: Collection[int]) -> tuple[str, str, str, str, str]:
    used = "unknown" if process.used_bytes is None else f"{floor_mib(process.used_bytes)} MiB"
    command, notes = plain(process.command or process.name), list(_notes(process, listed))
    if process.command is None and process.name == "unknown":
        command, notes = "has ended, its memory is not free yet" if process.exiting else "not visible from here", []
    return str(process.pid), used, plain(process.user or "unknown"), command, "  ".join(notes)


def _notes(process: GpuProcess, listed: Collection[int]) -> Iterator[str]:
    if process.age_seconds is not None:
        yield f"up {age_text(process.age_seconds)}"
    if process.orphan:
        yield "orphaned vLLM engine" + _ended_by(process, listed)
    if process.exiting:
        yield "exiting"
    if process.server is not None:
        yield f"belongs to {plain(process.server)}"
    yield from (plain(place) for place in (process.container, process.unit) if place is not None)


def _ended_by(process: GpuProcess, listed: Collection[int]) -> str:
    """The command that ends an orphan; a worker whose engine is listed too leaves it to that."""
    command = process.end_command
    if command is None or any(command == f"kill {pid}" for pid in listed if pid != process.pid):
        return ""
    return f", ended by: {plain(command)}"


def age_text(seconds: float) -> str:
    """`40 s`, `3 min`, `5 h`, `9 d`: the largest whole unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(0, seconds))} s"


def device_label(plan: DevicePlan) -> str:
    """`GPU 0`, with NVML's index where that is another one; or the node for the CPU build."""
    device = plan.device
    if device.kind == "cpu":
        return plain(device.name)
    return f"GPU {device.ordinal}" if device.ordinal == device.nvml_index else f"GPU {device.ordinal} (nvidia-smi {device.nvml_index})"


def plain(text: str) -> str:
    """The text on one line, without anything that a terminal would act on."""
    return "".join(character if character.isprintable() else "?" for character in text)
