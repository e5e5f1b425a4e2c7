"""`vllm-guard check`: the same decision with nothing started."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence

from vllm_guard import speak
from vllm_guard.cli.call import Call, print_line
from vllm_guard.cli.claiming import with_claims
from vllm_guard.command.launcher import Launcher
from vllm_guard.command.mask import mask_argv, mask_text
from vllm_guard.facts import Warn
from vllm_guard.host.reading import read_facts, read_snapshot
from vllm_guard.plan.assess import given_settings
from vllm_guard.plan.decision import Decision, Unmeasured
from vllm_guard.render.document import decision_document, exit_code
from vllm_guard.settings import Loaded, Settings, policy
from vllm_guard.subject import Subject, Vllm, find_vllm, read_subject, serving
from vllm_guard.units import ExitCode


def check(call: Call, loaded: Loaded, argv: Sequence[str]) -> int:
    """The decision alone: report on stderr; on stdout the command line that would be executed, or the document."""
    settings = loaded.settings
    vllm = find_vllm(settings.vllm, settings.vllm_version, invoked=call.invoked, environ=call.environ)
    return report(call, loaded, serving(vllm, argv), vllm)


def report(call: Call, loaded: Loaded, launcher: Launcher, vllm: Vllm) -> int:
    """The decision about this launcher's command line, said and printed as `check` does."""
    settings = loaded.settings
    facts = None
    if settings.snapshot is not None:
        facts = read_snapshot(settings.snapshot, settings.vllm_version, {**call.environ, **launcher.environment})
        vllm = Vllm(vllm.words, vllm.missing, facts.vllm_version, facts.vllm_device)
    subject = read_subject(launcher, vllm, call.environ, asks_hub=loaded.asks_hub)
    if facts is None:
        facts = with_claims(read_facts(vllm.version, vllm.device, subject.environ), settings, subject.environ)
    decision = subject.decide(facts, policy(settings))
    tolerated = isinstance(decision, Unmeasured) and starts_unmeasured(settings, vllm)
    observe = settings.mode == "observe"
    words = subject.untouched if observe else subject.words(decision)
    warnings = all_warnings(loaded, subject, decision)
    tone = speak.Tone(observe=observe, tolerated=tolerated, starts=tolerated, everything=True)
    speak.say_decision(decision, warnings, settings.log_format, tone)
    code = exit_code(decision, starts_unmeasured=tolerated)
    if settings.as_json:
        document = decision_document(
            decision,
            facts,
            executable=vllm.words[0] if vllm.words else None,
            given=given_settings(subject.command),
            masked_argv=_mask_words(words, subject),
            warnings=warnings,
            elapsed_seconds=time.perf_counter() - call.began,
            starts_unmeasured=tolerated,
        )
        print_line(json.dumps(document, indent=2, default=str))
    elif code == ExitCode.OK:
        print_line(shlex.join(words))
    if code != ExitCode.OK:
        speak.write_termination_log(settings.termination_log, speak.decision_lines(decision))
    return code


def _mask_words(words: Sequence[str], subject: Subject) -> tuple[str, ...]:
    """The words that would be executed, without secrets."""
    start = len(subject.prefix)
    return (*map(mask_text, words[:start]), *mask_argv(words[start:], subject.release))


def all_warnings(loaded: Loaded, subject: Subject, decision: Decision) -> tuple[Warn, ...]:
    """The warnings of settings, command line and decision."""
    weighed = subject.command.warnings if isinstance(decision, Unmeasured) else decision.assessment.warnings
    return (*loaded.warnings, *weighed)


def starts_unmeasured(settings: Settings, vllm: Vllm) -> bool:
    """Whether vLLM is started without a verdict when nothing could be measured."""
    return settings.unmeasured == "start" or (settings.unmeasured == "auto" and vllm.device != "cuda")
