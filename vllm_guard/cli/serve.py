"""`vllm-guard serve`: becomes vLLM, or says why not."""

from __future__ import annotations

import time
from collections.abc import Sequence

from vllm_guard import speak
from vllm_guard.cli.call import Call
from vllm_guard.cli.check import all_warnings, check, starts_unmeasured
from vllm_guard.cli.claiming import decide_and_claim, with_claims
from vllm_guard.errors import LaunchError
from vllm_guard.facts import Facts, Warn
from vllm_guard.host.reading import read_facts
from vllm_guard.launch import launch, require_program
from vllm_guard.plan.decision import Decision, Launch, Unmeasured
from vllm_guard.progress import Teller
from vllm_guard.render.document import exit_code
from vllm_guard.settings import Loaded, Settings, policy
from vllm_guard.settle import AUTO_SECONDS
from vllm_guard.subject import Subject, find_vllm, read_subject, serving
from vllm_guard.wait import Patience, World, decide_in_time


def serve(call: Call, loaded: Loaded, argv: Sequence[str]) -> int:
    """Becomes vLLM, or returns why not."""
    settings = loaded.settings
    if settings.dry_run:
        return check(call, loaded, argv)
    vllm = find_vllm(settings.vllm, settings.vllm_version, invoked=call.invoked, environ=call.environ)
    if vllm.words is None:
        raise vllm.missing or LaunchError(127, "cannot run 'vllm': not found", "pass the full path with --guard-vllm")
    require_program(vllm.words[0], call.environ)
    launcher = serving(vllm, argv)
    if settings.mode == "off":
        launch([*launcher.prefix, *launcher.arguments], call.environ)
    return start(call, loaded, read_subject(launcher, vllm, call.environ, asks_hub=loaded.asks_hub))


def start(call: Call, loaded: Loaded, subject: Subject) -> int:
    """Decides about this command line and becomes it, or returns why not."""
    settings = loaded.settings
    if subject.command.asks_help:
        launch(subject.untouched, call.environ)
    observe = settings.mode == "observe"
    decision, unclaimed = (_decide_in_time(call, settings, subject, 0.0), ()) if observe else _decide(call, settings, subject)
    tolerated = isinstance(decision, Unmeasured) and starts_unmeasured(settings, subject.vllm)
    starts = observe or tolerated or isinstance(decision, Launch)
    tone = speak.Tone(observe=observe, tolerated=tolerated, starts=starts)
    speak.say_decision(decision, (*all_warnings(loaded, subject, decision), *unclaimed), settings.log_format, tone)
    if not starts:
        speak.write_termination_log(settings.termination_log, speak.decision_lines(decision))
        return exit_code(decision)
    return launch(subject.untouched if observe else subject.words(decision), call.environ)


def _decide(call: Call, settings: Settings, subject: Subject) -> tuple[Decision, tuple[Warn, ...]]:
    """The decision, final and promised to other guards; and why it could not be promised.

    Whoever was waited with for the same memory may have promised it first: who still has time waits on.
    """
    deadline = time.monotonic() + settings.wait
    while True:
        decision = _decide_in_time(call, settings, subject, max(0.0, deadline - time.monotonic()))
        claimed = decide_and_claim(settings, subject, decision, lambda: _read(subject), may_wait=lambda: time.monotonic() < deadline)
        if claimed is not None:
            return claimed


def _decide_in_time(call: Call, settings: Settings, subject: Subject, wait_seconds: float) -> Decision:
    """The decision, on a reading taken once what was asked fits where that is waited for, and once free memory is steady where somebody may be leaving.

    Who only observes does not wait: vLLM starts whatever comes of it.
    """

    def read() -> Facts:
        return with_claims(_read(subject), settings, subject.environ)

    def decide(facts: Facts) -> Decision:
        return subject.decide(facts, policy(settings))

    patience = Patience(wait_seconds, AUTO_SECONDS if settings.settle is None else settings.settle)
    world = World(read, decide, subject.devices, time.monotonic, time.sleep)
    return decide_in_time(world, patience, Teller(settings.log_format, call.environ.get("NOTIFY_SOCKET")))


def _read(subject: Subject) -> Facts:
    return read_facts(subject.vllm.version, subject.vllm.device, subject.environ)
