"""A decision as text for people: one verdict line that is enough by itself, then the evidence."""

from __future__ import annotations

from typing_extensions import assert_never

from vllm_guard.command.mask import mask_text
from vllm_guard.devices import competitors
from vllm_guard.facts import Warn
from vllm_guard.plan.decision import Assessment, Decision, Launch, Refusal, Unmeasured
from vllm_guard.plan.pool import NEED
from vllm_guard.render.demand import demand_lines
from vllm_guard.render.devices import device_label, device_lines, plain
from vllm_guard.units import ExitCode, ceil_mib, floor_mib, requested_bytes

PREFIX = "vllm-guard: "
_WORTH_SAYING_MIB = 64
_SUPERVISOR = {
    ExitCode.USAGE: "correct the command, then start again",
    ExitCode.UNMEASURED: "repair the host, then start again",
    ExitCode.REFUSED_FOR_NOW: "may succeed later",
    ExitCode.REFUSED_FOR_GOOD: "cannot succeed with this command on this machine",
}


def summary(decision: Decision) -> str:
    """The verdict line without its prefix."""
    match decision:
        case Launch(assessment):
            return _launch_summary(assessment)
        case Refusal():
            return _refusal_summary(decision)
        case Unmeasured(message=message):
            return plain(message)
        case _:
            assert_never(decision)


def verdict_line(decision: Decision, *, observe: bool = False, tolerated: bool = False) -> str:
    """`vllm-guard: <launch|refused|error>: ...`; a warning when the guard only observes, or when vLLM starts although nothing could be measured."""
    text = plain(mask_text(summary(decision)))
    match decision:
        case Launch():
            return f"{PREFIX}warning: would launch with: {text}" if observe else f"{PREFIX}launch: {text}"
        case Unmeasured() if tolerated:
            return f"{PREFIX}warning: {'would launch with: the command line as given: ' if observe else ''}{text}"
        case Refusal() | Unmeasured() if observe:
            return f"{PREFIX}warning: would refuse: {text}"
        case Refusal():
            return f"{PREFIX}refused: {text}"
        case Unmeasured():
            return f"{PREFIX}error: {text}"
        case _:
            assert_never(decision)


def warning_line(warning: Warn) -> str:
    """`vllm-guard: warning: ...`."""
    return f"{PREFIX}warning: {plain(mask_text(warning.message))}"


def evidence_lines(decision: Decision, *, starts: bool = False) -> list[str]:
    """What adds up to the verdict, the fix, and, unless vLLM starts all the same, what the exit code tells a supervisor."""
    match decision:
        case Launch(assessment):
            lines = [*_changes(assessment), *device_lines(assessment), *_imbalance(assessment), *demand_lines(assessment), *_gates(assessment)]
            return [*lines, *_fixes(assessment.fixes, "should it fail")]
        case Refusal(assessment=assessment):
            code: ExitCode = decision.exit_code
            lines = [
                *device_lines(assessment, refused=True),
                *_imbalance(assessment),
                *demand_lines(assessment),
                *_needs(decision),
                *_gates(assessment),
                *_fixes(assessment.fixes),
            ]
        case Unmeasured(fix=fix):
            started = "is started with the command line as given" if starts else "was not started"
            lines, code = [f"  no verdict; vllm {started}", *_fixes((fix,))], ExitCode.UNMEASURED
        case _:
            assert_never(decision)
    return lines if starts else [*lines, exit_line(code)]


def exit_line(code: ExitCode) -> str:
    """What a supervisor should make of an exit code."""
    return f"  exit {code}: {_SUPERVISOR[code]}" if code in _SUPERVISOR else f"  exit {code}"


def _launch_summary(assessment: Assessment) -> str:
    if assessment.changes:
        return "; ".join(
            f"{change.flag} {change.before} to {change.after} ({change.because})"
            if change.before is not None
            else f"{change.flag} {change.after} ({change.because})"
            for change in assessment.changes
        )
    because = f" ({plain(assessment.unchanged_because)})" if assessment.unchanged_because else ""
    tightest = next((plan for plan in assessment.devices if plan.limiting), None)
    if tightest is None:
        return f"nothing changed{because}"
    device = tightest.device
    value = assessment.settings["gpu_memory_utilization"].value
    free = f"{device_label(tightest)} has {floor_mib(device.free_bytes)} of {floor_mib(device.nvml_total_bytes)} MiB free"
    return f"--gpu-memory-utilization {value} unchanged{because}: {free}"


def _refusal_summary(refusal: Refusal) -> str:
    label = device_label(refusal.assessment.devices[refusal.device])
    have, need = floor_mib(refusal.have_bytes), ceil_mib(refusal.need_bytes)
    short = f"(short by {need - have} MiB)"
    has = f"{label} leaves a budget of {have} MiB" if refusal.capped else f"{label} has {have} MiB free"
    match refusal.reason:
        case "context_too_long" | "too_many_sequences":
            return f"{label} leaves about {have} MiB for the KV cache, {plain(refusal.needs[0].name)} needs {need} MiB {short}"
        case "competitors":
            return _competitors_summary(refusal, label)
        case "below_min_free":
            return f"{has}, min_free asks for {need} MiB {short}"
        case "model_too_large" if refusal.capped and refusal.needs[0].name == NEED:
            return f"{has}, weights, activations and CUDA graphs likely need {need} MiB {short}"
        case "model_too_large" if refusal.capped:
            return f"{has}, the weights alone need at least {need} MiB {short}"
        case "gpu_busy" | "below_min_kv_cache" | "below_min_utilization" | "model_too_large":
            thresholds = "".join(f" with {part.name} at {ceil_mib(part.size_bytes)} MiB" for part in refusal.needs if part.name.startswith("min_"))
            return f"{has}, this launch needs at least {need} MiB{thresholds} {short}"
        case _:
            assert_never(refusal.reason)


def _competitors_summary(refusal: Refusal, label: str) -> str:
    others = competitors(refusal.assessment.devices[refusal.device].device)
    largest = others[0]
    used = "an unknown amount" if largest.used_bytes is None else f"{floor_mib(largest.used_bytes)} MiB"
    have, need = floor_mib(refusal.have_bytes), ceil_mib(refusal.need_bytes)
    named = f"pid {largest.pid} ({used})" + (f" and {len(others) - 1} more" if len(others) > 1 else "")
    return f"{label} is not exclusive as competitors=refuse wants it: {named} on it, {have} of {need} MiB free (short by {max(0, need - have)} MiB)"


def _imbalance(assessment: Assessment) -> list[str]:
    """Which device decides for all of them, and what that leaves unused on the one that has most."""
    plans = assessment.devices
    decides = next((plan for plan in plans if plan.limiting), None)
    if decides is None or len(plans) < 2:  # noqa: PLR2004 - one device is in balance
        return []
    most = max(plans, key=lambda plan: plan.budget_bytes)
    unused = floor_mib(most.budget_bytes - decides.budget_bytes)
    if unused < _WORTH_SAYING_MIB:
        return []
    can, could = floor_mib(max(0, decides.budget_bytes)), floor_mib(most.budget_bytes)
    return [f"  {device_label(decides)} decides for all {len(plans)}: it can give {can} MiB, {device_label(most)} {could} MiB ({unused} MiB more)"]


def _fixes(fixes: tuple[str, ...], label: str = "fix") -> list[str]:
    return [f"  {label}: {plain(', or '.join(fixes))}"] if fixes else []


def _changes(assessment: Assessment) -> list[str]:
    """What the utilization was before, where it came from, and how to keep it."""
    change = next((change for change in assessment.changes if change.dest == "gpu_memory_utilization"), None)
    plan = next((plan for plan in assessment.devices if plan.limiting), None)
    if change is None or plan is None:
        return []
    given = assessment.settings[change.dest].given
    need = ceil_mib(requested_bytes(plan.device.nvml_total_bytes - (plan.device.driver_reserved_bytes or 0), float(change.before or 0)))
    have = max(0, floor_mib(plan.device.free_bytes - plan.device.claimed_bytes - plan.start_overhead_bytes))
    sizes = f"needs {need} MiB; {device_label(plan)} will have about {have} MiB free"
    if given is None:
        return [f"  {change.before} is vLLM's default and {sizes}"]
    return [f"  {change.before} is your value and {sizes}: vLLM would have refused it", "  VLLM_GUARD_ON_EXPLICIT=keep keeps it as given"]


def _gates(assessment: Assessment) -> list[str]:
    lines = []
    for gate in assessment.gates:
        if gate.have_bytes is None or gate.need_bytes is None or gate.outcome == "unknown":
            continue
        sizes = f"have {floor_mib(gate.have_bytes)} MiB, need {ceil_mib(gate.need_bytes)} MiB"
        lines.append(f"  gate {gate.gate}: {gate.outcome}, {sizes} ({plain(gate.detail)})")
    return lines


def _needs(refusal: Refusal) -> list[str]:
    """What is needed as a sum in MiB, the last part taking the rounding; nothing where it is one number anyway."""
    if len(refusal.needs) < 2:  # noqa: PLR2004 - a sum has two parts
        return []
    total = ceil_mib(refusal.need_bytes)
    sizes = [floor_mib(need.size_bytes) for need in refusal.needs[:-1]]
    parts = [f"{size} for {plain(need.name)}" for need, size in zip(refusal.needs, [*sizes, total - sum(sizes)], strict=True)]
    return [f"  needs {total} = {' + '.join(parts)}   [MiB]"]
