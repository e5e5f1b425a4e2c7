"""What one start in a log said: gathered line by line, with bounded memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from vllm_guard.explain.clean import Piece
from vllm_guard.explain.signatures import Signature
from vllm_guard.explain.stages import READY, Stage, checks_cache, stage_after, stage_of_frame

_MOST_FINDINGS: Final = 64
_MOST_PROCESSES: Final = 256
_LONGEST_TEXT: Final = 2000
BEGINS: Final = re.compile(r"vLLM API server version|[█▀▄] +version \d|^\$ .*\bvllm\b.* serve ")
_BEGUN: Final = re.compile(r"Initializing a V[01] LLM engine|Resolved architecture|Traceback \(most recent|rror")
_VERSION: Final = re.compile(r"(?:vLLM API server version|[█▀▄] +version|LLM engine \(v) ?v?(\d+\.\d+[\w.+]*)")
_FAILED: Final = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|EngineCore hit an exception|WorkerProc failed to start|WorkerProc initialization failed"
    r"|Engine process failed to start|Exception in worker|died unexpectedly|EngineDeadError|Worker failed with error"
)
_EXCEPTION: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception)\b(?::|$)")
_CODE: Final = re.compile(r"(?:raise|except|assert|return|if|with|#)(?!\w)")
_LEVEL: Final = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d")
_TRACEBACK: Final = "Traceback (most recent call last)"
_WEIGHTS: Final = re.compile(r"(?:Model loading took|Loading model weights took) (\d+(?:\.\d+)?) G")
_POOL: Final = re.compile(r"Available KV cache memory: (-?\d+(?:\.\d+)?) GiB")
_SIZED: Final = re.compile(r"KV cache size: ")
_CPU: Final = re.compile(r"cpu_worker|CPU backend|CPU memory|cpu_model_runner|VLLM_CPU_KVCACHE_SPACE|Available memory on node|CPU KV cache")
_HOLDER: Final = re.compile(r"Process (\d+) has (\d+(?:\.\d+)?) GiB memory in use|orphan|already (?:running|in use) .* GPU")
_SETTING: Final = re.compile(
    r"(?:'|--|\b)(gpu[_-]memory[_-]utilization|max[_-]model[_-]len|max[_-]num[_-]seqs|max[_-]num[_-]batched[_-]tokens|kv[_-]cache[_-]memory[_-]bytes"
    r"|num[_-]gpu[_-]blocks[_-]override|tensor[_-]parallel[_-]size|pipeline[_-]parallel[_-]size|enforce[_-]eager|cpu[_-]offload[_-]gb)'?(?::\s*|=|\s+)(True|\d[\d.]*[kKmMgG]?)\b"
)

# The fields of vLLM's configuration that a flag of the same name sets.
_FIELDS: Final = frozenset(
    ("gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "kv_cache_memory_bytes", "block_size", "tensor_parallel_size")
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

    @property
    def field(self) -> str:
        """The field of vLLM's configuration that was rejected; empty for other findings."""
        return self.groups.get("flag", "").removeprefix("--").replace("-", "_") if self.signature.joined else ""


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

    def begins_again(self, text: str) -> bool:
        """Whether this line begins another start than this one."""
        return self.begun and BEGINS.search(text) is not None

    def take(self, number: int, piece: Piece, signatures: tuple[Signature, ...]) -> None:
        """One more line of this start."""
        text = piece.text[:_LONGEST_TEXT]
        words = piece.words[:_LONGEST_TEXT]
        self._progress(number, piece, text, words)
        if not _CODE.match(words):
            level = _LEVEL.search(text)
            informs = level is not None and level[1] in ("INFO", "DEBUG")
            found = _first_match((words, text), signatures, informs=informs)
            if found is not None and len(self.findings) < _MOST_FINDINGS:
                self.findings.append(self._finding(number, piece.process, words, *found))
        if len(self._before) < _MOST_PROCESSES:
            self._before[piece.process] = words

    def _finding(self, number: int, process: str, words: str, signature: Signature, match: re.Match[str]) -> Finding:
        before = self._before.get(process, "")
        text = f"{before.strip()} {words}" if signature.joined and before else words
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        if signature.joined and (field_name := before.strip()) in _FIELDS:
            groups["flag"] = f"--{field_name.replace('_', '-')}"
        return Finding(signature, number, text, groups, process, self._frames.get(process), self.ready)

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


def _first_match(texts: tuple[str, ...], signatures: tuple[Signature, ...], *, informs: bool) -> tuple[Signature, re.Match[str]] | None:
    """The first row that matches the line's words, or the line with its prefixes."""
    for signature in signatures:
        if informs and not signature.info:
            continue
        for text in texts:
            match = signature.pattern.search(text)
            if match is not None:
                return signature, match
    return None
