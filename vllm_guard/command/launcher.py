"""A command line taken apart: what stands in front, which of vLLM's ways to start an engine it is, and vLLM's own words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from vllm_guard.facts import Warn

# serve: `vllm serve`. module: its options without a model in front. engine: options of engines and others of its own. foreign: nobody knows.
Grammar = Literal["serve", "module", "engine", "foreign"]
# vLLM's UsageContext, which decides its batch defaults (engine/arg_utils.py get_batch_defaults); `other` is any that has no row there, `none` no engine.
Usage = Literal["api_server", "llm_class", "other", "unknown", "none"]


class Entry(NamedTuple):
    """A way to start an engine: how its words are read, and the usage context that vLLM gets from it."""

    grammar: Grammar
    usage: Usage


SERVE: Final = Entry("serve", "api_server")
FOREIGN: Final = Entry("foreign", "unknown")
NO_ENGINE: Final = Entry("foreign", "none")
_MODULE: Final = Entry("module", "api_server")
_ENGINE: Final = Entry("engine", "other")
_OFFLINE: Final = Entry("engine", "llm_class")
_ASYNC: Final = Entry("engine", "api_server")

# The subcommands of vllm/entrypoints/cli up to 0.33.0; of `bench` it depends.
_SUBCOMMANDS: Final[Mapping[str, Entry]] = {
    "serve": SERVE,
    "run-batch": _ENGINE,
    **dict.fromkeys(("bench", "chat", "complete", "collect-env", "launch", "download-kernels", "preload", "snapshot"), NO_ENGINE),
}
_BENCHES: Final = ("latency", "throughput", "startup", "mm-processor")
_CLI_MODULES: Final = ("vllm.entrypoints.cli.main", "vllm.scripts")
_MODULES: Final[Mapping[str, Entry]] = {
    "vllm.entrypoints.openai.api_server": _MODULE,
    "vllm.entrypoints.launchers.api_server.entry": _MODULE,
    "vllm.entrypoints.api_server": _ENGINE,
    "vllm.entrypoints.openai.run_batch": _ENGINE,
    "vllm.entrypoints.launchers.run_batch": _ENGINE,
}
_MODULE_OPTION: Final = re.compile(r"-[bBdEiIOPqsSuvx]*m(vllm\..+)?")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# What these start may run on another host, or in a container that has another vLLM.
_ELSEWHERE: Final = frozenset(
    ("ssh", "kubectl", "oc", "docker", "podman", "nerdctl", "apptainer", "singularity", "srun", "sbatch", "salloc", "mpirun", "mpiexec", "ray")
)
_CHANGES_ENVIRONMENT: Final = frozenset(("sudo", "su", "runuser", "doas"))
_CHANGES_PATH: Final = frozenset(("uv", "uvx", "pipx", "conda", "mamba", "micromamba", "pixi", "poetry", "hatch", "pdm", "rye"))


@dataclass(frozen=True, slots=True)
class Launcher:
    """A command line taken apart: `prefix` stays as it is, `arguments` are vLLM's own.

    `program` is the place of vLLM's script, or of the interpreter that runs its module; `runs_script` tells which. `environment` is what `env` in front
    of it sets.
    """

    prefix: tuple[str, ...]
    arguments: tuple[str, ...]
    entry: Entry
    program: int | None = None
    runs_script: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    warnings: tuple[Warn, ...] = ()

    @property
    def finds_own_vllm(self) -> bool:
        """Whether something in front looks the program up in an environment of its own (`uv run`, `conda run`), where PATH does not tell which it is."""
        if self.program is None or "/" in self.prefix[self.program]:
            return False
        return any(_name(word) in _CHANGES_PATH for word in self.prefix[: self.program])


def split_launcher(words: Sequence[str]) -> Launcher:
    """The words of a command, at least one. Wrappers (`env A=b`, `nice`, `numactl ...`, `uv run`) are part of the prefix; total, nothing is looked up."""
    for at, word in enumerate(words):
        if _name(word) == "vllm" and (at == 0 or next(iter(words[at + 1 : at + 2]), None) in _SUBCOMMANDS):
            return _of_cli(words, at, at + 1, runs_script=True)
        module = _MODULE_OPTION.fullmatch(word) if at else None
        if module is None:
            continue
        start = at + 1 if module[1] else at + 2
        name = module[1] or words[start - 1] if start <= len(words) else ""
        if name in _CLI_MODULES:
            return _of_cli(words, _interpreter_before(words, at), start, runs_script=False)
        if name in _MODULES:
            return _launcher(words, _interpreter_before(words, at), start, _MODULES[name], runs_script=False)
    return _foreign(words)


def _of_cli(words: Sequence[str], program: int, start: int, *, runs_script: bool) -> Launcher:
    """`vllm SUBCOMMAND ...`: everything but the engines is passed on."""
    subcommand = words[start] if start < len(words) else ""
    if subcommand == "bench":
        return _launcher(words, program, start + 2, _bench(words[start + 1 :]), runs_script=runs_script)
    return _launcher(words, program, start + 1, _SUBCOMMANDS.get(subcommand, NO_ENGINE), runs_script=runs_script)


def _bench(words: Sequence[str]) -> Entry:
    """`vllm bench ...`: the ones that start an engine, as the LLM class does but for the asynchronous one (vllm/benchmarks, 0.32.0)."""
    if not words or words[0] not in _BENCHES:
        return NO_ENGINE
    if words[0] == "throughput" and not {"--backend=hf", "--backend=mii"}.isdisjoint((*words, *map("=".join, pairwise(words)))):
        return NO_ENGINE
    return _ASYNC if words[0] == "throughput" and "--async-engine" in words else _OFFLINE


def _launcher(words: Sequence[str], program: int, start: int, entry: Entry, *, runs_script: bool) -> Launcher:
    front = words[:program]
    environment, all_seen = _environment(front)
    warnings: tuple[Warn, ...] = ()
    elsewhere = _first_elsewhere(front)
    if entry != NO_ENGINE and elsewhere is not None:
        entry, warnings = NO_ENGINE, (_elsewhere(elsewhere),)
    elif entry != NO_ENGINE and not all_seen:
        text = "what stands in front of vLLM changes its environment: CUDA_VISIBLE_DEVICES and its like are taken from here"
        warnings = (Warn("environment_unseen", text),)
    return Launcher(tuple(words[:start]), tuple(words[start:]), entry, program, runs_script, MappingProxyType(environment), warnings)


def _foreign(words: Sequence[str]) -> Launcher:
    elsewhere = _first_elsewhere(list(takewhile(lambda word: not word.startswith("-"), words)))
    if elsewhere is not None:
        return Launcher(tuple(words), (), NO_ENGINE, warnings=(_elsewhere(elsewhere),))
    start = len(words) - tuple(reversed(words)).index("--") if "--" in words else 1
    return Launcher(tuple(words[:start]), tuple(words[start:]), FOREIGN)


def _first_elsewhere(words: Sequence[str]) -> str | None:
    return next((name for word in words if (name := _name(word)) in _ELSEWHERE), None)


def _elsewhere(name: str) -> Warn:
    return Warn("launcher_elsewhere", f"what {name} starts may run on another host or in a container: nothing was judged")


def _environment(front: Sequence[str]) -> tuple[dict[str, str], bool]:
    """What `env A=b ...` sets, and whether that is all that changes there."""
    environment: dict[str, str] = {}
    names = [_name(word) for word in front]
    all_seen = _CHANGES_ENVIRONMENT.isdisjoint(names)
    for at, name in enumerate(names):
        if name != "env":
            continue
        assignments = list(takewhile(bool, map(_ASSIGNMENT.fullmatch, front[at + 1 :])))
        environment.update((match[1], match[2]) for match in assignments if match)
        behind = front[at + 1 + len(assignments) :][:1]
        all_seen = all_seen and not (behind and behind[0].startswith("-"))
    return environment, all_seen


def _interpreter_before(words: Sequence[str], option: int) -> int:
    """The place of the interpreter whose `-m` stands at `option`: the nearest word before it that looks like one, else the one right before."""
    return next((at for at in range(option - 1, -1, -1) if _name(words[at]).startswith(("python", "pypy"))), option - 1)


def _name(word: str) -> str:
    return word.rpartition("/")[2]
