"""What the guard says on stderr and in the termination log. Speaking never stops a launch."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from vllm_guard.command.mask import mask_text
from vllm_guard.errors import GuardError, LaunchError, UsageError
from vllm_guard.facts import Warn
from vllm_guard.log import Emit, LogFormat, configure
from vllm_guard.plan.decision import Decision, Launch, Refusal
from vllm_guard.render.devices import plain
from vllm_guard.render.document import device_document
from vllm_guard.render.text import PREFIX, evidence_lines, exit_line, verdict_line, warning_line
from vllm_guard.units import ExitCode

_TERMINATION_LIMIT_BYTES: Final = 4096
_FORMATS: Final[tuple[LogFormat, ...]] = ("json", "console")
_EVENTS: Final = {ExitCode.USAGE: "usage_error", ExitCode.UNMEASURED: "not_measured", ExitCode.CANNOT_RUN: "cannot_run", ExitCode.NOT_FOUND: "not_found"}


@dataclass(frozen=True, slots=True)
class Tone:
    """How a decision is said. `observe`: nothing is acted on; `tolerated`: it could not be measured and vLLM starts without a verdict."""

    observe: bool = False
    tolerated: bool = False
    starts: bool = False
    everything: bool = False


def say(lines: Iterable[str]) -> None:
    """Lines on stderr; what the terminal cannot show is escaped, and a closed stderr is nobody's reason to fail."""
    write("".join(f"{line}\n" for line in lines))


def write(text: str) -> None:
    """The same for text that ends no line."""
    with suppress(OSError, ValueError):
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stderr.flush()


def say_warnings(warnings: Iterable[Warn], log_format: LogFormat) -> None:
    """Warnings, as lines or as events."""
    emit = configure(log_format, sys.stderr)
    for warning in warnings:
        if emit is None:
            say([warning_line(warning)])
        else:
            emit("warning", level="warning", code=warning.code, message=mask_text(warning.message))


def say_decision(decision: Decision, warnings: Iterable[Warn], log_format: LogFormat, tone: Tone) -> None:
    """The verdict line, the warnings, and the evidence: always of a refusal, of a launch when it changes something or `everything` is asked for."""
    say([verdict_line(decision, observe=tone.observe, tolerated=tone.tolerated)])
    emit = configure(log_format, sys.stderr)
    say_warnings(warnings, log_format)
    if emit is not None:
        _emit_decision(emit, decision)
    elif tone.everything or not isinstance(decision, Launch) or decision.assessment.changes:
        say(evidence_lines(decision, starts=tone.starts))


def _emit_decision(emit: Emit, decision: Decision) -> None:
    if isinstance(decision, Launch | Refusal):
        refused = isinstance(decision, Refusal)
        assessment = decision.assessment
        emit(
            "launch_refused" if refused else "launch_decided",
            level="error" if refused else "info",
            reason=decision.reason if isinstance(decision, Refusal) else None,
            exit_code=int(decision.exit_code) if isinstance(decision, Refusal) else None,
            have_bytes=decision.have_bytes if isinstance(decision, Refusal) else None,
            need_bytes=decision.need_bytes if isinstance(decision, Refusal) else None,
            changes={change.dest: {"from": change.before, "to": change.after} for change in assessment.changes},
            gates={gate.gate: gate.outcome for gate in assessment.gates},
            devices=[device_document(plan) for plan in assessment.devices],
            fixes=list(assessment.fixes),
        )
    else:
        emit("not_measured", level="error", reason=decision.reason, message=mask_text(decision.message), fix=mask_text(decision.fix))


def say_error(error: GuardError, log_format: str | None) -> None:
    """An error that is no verdict on memory. `log_format` as it was given, for the settings may be what is wrong."""
    verdict, *evidence = error_lines(error)
    say([verdict])
    emit = configure(next((known for known in _FORMATS if known == (log_format or "").strip().lower()), "auto"), sys.stderr)
    if emit is None:
        say(evidence)
    else:
        emit(_EVENTS[code_of(error)], level="error", exit_code=int(code_of(error)), message=mask_text(error.message), fix=mask_text(error.fix))


def code_of(error: GuardError) -> ExitCode:
    """The exit code of an error."""
    if isinstance(error, LaunchError):
        return ExitCode(error.exit_code)
    return ExitCode.USAGE if isinstance(error, UsageError) else ExitCode.UNMEASURED


def error_lines(error: GuardError) -> list[str]:
    """The parts for everything that is no verdict: fact, fix, what a supervisor should do."""
    word = "usage" if isinstance(error, UsageError) else "error"
    return [f"{PREFIX}{word}: {plain(mask_text(error.message))}", f"  fix: {plain(mask_text(error.fix))}", exit_line(code_of(error))]


def decision_lines(decision: Decision) -> list[str]:
    """A refusal or error for the termination log."""
    return [verdict_line(decision), *evidence_lines(decision)]


def write_termination_log(path: str | None, lines: Iterable[str]) -> None:
    """The lines into an existing regular file, at most 4 KiB; the file is never created and no link is followed. Failing to is not an error."""
    if not path:
        return
    data = "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")[:_TERMINATION_LIMIT_BYTES]
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.ftruncate(descriptor, 0)
                file.write(data)
