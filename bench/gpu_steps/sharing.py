"""Steps about neighbours: what two processes see of each other, what NVML lists from where, and what exec leaves open."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from gpu_steps.machine import BENCH, GUARD_RELEASE, Machine, guard_environment
from gpu_steps.sheet import NotTakenError, Sheet

_LISTS: Final = (("compute", "Compute"), ("graphics", "Graphics"), ("mps", "MPSCompute"))
_LARGEST_HELD_BYTES: Final = 1 << 30
_NAMESPACES: Final = (("unshare", "--fork", "--pid", "--mount-proc"), ("unshare", "--user", "--map-root-user", "--fork", "--pid", "--mount-proc"))

SHARING = (
    "first_holds_bytes",
    "second_holds_bytes",
    "nvml_free_fell_with_first_bytes",
    "second_saw_free_fall_with_first_bytes",
    "first_sees_free_bytes",
    "second_sees_free_bytes",
    "nvml_free_bytes",
    *(f"{name}_listed" for name, _ in _LISTS),
    "unaccounted_bytes",
    "compute_listed_from_holder",
    "pid_namespace_made_with",
    "pid_namespace_free_bytes",
    *(f"{name}_listed_in_pid_namespace" for name, _ in _LISTS),
)


def two_holders(machine: Machine, sheet: Sheet) -> None:
    """Two processes with a known amount each: free memory in each, and the lists of NVML from outside, from a holder and from a new pid namespace."""
    first, second = machine.greet("first holder"), machine.greet("second holder")
    names = {first.pid: "first holder", second.pid: "second holder"}
    machine.ask(first, "look")
    free_bytes = machine.ask(second, "look")["free_bytes"]
    size_bytes = min(_LARGEST_HELD_BYTES, free_bytes // 16)
    machine.ask(second, "hold", size_bytes)
    before, seen_before = machine.free_bytes(), machine.ask(second, "look")
    sheet.put("first_holds_bytes", machine.ask(first, "hold", size_bytes // 2)["torch_bytes"])
    seen = machine.ask(second, "look")
    sheet.put("second_holds_bytes", seen["torch_bytes"])
    sheet.put("nvml_free_fell_with_first_bytes", before - machine.free_bytes())
    sheet.put("second_saw_free_fall_with_first_bytes", seen_before["free_bytes"] - seen["free_bytes"])
    sheet.put("first_sees_free_bytes", machine.ask(first, "look")["free_bytes"])
    sheet.put("second_sees_free_bytes", seen["free_bytes"])
    sheet.put("nvml_free_bytes", machine.free_bytes())
    lists = machine.ask(machine.reader, "lists")
    for name, key in _LISTS:
        sheet.put(f"{name}_listed", _named(lists[key], names))
    sheet.take("unaccounted_bytes", lambda: _unaccounted(machine, lists))
    sheet.take("compute_listed_from_holder", lambda: _named(machine.ask(second, "lists")["Compute"], names))
    _look_from_namespace(machine, sheet, names)
    first.end()


def _named(listed: Any, names: dict[int, str]) -> Any:
    """The entries with whose they are; of strangers nothing but pid and bytes is kept."""
    if isinstance(listed, dict):
        return listed
    return [{"who": names.get(entry["pid"], "other"), **entry} for entry in listed]


def _unaccounted(machine: Machine, lists: dict[str, Any]) -> Any:
    """Occupied memory that no list explains: total - reserved - free - the largest figure of each pid."""
    v2 = machine.ask(machine.reader, "memory")["v2"]
    if "error" in v2:
        return v2
    largest: dict[int, int] = {}
    for _, key in _LISTS:
        for entry in lists[key] if isinstance(lists[key], list) else ():
            largest[entry["pid"]] = max(largest.get(entry["pid"], 0), entry["used_bytes"] or 0)
    return v2["total"] - v2["reserved"] - v2["free"] - sum(largest.values())


def _look_from_namespace(machine: Machine, sheet: Sheet, names: dict[int, str]) -> None:
    reasons = []
    for words in _NAMESPACES:
        try:
            reader = machine.start_reader("NVML reader in a pid namespace", *words)
            lists = machine.ask(reader, "lists")
            free_bytes = machine.ask(reader, "free")
        except NotTakenError as error:
            reasons.append(str(error))
            continue
        reader.end()
        sheet.put("pid_namespace_made_with", " ".join(words))
        sheet.put("pid_namespace_free_bytes", free_bytes)
        for name, key in _LISTS:
            sheet.put(f"{name}_listed_in_pid_namespace", _named(lists[key], names))
        return
    for name in SHARING[SHARING.index("pid_namespace_made_with") :]:
        sheet.put(name, {"error": "; ".join(reasons)})


EXEC = ("after_shutdown_before_exec", "after_shutdown_behind_exec", "without_shutdown_before_exec", "without_shutdown_behind_exec", "behind_the_guard")


def descriptors_over_exec(machine: Machine, sheet: Sheet) -> None:
    """Which descriptors a process that read NVML has open, and what of them reaches the program it becomes; then the guard itself."""
    script = str(BENCH / "gpu_steps" / "descriptors.py")
    for word, name in (("shut", "after_shutdown"), ("open", "without_shutdown")):
        try:
            before, after = machine.run([sys.executable, script, word, machine.uuid]).splitlines()
        except (NotTakenError, ValueError) as error:
            before = after = json.dumps({"error": str(error)})
        sheet.put(f"{name}_before_exec", json.loads(before))
        sheet.put(f"{name}_behind_exec", json.loads(after))
    sheet.take("behind_the_guard", lambda: _behind_the_guard(machine, script))


def _behind_the_guard(machine: Machine, script: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        vllm = Path(folder) / "vllm"
        vllm.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(script)}\n")
        os.chmod(vllm, 0o700)  # noqa: PTH101 - as short
        options = [f"--guard-vllm={vllm}", f"--guard-vllm-version={GUARD_RELEASE}", "--guard-mode=observe", "--guard-settle=0"]
        environ = guard_environment(machine.environ, machine.uuid)
        return json.loads(machine.run([sys.executable, "-m", "vllm_guard", "serve", "model", *options], environ))
