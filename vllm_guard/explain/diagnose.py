"""From the lines of a log to the first cause of the last start that failed. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from vllm_guard.explain.attempt import Attempt
from vllm_guard.explain.clean import pieces
from vllm_guard.explain.findings import Finding
from vllm_guard.explain.fixes import Fix
from vllm_guard.explain.numbers import numbers_of
from vllm_guard.explain.remedies import remedies
from vllm_guard.explain.scan import candidate_lines
from vllm_guard.explain.signatures import Signature
from vllm_guard.explain.stages import Stage

Confidence = Literal["certain", "likely"]
_MOST_EARLIER: Final = 1000
# What can still go wrong once the server answers; everything else before was none of the cause then.
_AFTER_READY: Final = frozenset(("port_in_use", "oom", "oom_at_runtime", "host_out_of_memory", "shared_memory_full"))
_OOM_AT: Final[dict[Stage, str]] = {
    "context": "oom_at_context",
    "load": "oom_at_load",
    "profile": "oom_at_profile",
    "kv_allocation": "oom_at_kv_allocation",
    "graph_capture": "oom_at_graph_capture",
    "sampler_warmup": "oom_at_sampler_warmup",
    "runtime": "oom_at_runtime",
}
_STAGE_OF: Final[dict[str, str]] = {
    "gate_free_memory": "worker_init",
    "gate_cache_blocks": "kv_config",
    "gate_one_sequence": "kv_config",
    "gate_mamba_blocks": "graph_capture",
    "profiling_memory_released": "profile",
}


@dataclass(frozen=True, slots=True)
class Also:
    """Another cause of the same start, which came later."""

    cause: str
    line: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why the last start of a log failed; `cause` is None where it worked, or where nothing in it is known. `earlier` are the causes of the starts before
    it in the same log, and `unknown` the first exception where no cause is known.
    """

    cause: str | None
    stage: str | None
    confidence: Confidence
    line: int | None
    text: str | None
    numbers: Mapping[str, float | int | str]
    fixes: tuple[Fix, ...]
    misleading: tuple[str, ...]
    also: tuple[Also, ...]
    vllm_version: str | None
    earlier: tuple[Also, ...] = ()
    ready: bool = False
    unknown: tuple[int, str] | None = None


def diagnose(chunks: Iterable[bytes], signatures: tuple[Signature, ...]) -> Diagnosis:
    """The diagnosis of a log, read once and in bounded memory."""
    earlier: deque[Also] = deque(maxlen=_MOST_EARLIER)
    before, latest = None, [Attempt()]
    for number, line in candidate_lines(chunks, lambda: latest[0].ready):
        for piece in pieces(line):
            if latest[0].begins_again(piece):
                earlier.extend(_named(before))
                before, latest[0] = _explain(latest[0]), Attempt()
            latest[0].take(number, piece, signatures)
    return _last(earlier, before, latest[0])


def _last(earlier: deque[Also], before: Diagnosis | None, attempt: Attempt) -> Diagnosis:
    """The last start, or the one before it where the last one was cut off before it came to anything."""
    found = _explain(attempt)
    unfinished = found.cause is None and not attempt.ready and attempt.failed is None and attempt.exception is None
    if unfinished and before is not None and before.cause is not None:
        return replace(before, earlier=tuple(earlier))
    earlier.extend(_named(before))
    return replace(found, earlier=tuple(earlier))


def _named(found: Diagnosis | None) -> tuple[Also, ...]:
    return () if found is None or found.cause is None else (Also(found.cause, found.line or 0),)


def _explain(attempt: Attempt) -> Diagnosis:
    counted = [finding for finding in attempt.findings if not attempt.ready or (finding.after_ready and finding.signature.cause in _AFTER_READY)]
    first = _first(counted, attempt)
    if first is None:
        return _without_words(attempt)
    cause = _cause_of(first, attempt)
    numbers = numbers_of(first, attempt)
    fixes, misleading = remedies(cause, first.signature, numbers, attempt)
    others = {
        Also(name, finding.line): None for finding in counted if finding.sure and (name := _cause_of(finding, attempt)) != cause and finding.line > first.line
    }
    firsts = {also.cause: also for also in reversed(others)}
    return Diagnosis(
        cause=cause,
        stage=_STAGE_OF.get(cause) or _stage(first, attempt),
        confidence="certain" if first.sure and (first.signature.cause != "oom" or _stage(first, attempt) is not None) else "likely",
        line=first.line,
        text=first.text,
        numbers=numbers,
        fixes=fixes,
        misleading=misleading,
        also=tuple(sorted(firsts.values(), key=lambda also: also.line)),
        vllm_version=attempt.version,
        ready=attempt.ready,
    )


def _first(findings: list[Finding], attempt: Attempt) -> Finding | None:
    """The first sure one in time; else the first that is likely; else what vLLM warned of before it stopped; else the first weak one. Of fields rejected
    together the one that was given: vLLM derives one from the other, and names both.
    """
    if any(each.signature.joined and each.rejected in attempt.settings for each in findings):
        findings = [each for each in findings if not each.signature.joined or each.rejected in attempt.settings]
    ranked = [(rank, finding) for finding in findings if (rank := _rank(finding, attempt)) is not None]
    return min(ranked, key=lambda each: (each[0], each[1].line))[1] if ranked else None


def _rank(finding: Finding, attempt: Attempt) -> int | None:
    """How little a line proves, from 0; None where it proves nothing: a warning of a start that went on, an error after one that is not known."""
    if finding.warned:
        return 2 if finding.signature.sure and (attempt.failed or attempt.exception) else None
    if finding.signature.weak:
        return None if attempt.exception and attempt.exception[0] < finding.line else 3
    return 0 if finding.sure else 1


def _cause_of(finding: Finding, attempt: Attempt) -> str:
    cause = finding.signature.cause
    if cause != "oom":
        return cause
    stage = _stage(finding, attempt)
    if stage is not None:
        return _OOM_AT[stage]
    # Without any trace of the stage: torch's allocator speaks of a program that has begun to load, the driver of one that has not.
    return "oom_at_load" if finding.signature.id == "torch_oom" else "oom_at_context"


def _stage(finding: Finding, attempt: Attempt) -> Stage | None:
    """How far the start had come: by the frames before the line, by graphs that exist already, by the frames after it, by what was logged."""
    if finding.after_ready:
        return "runtime"
    if finding.stage is not None:
        return finding.stage
    if "private pools" in finding.text:
        return "sampler_warmup"
    return attempt.later_stage or attempt.reached


def _without_words(attempt: Attempt) -> Diagnosis:
    """A start whose cause was not printed, or that did not fail."""
    nothing = Diagnosis(None, None, "likely", None, None, {}, (), (), (), attempt.version, ready=attempt.ready, unknown=attempt.exception)
    if attempt.ready or attempt.failed is None:
        return nothing
    if attempt.pool is not None and not attempt.sized and (attempt.exception is None or attempt.checked):
        line, text, pool_gib = attempt.pool
        cause = "gate_one_sequence" if pool_gib > 0 else "gate_cache_blocks"
        numbers = {"pool_gib": pool_gib}
        fixes, misleading = remedies(cause, None, numbers, attempt)
        return Diagnosis(cause, "kv_config", "likely", line, text, numbers, fixes, misleading, (), attempt.version)
    if attempt.exception is not None and attempt.exception[1] != attempt.failed[1] and "Engine core initialization failed" not in attempt.exception[1]:
        return nothing
    line, text = attempt.failed
    more = Fix("more_log", None, "none", None)
    return Diagnosis("log_incomplete", None, "likely", line, text, {}, (more,), (), (), attempt.version)
