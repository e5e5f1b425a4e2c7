"""`vllm-guard demo`: one launch and one refusal on two made-up shared cards. Everything but the cards and vLLM is the real thing."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vllm_guard import speak
from vllm_guard.facts import Facts
from vllm_guard.host.reading import read_snapshot
from vllm_guard.launch import launch
from vllm_guard.plan.decision import Launch, Unmeasured
from vllm_guard.render.document import exit_code
from vllm_guard.settings import Settings, policy
from vllm_guard.subject import Vllm, read_subject, serving

_CARDS: Final = Path(__file__).with_name("shared_cards.json")
_MODEL: Final = "Qwen/Qwen2.5-7B-Instruct"
_SCENES: Final[tuple[tuple[str, Mapping[str, str], tuple[str, ...]], ...]] = (
    ("Two neighbours use GPU 0. Plain vLLM would take 0.92 of the card and die a minute into loading.", {}, (_MODEL, "--max-model-len", "32k")),
    ("GPU 1 is held by an engine whose server is gone. There is nothing to start with.", {"CUDA_VISIBLE_DEVICES": "1"}, (_MODEL,)),
)


def show(settings: Settings) -> int:
    """Plays the scenes on a snapshot of the operator's choice, or on the made-up cards; 0 when all were played."""
    facts = read_snapshot(settings.snapshot or str(_CARDS), settings.vllm_version, {})
    for text, environment, argv in _SCENES:
        prefix = "".join(f"{name}={value} " for name, value in environment.items())
        _tell(f"\n# {text}\n$ {prefix}vllm-guard serve {shlex.join(argv)}")
        _tell(f"[exit status {_play(facts, environment, argv, settings)}]")
    _tell("\nThe cards, their processes and vLLM were made up; the decisions, the text and the exec were not.")
    return 0


def _play(facts: Facts, environment: Mapping[str, str], argv: tuple[str, ...], settings: Settings) -> int:
    """One scene: decide, speak, and on a launch become the stand-in in a child process. The exit status."""
    scene = replace(facts, environment=MappingProxyType({**facts.environment, **environment}))
    words = (sys.executable, "-m", "vllm_guard.demo.stand_in")
    vllm = Vllm(words, None, facts.vllm_version, facts.vllm_device)
    subject = read_subject(serving(vllm, argv), vllm, {})
    decision = subject.decide(scene, policy(settings))
    warnings = () if isinstance(decision, Unmeasured) else decision.assessment.warnings
    speak.say_decision(decision, warnings, "console", speak.Tone(starts=isinstance(decision, Launch), everything=True))
    if not isinstance(decision, Launch):
        return exit_code(decision)
    child = os.fork()
    if child == 0:
        launch(subject.words(decision), os.environ)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _tell(text: str) -> None:
    with suppress(BrokenPipeError):  # the reader has seen enough
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
