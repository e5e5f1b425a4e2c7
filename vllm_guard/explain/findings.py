"""The lines of one start that signatures match, with bounded memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from vllm_guard.explain.clean import Piece
from vllm_guard.explain.signatures import Signature
from vllm_guard.explain.stages import Stage
from vllm_guard.explain.wrap import LONGEST_TEXT, Lines

_MOST_PROCESSES: Final = 256
_CODE: Final = re.compile(r"(?:raise|except|assert|return|if|with|#)(?!\w)")
# Said of what was lived with.
LIVED_WITH: Final = re.compile(r"[Rr]etrying\b|[Ww]ill retry|[Ff]all(?:ing|s)? ?back to\b|[Ff]alling back")
_NUMBER: Final = re.compile(r"-?\d[\d.,]*(?:e[+-]?\d*)?")


# The fields of vLLM's configuration that a flag of the same name sets.
_FIELDS: Final = frozenset(
    ("gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "kv_cache_memory_bytes", "block_size", "tensor_parallel_size")
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A line that a signature matched; `stage` is how far its process had come, `text` what the line says without prefixes.
    `warned`: vLLM only warned of it.
    """

    signature: Signature
    line: int
    text: str
    groups: dict[str, str]
    process: str
    stage: Stage | None
    after_ready: bool
    warned: bool = False

    @property
    def sure(self) -> bool:
        """Whether the line alone proves the cause."""
        return self.signature.sure and not self.warned

    @property
    def rejected(self) -> str:
        """The field of vLLM's configuration that was rejected; empty for other findings."""
        return self.groups.get("flag", "").removeprefix("--").replace("-", "_") if self.signature.joined else ""


@dataclass(slots=True)
class Findings:
    """The first finding of each kind: of a signature, at a stage."""

    kept: list[Finding] = field(default_factory=list)
    _kinds: set[tuple[str, str, Stage | None, bool, bool]] = field(default_factory=set)
    _before: dict[str, str] = field(default_factory=dict)
    _matched: bool = False
    _open: int | None = None

    def take(self, lines: Lines, piece: Piece, stage: Stage | None, signatures: tuple[Signature, ...], *, ready: bool) -> None:
        """One more line, which is the last of `lines`."""
        text, words = piece.text[:LONGEST_TEXT], piece.words[:LONGEST_TEXT]
        if not lines.joined:
            self._matched, self._open = False, None
        found = (
            None
            if _CODE.match(words) or LIVED_WITH.search(words)
            else _first_match((text, words) if words != text else (text,), signatures, informs=piece.informs)
        )
        if found is not None:
            signature, match = found
            before = self._before.get(lines.process, "") if signature.joined else ""
            said = words if signature.pattern.search(words) else text
            told = f"{before.strip()} {said}" if before else said
            groups = _groups(match) | _flag_of(before)
            kept = self._keep(Finding(signature, lines.last, told, groups, lines.process, stage, ready, piece.warns))
            self._open = kept if self._open is None else self._open
        if lines.joined and self._open is not None:
            self._complete(self._open, lines.joined, signatures)
        elif lines.joined and found is None and not self._matched:
            found = _own_match(lines.joined, signatures)
            if found is not None:
                signature, match = found
                self._open = self._keep(Finding(signature, lines.first, match.string, _groups(match), lines.process, stage, ready, piece.warns))
        self._matched = self._matched or found is not None
        if lines.process in self._before or len(self._before) < _MOST_PROCESSES:
            self._before[lines.process] = words

    def _keep(self, finding: Finding) -> int | None:
        """Where it is kept; None where it is another one of its kind."""
        kind = (finding.signature.id, finding.rejected, finding.stage, finding.after_ready, finding.warned)
        if kind in self._kinds:
            return None
        self._kinds.add(kind)
        self.kept.append(finding)
        return len(self.kept) - 1

    def _complete(self, kept: int, joined: tuple[str, ...], signatures: tuple[Signature, ...]) -> None:
        """The finding with what only the lines together tell."""
        finding = self.kept[kept]
        for text, signature in product(joined, (each for each in signatures if _alike(each.cause, finding.signature.cause))):
            match = signature.pattern.search(text)
            if match is not None and _told(_groups(match)) > _told(finding.groups):
                finding = replace(finding, signature=signature, text=text, groups=_groups(match))
        self.kept[kept] = finding


def _flag_of(before: str) -> dict[str, str]:
    """The flag of the field that pydantic names in the line before."""
    name = before.strip()
    return {"flag": f"--{name.replace('_', '-')}"} if name in _FIELDS else {}


def _groups(match: re.Match[str]) -> dict[str, str]:
    """What the pattern names, but for a number at the very end: the rest of it may have been cut off."""
    named = {name: value for name, value in match.groupdict().items() if value is not None}
    return {name: value for name, value in named.items() if match.end(name) < len(match.string) or not _NUMBER.fullmatch(value)}


def _alike(cause: str, other: str) -> bool:
    """Whether both are one cause, as far as a line tells: of what is out of memory the rest of the line may tell the stage."""
    return cause == other or (cause.startswith("oom") and other.startswith("oom"))


def _told(groups: Mapping[str, str]) -> tuple[int, int]:
    """How much these tell: more names, then longer values, for a number may have been broken."""
    return len(groups), sum(map(len, groups.values()))


def _own_match(joined: tuple[str, ...], signatures: tuple[Signature, ...]) -> tuple[Signature, re.Match[str]] | None:
    """The first row of vLLM's own words, which no two lines say by chance."""
    own = tuple(signature for signature in signatures if signature.releases is not None)
    return next((found for text in joined if (found := _first_match((text,), own, informs=False))), None)


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
