"""A decision about a program that the guard does not know: it may not know vLLM's flags, and may not even start an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vllm_guard.command.parse import Command
from vllm_guard.facts import Warn
from vllm_guard.plan.decide import untouched
from vllm_guard.plan.decision import Decision, Launch, Refusal, Unmeasured

_UNKNOWN: Final = "this program is not known to the guard"


def restrain(decision: Decision, command: Command) -> Decision:
    """The decision as far as it may go here: values change only where they stand, and a program that names no utilization is started whatever was found."""
    given = "gpu_memory_utilization" in command.given
    match decision:
        case Launch(assessment):
            missing = [change for change in assessment.changes if change.dest not in command.given]
            if not missing:
                warning = Warn("launcher_unknown", f"{_UNKNOWN}: values are changed only where they stand, nothing is added")
                return Launch(replace(assessment, warnings=(*assessment.warnings, warning)))
            flags = " ".join(f"{change.flag} {change.after}" for change in missing)
            return untouched(command, Warn("launcher_unknown", f"{_UNKNOWN} and nothing is added to its words: vLLM would need {flags}"))
        case Refusal() if not given:
            return untouched(command, Warn("launcher_unknown", f"{_UNKNOWN} and names no --gpu-memory-utilization: a vLLM with its default would fail now"))
        case Unmeasured(_, message, _) if not given:
            return untouched(command, Warn("launcher_unknown", f"{_UNKNOWN}, and memory could not be measured: {message}"))
        case _:
            return decision
