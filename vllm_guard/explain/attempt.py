"""What one start in a log said: gathered line by line, with bounded memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

from vllm_guard.explain.clean import Piece
from vllm_guard.explain.scan import WRAPPED_BYTES
from vllm_guard.explain.signatures import Signature
from vllm_guard.explain.stages import READY, Stage, checks_cache, stage_after, stage_of_frame

_MOST_PROCESSES: Final = 256
_LONGEST_TEXT: Final = 4000
_MOST_JOINED: Final = 8
_BEGINS: Final = re.compile(
    r"vLLM API server version|[█▀▄] +version \d|^(?:\$|\+) .*\bvllm(?:-guard)? serve |^(?:\$|\+) .*\bvllm\b.* serve |Scheduled restart job, restart counter"
)
# Of several API servers each says its version; they are one start.
_ANOTHER_SERVER: Final = re.compile(r"\(api_?server_[1-9]\d* ", re.IGNORECASE)
# What begins a line of its own, and goes on with none before it.
_ANEW: Final = re.compile(
    r"[A-Z][\w.]*(?:Error|Exception|Interrupt)\b|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|Traceback|File \"|[\[({|] *[A-Za-z]+[\w-]*[ \])]|\d{4}-|\$ "
)
_BEGUN: Final = re.compile(r"Initializing a V[01] LLM engine|Resolved architecture|Traceback \(most recent|rror")
_VERSION: Final = re.compile(r"(?:vLLM API server version|[█▀▄] +version|LLM engine \(v) ?v?(\d+\.\d+[\w.+]*)")
_FAILED: Final = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|EngineCore hit an exception|WorkerProc failed to start|WorkerProc initialization failed"
    r"|Engine process failed to start|Exception in worker|died unexpectedly|EngineDeadError|Worker failed with error"
)
_EXCEPTION: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception)\b(?::|$)")
_CODE: Final = re.compile(r"(?:raise|except|assert|return|if|with|#)(?!\w)")
_TRACEBACK: Final = "Traceback (most recent call last)"
_WEIGHTS: Final = re.compile(r"(?:Model loading took|Loading model weights took) (\d{1,9}(?:\.\d+)?) G")
_POOL: Final = re.compile(r"Available KV cache memory: (-?\d{1,9}(?:\.\d+)?) GiB")
_SIZED: Final = re.compile(r"KV cache size: ")
_CPU: Final = re.compile(r"cpu_worker|CPU backend|CPU memory|cpu_model_runner|VLLM_CPU_KVCACHE_SPACE|Available memory on node|CPU KV cache")
_HOLDER: Final = re.compile(r"Process (\d+) has (\d{1,9}(?:\.\d+)?) GiB memory in use|orphan|already (?:running|in use) .* GPU")
_SETTING: Final = re.compile(
    r"(?:'|--|\b)(gpu[_-]memory[_-]utilization|max[_-]model[_-]len|max[_-]num[_-]seqs|max[_-]num[_-]batched[_-]tokens|kv[_-]cache[_-]memory[_-]bytes"
    r"|num[_-]gpu[_-]blocks[_-]override|tensor[_-]parallel[_-]size|pipeline[_-]parallel[_-]size|enforce[_-]eager|cpu[_-]offload[_-]gb)'?(?::\s*|=|\s+)(True|\d[\d.]{0,15}[kKmMgG]?)\b"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A line that a signature matched; `stage` is how far its process had come, `text` what the line says without prefixes."""

    signature: Signature
    line: int
    text: str
    groups: dict[str, str]
    process: str
    stage: Stage | None
    after_ready: bool


@dataclass(frozen=True, slots=True)
class _Wrapped:
    """Adjacent lines that may be one: numbers of the first and the last, what they say joined in either way, and the finding in them."""

    first: int
    last: int
    process: str
    texts: tuple[str, ...]
    kept: int | None
    matched: bool


@dataclass(slots=True)
class Attempt:
    """One start. Grows while its lines come; all that grows is bounded."""

    first_line: int
    version: str | None = None
    ready: bool = False
    cpu: bool = False
    begun: bool = False
    findings: list[Finding] = field(default_factory=list)
    failed: tuple[int, str] | None = None
    exception: tuple[int, str] | None = None
    reached: Stage | None = None
    later_stage: Stage | None = None
    weights_gib: float | None = None
    pool: tuple[int, str, float] | None = None
    sized: bool = False
    checked: bool = False
    holder_gib: float | None = None
    holder_named: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    _frames: dict[str, Stage | None] = field(default_factory=dict)
    _before: dict[str, str] = field(default_factory=dict)
    _kinds: set[tuple[str, Stage | None, bool]] = field(default_factory=set)
    _wrapped: _Wrapped | None = None

    def begins_again(self, piece: Piece) -> bool:
        """Whether this line begins another start than this one."""
        return self.begun and (_BEGINS.search(piece.words) or _BEGINS.search(piece.text)) is not None and not _ANOTHER_SERVER.match(piece.process)

    def take(self, number: int, piece: Piece, signatures: tuple[Signature, ...]) -> None:
        """One more line of this start."""
        text = piece.text[:_LONGEST_TEXT]
        words = piece.words[:_LONGEST_TEXT]
        self._progress(number, piece, text, words)
        if not _CODE.match(words):
            kept = None
            found = _first_match((text, words) if words != text else (text,), signatures, informs=piece.informs)
            if found is not None:
                kept = self._keep(self._finding(number, piece.process, words, *found))
            self._unwrapped(number, piece, words, signatures, kept, matched=found is not None)
        if piece.process in self._before or len(self._before) < _MOST_PROCESSES:
            self._before[piece.process] = words

    def _finding(self, number: int, process: str, words: str, signature: Signature, match: re.Match[str]) -> Finding:
        before = self._before.get(process, "")
        text = f"{before.strip()}: {words}" if signature.joined and before else words
        return Finding(signature, number, text, _groups(match), process, self._frames.get(process), self.ready)

    def _keep(self, finding: Finding) -> int | None:
        """Where it is kept: the first of its kind. None for another one."""
        kind = (finding.signature.id, finding.stage, finding.after_ready)
        if kind in self._kinds:
            return None
        self._kinds.add(kind)
        self.findings.append(finding)
        return len(self.findings) - 1

    def _unwrapped(self, number: int, piece: Piece, words: str, signatures: tuple[Signature, ...], kept: int | None, *, matched: bool) -> None:
        """A message that a terminal's width broke: what the lines say together, as vLLM's own words only."""
        wrapped = self._wrapped
        self._wrapped = None
        if piece.informs:
            return
        if wrapped is None or number > wrapped.last + 1 or piece.process or piece.words != piece.text or _ANEW.match(words):
            if len(piece.text) in WRAPPED_BYTES:
                self._wrapped = _Wrapped(number, number, piece.process, (words,), kept, matched)
            return
        texts = tuple(text for before in wrapped.texts for text in (f"{before} {words}", before + words))
        wrapped = replace(wrapped, last=number, texts=texts)
        if wrapped.kept is not None:
            self._complete(wrapped.kept, texts)
        elif not wrapped.matched and not matched:
            own = tuple(each for each in signatures if each.releases is not None)
            found = next((found for text in texts if (found := _first_match((text,), own, informs=False))), None)
            if found is not None:
                text = found[1].string
                finding = replace(self._finding(wrapped.first, wrapped.process, text, *found), text=text)
                wrapped = replace(wrapped, kept=self._keep(finding), matched=True)
        else:
            wrapped = replace(wrapped, matched=wrapped.matched or matched)
        if len(piece.text) in WRAPPED_BYTES and len(texts) < _MOST_JOINED:
            self._wrapped = wrapped

    def _complete(self, kept: int, texts: tuple[str, ...]) -> None:
        """The finding with the numbers that only the next line has."""
        finding = self.findings[kept]
        for text in texts:
            match = finding.signature.pattern.search(text)
            if match is not None and len(_groups(match)) > len(finding.groups):
                finding = replace(finding, text=text, groups=_groups(match))
        self.findings[kept] = finding

    def _progress(self, number: int, piece: Piece, text: str, words: str) -> None:
        """What this line tells about how far the start has come."""
        self.begun = self.begun or _BEGUN.search(text) is not None
        version, weights, pool, holder = _VERSION.search(text), _WEIGHTS.search(text), _POOL.search(text), _HOLDER.search(text)
        self.version = self.version or (version[1] if version else None)
        self.weights_gib = float(weights[1]) if weights else self.weights_gib
        if pool is not None:
            self.pool = (number, words, float(pool[1]))
        if holder is not None:
            self.holder_named = True
            self.holder_gib = float(holder[2]) if holder[2] else self.holder_gib
        self.sized = self.sized or _SIZED.search(text) is not None
        self.checked = self.checked or checks_cache(text)
        self.cpu = self.cpu or _CPU.search(text) is not None
        self.ready = self.ready or READY.search(text) is not None
        self.reached = stage_after(text) or self.reached
        self._frame(piece.process, text)
        if self.failed is None and _FAILED.search(text):
            self.failed = (number, words)
        if self.exception is None and _EXCEPTION.match(words):
            self.exception = (number, words)
        for name, value in _SETTING.findall(text):
            self.settings.setdefault(name.replace("-", "_"), value)

    def _frame(self, process: str, text: str) -> None:
        if _TRACEBACK in text:
            self._frames.pop(process, None)
        stage = stage_of_frame(text)
        if stage is None:
            return
        if len(self._frames) < _MOST_PROCESSES:
            self._frames[process] = stage
        if self.findings and self.later_stage is None:
            self.later_stage = stage


def _groups(match: re.Match[str]) -> dict[str, str]:
    return {name: value for name, value in match.groupdict().items() if value is not None}


def _first_match(texts: tuple[str, ...], signatures: tuple[Signature, ...], *, informs: bool) -> tuple[Signature, re.Match[str]] | None:
    """The first row that matches one of the texts: the first of them, which holds the others but for their beginnings, or another one."""
    for signature in signatures:
        if informs and not signature.info:
            continue
        for text in texts if signature.anchored else texts[:1]:
            match = signature.pattern.search(text)
            if match is not None:
                return signature, match
    return None
