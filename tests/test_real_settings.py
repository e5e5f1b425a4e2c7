"""The guard's effective settings are those of the real vLLM: hundreds of random model folders and command lines, on the CPU and with the defaults of cards."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from builders import cpu_facts, facts, gpu
from random_models import FAMILIES, RandomModels

from vllm_guard.command.launcher import SERVE, Usage
from vllm_guard.facts import Facts
from vllm_guard.plan.decision import Launch, Refusal
from vllm_guard.plan.policy import Policy
from vllm_guard.subject import Subject, Vllm, read_subject, serving

pytestmark = pytest.mark.slow

ORACLE: Final = Path(__file__).with_name("real_settings_oracle.py")
VLLM: Final = Vllm(("vllm",), None, "0.32.0+cpu", "cpu")
ASKS: Final = 650
SETTINGS: Final = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
FITS_ITSELF: Final = -1  # as asked: how far an automatic length shrinks is not part of the configuration

# On both sides of 70 and 160 GiB, and the card that is treated as a small one. As many as the largest command line has ranks.
CPU: Final = cpu_facts(total_mib=1 << 20, free_mib=1 << 20)
CARDS: Final = tuple(
    facts(*(gpu(index, total_mib=total_mib, free_mib=total_mib - 1000, name=name) for index in range(16)))
    for total_mib, name in (
        (24_564, "NVIDIA GeForce RTX 4090"),
        (70 * 1024 - 1, "NVIDIA H100"),
        (70 * 1024, "NVIDIA H100"),
        (81_920, "NVIDIA A100-SXM4-80GB"),
        (160 * 1024 - 1, "NVIDIA H200"),
        (160 * 1024, "NVIDIA A100-of-a-kind"),
        (183_359, "NVIDIA B200"),
    )
)

# The same words as other entry points' would be: all that differs is the usage context, which decides the batch defaults.
CONTEXTS: Final = {"api_server": "OPENAI_API_SERVER", "llm_class": "LLM_CLASS", "other": "ENGINE_CONTEXT"}
USAGES: Final[tuple[Usage, ...]] = ("api_server", "api_server", "api_server", "llm_class", "other")

Resolve = Callable[[Subject, Facts], dict[str, Any]]


@contextmanager
def _oracle(python: Path, cache: Path) -> Iterator[Resolve]:
    """The real vLLM: asked about one subject after the other, in one world after the other."""
    environment = {**os.environ, "VLLM_CACHE_ROOT": str(cache)}
    with subprocess.Popen([python, ORACLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as process:
        assert process.stdin
        assert process.stdout
        ask, answers = process.stdin, process.stdout
        assert json.loads(answers.readline()) == {"version": "0.32.0"}

        def resolve(subject: Subject, world: Facts) -> dict[str, Any]:
            first = subject.devices(world)[0]
            card = None if first.kind == "cpu" else [first.tier_total_bytes, first.tier_name]
            ask.write(json.dumps({"argv": subject.command.argv, "usage": CONTEXTS[subject.command.entry.usage], "card": card}) + "\n")
            ask.flush()
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer

        yield resolve
        ask.close()


def _guarded(subject: Subject, world: Facts) -> dict[str, Any]:
    """The guard's effective settings, with its own cap on the batch switched off."""
    decision = subject.decide(world, Policy(batched_tokens="off"))
    assert isinstance(decision, Launch | Refusal), decision
    settings = decision.assessment.settings
    return {name: settings[name].value if name in settings else "not reported" for name in SETTINGS}


def _compare(ours: dict[str, Any], theirs: dict[str, Any], counts: Counter[str]) -> list[str]:
    """Where the guard is wrong; what it does not know is only counted."""
    wrong = []
    for name in SETTINGS:
        if ours[name] is None:
            counts[f"unknown {name}"] += 1
        elif name == "max_model_len" and ours[name] == FITS_ITSELF:
            counts["automatic length"] += 1
        elif ours[name] != theirs[name]:
            wrong.append(f"{name}: {theirs[name]}, not {ours[name]}")
    return wrong


def test_the_effective_settings_are_vllms(vllm_python: Path, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Where vLLM takes the command line, the guard names the same length, batch and sequences, or says that it does not know; it never crashes."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    seen: set[str] = set()
    models = RandomModels(20260101, tmp_path / "models")
    with _oracle(vllm_python, tmp_path / "cache") as resolve:
        for number in range(ASKS):
            launcher = replace(serving(VLLM, models.ask(number)), entry=SERVE._replace(usage=USAGES[number % len(USAGES)]))
            subject = read_subject(launcher, VLLM, {})
            for world in (CPU,) if number % 2 else (CPU, CARDS[number // 2 % len(CARDS)]):
                ours, theirs = _guarded(subject, world), resolve(subject, world)
                if "rejected" in theirs:
                    counts["rejected"] += 1
                    continue
                counts["compared on the CPU" if world is CPU else "compared with a card"] += 1
                config = (tmp_path / "models" / str(number) / "config.json").read_text()
                seen.add(json.loads(config)["architectures"][0])
                wrong += [f"{subject.command.argv} {config}: {line}" for line in _compare(ours, theirs, counts)]
    for name, count in counts.items():
        record_property(name, count)
    assert wrong == []
    assert counts["compared on the CPU"] >= 500
    assert counts["compared with a card"] >= 200
    assert {family.architecture for family in FAMILIES} == seen
    unknown = sum(count for name, count in counts.items() if name.startswith("unknown"))
    assert unknown < 0.1 * len(SETTINGS) * (counts["compared on the CPU"] + counts["compared with a card"])
