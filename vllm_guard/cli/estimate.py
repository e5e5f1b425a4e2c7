"""`vllm-guard estimate`: what a model needs, and what fits where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from vllm_guard import speak
from vllm_guard.cli.call import Call, print_line
from vllm_guard.errors import UsageError
from vllm_guard.facts import Facts, Gpu, Warn
from vllm_guard.host.reading import read_facts, read_snapshot
from vllm_guard.model.checkpoint import UnknownCheckpoint
from vllm_guard.model.config import read_traits, text_config
from vllm_guard.model.fields import Fields
from vllm_guard.plan.advice import CONTRADICTIONS
from vllm_guard.plan.decision import Decision, Unmeasured
from vllm_guard.plan.estimate import Table, empty_cards, parallel_sizes, row_of, with_parallel_size
from vllm_guard.plan.policy import Policy
from vllm_guard.render.estimate import Subject as Shown
from vllm_guard.render.estimate import estimate_document, estimate_lines
from vllm_guard.settings import Loaded, policy
from vllm_guard.subject import Subject, Vllm, find_vllm, read_subject, serving
from vllm_guard.units import GIB, ExitCode, parse_size_bytes

_USAGE: Final = "vllm-guard estimate MODEL [--memory 24GiB]... [--concurrency N] [vllm options]"
_MOST_CARDS: Final = 8
_USUAL_BYTES: Final = (24 * GIB, 48 * GIB, 80 * GIB)


@dataclass(frozen=True, slots=True)
class _Words:
    memory_bytes: tuple[int, ...]
    concurrency: int
    rest: tuple[str, ...]


def estimate(call: Call, loaded: Loaded, argv: Sequence[str]) -> int:
    """The table on stdout. Raises UsageError for words that cannot be used and for a model of which nothing can be read."""
    settings = loaded.settings
    words = _split(argv)
    vllm = find_vllm(settings.vllm, settings.vllm_version, invoked=call.invoked, environ=call.environ)
    facts = None
    if settings.snapshot is not None:
        facts = read_snapshot(settings.snapshot, settings.vllm_version, call.environ)
        vllm = Vllm(vllm.words, vllm.missing, facts.vllm_version, facts.vllm_device)
    subject = read_subject(serving(vllm, words.rest), vllm, call.environ, asks_hub=loaded.asks_hub)
    if subject.command.rejection is not None:
        msg = f"vLLM would reject these words: {subject.command.rejection}"
        raise UsageError(msg, _USAGE)
    if isinstance(subject.checkpoint, UnknownCheckpoint):
        raise UsageError(subject.checkpoint.because, "name a folder with a config.json, a model in the Hugging Face cache, or one that its hub tells of")
    facts = facts or read_facts(vllm.version, vllm.device, subject.environ)
    traits = read_traits(subject.checkpoint.config, subject.release)
    grounds, instead = _grounds(facts, words.memory_bytes)
    deciding = _Deciding(subject, policy(settings), Fields(text_config(subject.checkpoint.config)).number("num_attention_heads"))
    decided = [(ground, deciding.on(ground)) for ground in grounds]
    speak.say_warnings((*loaded.warnings, *subject.command.warnings, *instead, *_contradictions(decided)), settings.log_format)
    tables = [
        Table(ground.name, ground.memory_bytes, tuple(row_of(decision, size, words.concurrency, traits.max_model_len) for size, decision in rows))
        for ground, rows in decided
    ]
    shown = Shown(subject.command.model or "", traits.architecture, facts.vllm_version, words.concurrency)
    if settings.as_json:
        print_line(json.dumps(estimate_document(shown, tables), indent=2))
    else:
        for line in estimate_lines(shown, tables):
            print_line(line)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Ground:
    """Cards to decide on: what they are called, the memory of one where they are made up, and how many there are."""

    name: str
    memory_bytes: int | None
    facts: Facts
    count: int


def _grounds(facts: Facts, memory_bytes: Sequence[int]) -> tuple[list[_Ground], list[Warn]]:
    """Empty cards of the sizes asked for, else this host; where it has no card that can be read some usual sizes, and a warning."""
    if not memory_bytes and facts.vllm_device != "cuda":
        return [_Ground("this host, as it is now", None, facts, 1)], []
    here = [gpu for gpu in facts.gpus if isinstance(gpu, Gpu)]
    if not memory_bytes and here:
        return [_Ground("this host, as it is now", None, facts, len(here))], []
    made_up = replace(facts, vllm_device="cuda")
    grounds = [
        _Ground(f"empty cards of {memory / GIB:g} GiB", memory, empty_cards(made_up, memory, _MOST_CARDS), _MOST_CARDS)
        for memory in memory_bytes or _USUAL_BYTES
    ]
    because = "no card here" if facts.nvml_fault is None else facts.nvml_fault.message
    return grounds, [] if memory_bytes else [Warn("no_cards", f"{because}: empty cards of usual sizes instead, --memory 24GiB chooses others")]


@dataclass(frozen=True, slots=True)
class _Deciding:
    subject: Subject
    rules: Policy
    heads: int

    def on(self, ground: _Ground) -> list[tuple[int, Decision]]:
        """The decision at each tensor parallel size; those for which there are not enough cards are left out where others are left."""
        command = self.subject.command
        decided = [
            (size, replace(self.subject, command=with_parallel_size(command, size)).decide(ground.facts, self.rules))
            for size in parallel_sizes(command, self.heads, ground.count)
        ]
        measured: list[tuple[int, Decision]] = [(size, decision) for size, decision in decided if not isinstance(decision, Unmeasured)]
        return measured or decided


def _contradictions(decided: Sequence[tuple[_Ground, list[tuple[int, Decision]]]]) -> list[Warn]:
    """What vLLM would reject, once."""
    decisions = [decision for _, rows in decided for _, decision in rows if not isinstance(decision, Unmeasured)]
    return list(dict.fromkeys(warning for decision in decisions for warning in decision.assessment.warnings if warning.code in CONTRADICTIONS))


def _split(argv: Sequence[str]) -> _Words:
    """Our own two options; everything else is vLLM's."""
    memory: list[int] = []
    concurrency, rest, words = 1, [], list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name not in {"--memory", "--concurrency"}:
            rest.append(word)
            continue
        if not equals and not words:
            msg = f"{name} needs a value"
            raise UsageError(msg, _USAGE)
        value = value if equals else words.pop(0)
        try:
            if name == "--memory":
                memory.append(parse_size_bytes(value))
            else:
                concurrency = int(value)
        except ValueError as error:
            msg = f"{name} {value!r}: {error}"
            raise UsageError(msg, _USAGE) from None
    if concurrency < 1 or any(size < 1 for size in memory):
        msg = "--memory and --concurrency must be above 0"
        raise UsageError(msg, _USAGE)
    return _Words(tuple(memory), concurrency, tuple(rest))
