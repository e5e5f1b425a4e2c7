"""The commands of vllm-guard: wires readers, decision and voice together."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from vllm_guard import __version__, speak
from vllm_guard.bypass import asks_serve, become_vllm, raw_value, termination_log
from vllm_guard.command.mask import mask_argv
from vllm_guard.errors import GuardError, LaunchError, UsageError
from vllm_guard.facts import Facts, Warn
from vllm_guard.flags import nearest, split_flags, strip_flags
from vllm_guard.help import help_text
from vllm_guard.host.reading import read_facts, read_snapshot
from vllm_guard.host.snapshot import facts_document
from vllm_guard.launch import launch, require_program
from vllm_guard.plan.assess import given_settings
from vllm_guard.plan.decision import Decision, Launch, Unmeasured
from vllm_guard.render.document import decision_document, exit_code
from vllm_guard.settings import Loaded, Settings, load, policy
from vllm_guard.subject import Subject, Vllm, find_vllm, read_subject
from vllm_guard.units import ExitCode
from vllm_guard.wait import AUTO_SECONDS, World, settle, should_settle

COMMANDS: Final = ("serve", "check", "snapshot", "demo")


@dataclass(frozen=True, slots=True)
class Call:
    """How the guard was called."""

    argv: tuple[str, ...]
    invoked: str
    environ: Mapping[str, str]
    began: float


def main(argv: Sequence[str], invoked: str, environ: Mapping[str, str]) -> int:
    """The exit code of the guard; `serve` returns only when vLLM was not started. Raises only what is a bug."""
    call = Call(tuple(argv), invoked, environ, time.perf_counter())
    try:
        return _dispatch(call)
    except GuardError as error:
        if isinstance(error, UsageError) and asks_serve(strip_flags(argv)) and (raw_value(argv, environ, "mode") or "").strip().lower() == "off":
            return become_vllm(argv, invoked, environ)  # the settings file says off, whatever else is wrong in it
        speak.say_error(error, raw_value(argv, environ, "log_format"))
        speak.write_termination_log(termination_log(argv, environ), speak.error_lines(error))
        return speak.code_of(error)


def _dispatch(call: Call) -> int:
    flags, words = split_flags(call.argv)
    if "help" in flags or words[:1] in (["--help"], ["-h"], ["help"]):
        _print(help_text())
        return ExitCode.OK
    if "version" in flags or words[:1] == ["--version"]:
        _print(f"vllm-guard {__version__}")
        return ExitCode.OK
    if asks_serve(words):
        return _serve(call, flags, words[1:] if words[0] == "serve" else words)
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name == "check":
        return _check(call, load(flags, call.environ, command="check"), rest)
    if name == "snapshot":
        return _snapshot(call, load(flags, call.environ, command="snapshot"), rest)
    if name == "demo":
        from vllm_guard.demo.show import show  # noqa: PLC0415 - only the demo needs it

        return show(load(flags, call.environ, command="demo").settings)
    msg = f"unknown command {name!r}; the nearest known one is {nearest(name, COMMANDS)}" if name else "no command given"
    raise UsageError(msg, "vllm-guard serve MODEL ..., or vllm-guard --help")


def _serve(call: Call, flags: Mapping[str, str | bool], argv: Sequence[str]) -> int:
    """Becomes vLLM, or returns why not."""
    loaded = load(flags, call.environ, command="serve")
    settings = loaded.settings
    if settings.dry_run:
        return _check(call, loaded, argv)
    vllm = find_vllm(settings.vllm, settings.vllm_version, invoked=call.invoked, environ=call.environ)
    if vllm.words is None:
        raise vllm.missing or LaunchError(127, "cannot run 'vllm': not found", "pass the full path with --guard-vllm")
    require_program(vllm.words[0], call.environ)
    if settings.mode == "off":
        launch([*vllm.words, "serve", *argv], call.environ)
    subject = read_subject(argv, vllm, call.environ)
    if subject.command.asks_help:
        launch(subject.untouched, call.environ)
    decision = _decide_settled(call, settings, subject)
    observe = settings.mode == "observe"
    tolerated = isinstance(decision, Unmeasured) and _starts_unmeasured(settings, vllm)
    starts = observe or tolerated or isinstance(decision, Launch)
    tone = speak.Tone(observe=observe, tolerated=tolerated, starts=starts)
    speak.say_decision(decision, _warnings(loaded, subject, decision), settings.log_format, tone)
    if not starts:
        speak.write_termination_log(settings.termination_log, speak.decision_lines(decision))
        return exit_code(decision)
    return launch(subject.untouched if observe else subject.words(decision), call.environ)


def _decide_settled(call: Call, settings: Settings, subject: Subject) -> Decision:
    """The decision, on a reading taken once free memory is steady where somebody may be leaving."""

    def read() -> Facts:
        return read_facts(subject.vllm.version, subject.vllm.device, call.environ)

    facts = read()
    decision = subject.decide(facts, policy(settings))
    seconds = AUTO_SECONDS if settings.settle is None else settings.settle
    if seconds <= 0 or not should_settle(decision):
        return decision
    world = World(read, subject.devices, time.monotonic, time.sleep, lambda text: speak.say([f"vllm-guard: {text}"]))
    return subject.decide(settle(facts, seconds, world), policy(settings))


def _starts_unmeasured(settings: Settings, vllm: Vllm) -> bool:
    return settings.unmeasured == "start" or (settings.unmeasured == "auto" and vllm.device != "cuda")


def _check(call: Call, loaded: Loaded, argv: Sequence[str]) -> int:
    """The decision alone: report on stderr; on stdout the command line that would be executed, or the document."""
    settings = loaded.settings
    vllm = find_vllm(settings.vllm, settings.vllm_version, invoked=call.invoked, environ=call.environ)
    facts = None
    if settings.snapshot is not None:
        facts = read_snapshot(settings.snapshot, settings.vllm_version, call.environ)
        vllm = Vllm(vllm.words, vllm.missing, facts.vllm_version, facts.vllm_device)
    subject = read_subject(argv, vllm, call.environ)
    if facts is None:
        facts = read_facts(vllm.version, vllm.device, call.environ)
    decision = subject.decide(facts, policy(settings))
    tolerated = isinstance(decision, Unmeasured) and _starts_unmeasured(settings, vllm)
    observe = settings.mode == "observe"
    words = subject.untouched if observe else subject.words(decision)
    warnings = _warnings(loaded, subject, decision)
    tone = speak.Tone(observe=observe, tolerated=tolerated, starts=tolerated, everything=True)
    speak.say_decision(decision, warnings, settings.log_format, tone)
    code = exit_code(decision, starts_unmeasured=tolerated)
    if settings.as_json:
        document = decision_document(
            decision,
            facts,
            executable=vllm.words[0] if vllm.words else None,
            given=given_settings(subject.command),
            masked_argv=mask_words(words, subject),
            warnings=warnings,
            elapsed_seconds=time.perf_counter() - call.began,
            starts_unmeasured=tolerated,
        )
        _print(json.dumps(document, indent=2, default=str))
    elif code == ExitCode.OK:
        _print(shlex.join(words))
    if code != ExitCode.OK:
        speak.write_termination_log(settings.termination_log, speak.decision_lines(decision))
    return code


def mask_words(words: Sequence[str], subject: Subject) -> tuple[str, ...]:
    """The words that would be executed, with the secrets of vLLM's part masked."""
    start = len(words) - len(words[words.index("serve") + 1 :])
    return (*words[:start], *mask_argv(words[start:], subject.release))


def _warnings(loaded: Loaded, subject: Subject, decision: Decision) -> tuple[Warn, ...]:
    """The warnings of settings, command line and decision."""
    weighed = subject.command.warnings if isinstance(decision, Unmeasured) else decision.assessment.warnings
    return (*loaded.warnings, *weighed)


def _snapshot(call: Call, loaded: Loaded, argv: Sequence[str]) -> int:
    """The facts of this host as a document on stdout."""
    unknown = [word for word in argv if word != "--with-commands"]
    if unknown:
        msg = f"snapshot does not know {unknown[0]!r}"
        raise UsageError(msg, "vllm-guard snapshot [--with-commands]")
    settings = loaded.settings
    speak.say_warnings(loaded.warnings, settings.log_format)
    vllm = find_vllm(settings.vllm, settings.vllm_version, invoked=call.invoked, environ=call.environ)
    facts = read_facts(vllm.version, vllm.device, call.environ)
    if facts.nvml_fault is not None:
        speak.say_warnings((Warn("not_measured", facts.nvml_fault.message),), settings.log_format)
    _print(json.dumps(facts_document(facts, _own_user(), with_commands="--with-commands" in argv), indent=2))
    return ExitCode.OK


def _print(text: str) -> None:
    """A line on stdout, with the bytes of argv as they came. A reader that has gone away is no failure: the exit code is the verdict."""
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(os.fsencode(text) + b"\n")
        sys.stdout.buffer.flush()


def _own_user() -> str | None:
    import pwd  # noqa: PLC0415 - only snapshot asks who we are

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None
