"""What one start in a log said: gathered line by line, with bounded memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from vllm_guard.explain.clean import Piece
from vllm_guard.explain.findings import LIVED_WITH, Finding, Findings
from vllm_guard.explain.signatures import Signature
from vllm_guard.explain.stages import READY, Stage, checks_cache, is_inside_others, stage_after, stage_of_frame
from vllm_guard.explain.wrap import LONGEST_TEXT, Lines, lines_with

_MOST_PROCESSES: Final = 256
_BEGINS: Final = re.compile(
    r"vLLM API server version|[█▀▄] +version \d|^(?:\$|\+) .*\bvllm(?:-guard)? serve |^(?:\$|\+) .*\bvllm\b.* serve |Scheduled restart job, restart counter"
)
# Of several API servers each says its version; they are one start.
_ANOTHER_SERVER: Final = re.compile(r"\(api_?server_[1-9]\d* ", re.IGNORECASE)
# Of a server that works nothing is imported any more.
_NEW_PROCESS: Final = "Automatically detected platform"
_BEGUN: Final = re.compile(r"Initializing an? (?:V[01] )?LLM engine|Resolved architecture|Traceback \(most recent|rror")
_VERSION: Final = re.compile(r"(?:vLLM API server version|[█▀▄] +version|LLM engine \(v) ?v?(\d+\.\d+[\w.+]*)")
_FAILED: Final = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|EngineCore hit an exception|WorkerProc failed to start|WorkerProc initialization failed"
    r"|Engine process failed to start|Exception in worker|died unexpectedly|EngineDeadError|Worker failed with error"
)
_EXCEPTION: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception)\b(?::|$)")
_TRACEBACK: Final = "Traceback (most recent call last)"
_IGNORED: Final = "Exception ignored in"
# An exception before these belongs to the next one.
_CHAINED: Final = re.compile(r"During handling of the above exception|direct cause of the following exception")
_WEIGHTS: Final = re.compile(r"(?:Model loading took|Loading model weights took) (\d{1,9}(?:\.\d+)?) G")
_POOL: Final = re.compile(r"Available KV cache memory: (-?\d{1,9}(?:\.\d+)?) GiB")
_SIZED: Final = re.compile(r"KV cache size: ")
_CPU: Final = re.compile(r"cpu_worker|CPU backend|CPU memory|cpu_model_runner|VLLM_CPU_KVCACHE_SPACE|Available memory on node|CPU KV cache")
_HOLDER: Final = re.compile(r"Process (\d+) has (\d{1,9}(?:\.\d+)?) GiB memory in use|orphan|already (?:running|in use) .* GPU")
_SETTING: Final = re.compile(
    r"(?:'|--|\b)(gpu[_-]memory[_-]utilization|max[_-]model[_-]len|max[_-]num[_-]seqs|max[_-]num[_-]batched[_-]tokens|kv[_-]cache[_-]memory[_-]bytes"
    r"|num[_-]gpu[_-]blocks[_-]override|tensor[_-]parallel[_-]size|pipeline[_-]parallel[_-]size|enforce[_-]eager|cpu[_-]offload[_-]gb)'?(?::\s*|=|\s+)(True|\d[\d.]{0,15}[kKmMgG]?)\b"
)


@dataclass(slots=True)
class Attempt:
    """One start. Grows while its lines come; all that grows is bounded."""

    version: str | None = None
    ready: bool = False
    cpu: bool = False
    begun: bool = False
    failed: tuple[int, str] | None = None
    exception: tuple[int, str] | None = None
    exceptions: int = 0
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
    _findings: Findings = field(default_factory=Findings)
    _lines: Lines | None = None
    _ignored: set[str] = field(default_factory=set)

    @property
    def findings(self) -> list[Finding]:
        """The lines that signatures match, in their order."""
        return self._findings.kept

    def begins_again(self, piece: Piece) -> bool:
        """Whether this line begins another start than this one."""
        if self.ready and _NEW_PROCESS in piece.text:
            return True
        return self.begun and (_BEGINS.search(piece.words) or _BEGINS.search(piece.text)) is not None and not _ANOTHER_SERVER.match(piece.process)

    def take(self, number: int, piece: Piece, signatures: tuple[Signature, ...]) -> None:
        """One more line of this start."""
        if self._is_ignored(piece.process, piece.words):
            return
        lines = self._lines = lines_with(self._lines, number, piece)
        self._progress(number, piece.text[:LONGEST_TEXT], piece.words[:LONGEST_TEXT], fails=not piece.informs and not piece.warns)
        for text in lines.joined or (piece.text[:LONGEST_TEXT],):
            self._frame(lines.process, text)
        self._findings.take(lines, piece, self._frames.get(lines.process), signatures, ready=self.ready)

    def _is_ignored(self, process: str, words: str) -> bool:
        """Whether this line belongs to an exception that Python ignored, in a destructor."""
        if words.startswith(_IGNORED) and len(self._ignored) < _MOST_PROCESSES:
            self._ignored.add(process)
        if process not in self._ignored:
            return False
        if _EXCEPTION.match(words):
            self._ignored.discard(process)
        return True

    def _progress(self, number: int, text: str, words: str, *, fails: bool) -> None:
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
        if self.failed is None and fails and _FAILED.search(text):
            self.failed = (number, words)
        if fails and _EXCEPTION.match(words) and not LIVED_WITH.search(words):
            self.exception = self.exception or (number, words)
            self.exceptions += 1
        elif self.exceptions == 1 and _CHAINED.search(words):
            self.exception, self.exceptions = None, 0
        for name, value in _SETTING.findall(text):
            self.settings.setdefault(name.replace("-", "_"), value)

    def _frame(self, process: str, text: str) -> None:
        if _TRACEBACK in text:
            self._frames.pop(process, None)
        stage = stage_of_frame(text)
        if stage is None:
            return
        known = self._frames.get(process)
        if (process in self._frames or len(self._frames) < _MOST_PROCESSES) and not (known and is_inside_others(text)):
            self._frames[process] = stage
        if self.findings and self.later_stage is None:
            self.later_stage = stage
