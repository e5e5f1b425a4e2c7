"""The guard reads command lines as the real `vllm serve` parser does: thousands of random ones, made from the option table."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from vllm_guard.command.options import Option, read_options
from vllm_guard.command.parse import Command, config_path, parse
from vllm_guard.release import Release, parse_release

pytestmark = pytest.mark.slow

ORACLE = Path(__file__).with_name("real_parser_oracle.py")
LINES = 4000

# Choices of values, fields of config objects, what makes a LoRA; and a spare `--`, about which releases of Python differ.
ONLY_VLLM_KNOWS = re.compile(r"invalid choice|validation error|--lora-modules: |unrecognized arguments: --$")

# What people write most stands more often than the table's average option.
COMMON = (
    "--gpu-memory-utilization",
    "--max-model-len",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--tensor-parallel-size",
    "--kv-cache-memory-bytes",
    "--port",
    "--host",
    "--served-model-name",
    "--api-key",
    "--enforce-eager",
    "--no-enforce-eager",
    "--enable-prefix-caching",
    "--no-enable-chunked-prefill",
    "--quantization",
    "--seed",
    "-tp",
    "-pp",
    "-q",
    "-n",
    "--compilation-config",
    "--speculative-config",
    "--hf-overrides",
    "--limit-mm-per-prompt",
    "--cpu-offload-gb",
    "--hf-token",
    "--lora-modules",
    "--middleware",
    "--block-size",
)
TEXTS = {
    "int": ["0", "1", "8", "-1", "1_000", " 5 ", "+5", "2k", "1.5", "x", "", "None"],
    "float": ["0.5", ".5", "1", "5e-1", "nan", "1_0.5", "half", "", "None", "-1", "-0.5"],
    "human_int": ["2048", "2k", "2K", "1.5k", "1.5K", "1t", "1T", "auto", "-1", "1e3", "", "None", "2kb"],
    "human_int_or_auto": ["2048", "16k", "16K", "25.6k", "25.6K", "auto", "AUTO", "-1", "-2", "2g", " 8k ", "long"],
    "str": ["a", "a b", "", "None", "-1", "a=b", "x.y", "-", "{}", "*"],
    "json": ["{}", '{"a": 1}', '{"image": 2}', "[]", "null", "{bad", "3", "1k", '{"a": 80m}', "None", ""],
    "config": ["{}", '{"mode": 3}', '{"a": 80m}', "null", "{bad", "1k", "None"],
    "json_or_str": ["{}", '{"a": {"b": 1}}', "text", '{"a": 2k}', "{bad}", ""],
}
STEPS = [".a", ".a.b", ".mode", ".a+", ".num_speculative_tokens", "."]
YAMLS = [
    "gpu-memory-utilization: 0.4\nmax_model_len: 4096\n",
    "model: from-yaml\nmax-num-seqs: 7\nenforce-eager: true\nenable-chunked-prefill: false\n",
    "gpu-mem: 0.3\nserved_model_name: [one, two]\nmax-model-len: 16k\n",
    "speculative-config:\n  model: x\n  num_speculative_tokens: 3\nhf-overrides.a: 1\n",
    "lora-modules: ['a=/p/a']\nmax-model-len: 0x10\nhost: null\n",
    "max-num-seqs: null\n",
    "nope: 1\n",
    "- a\n- b\n",
    "api-key: []\nhf-overrides: {a: {b: 1}}\nport: 8_001\n",
    "model: &m y\nserved-model-name: *m\nhf-overrides.b: 2\nmiddleware: a.b\n",
    "",
]


class Lines:
    """Random command lines, always the same ones."""

    def __init__(self, options: dict[str, Option], folder: Path) -> None:
        self.random = random.Random(20260101)  # noqa: S311  # a seed, not a secret
        self.options = options
        self.configs = []
        for index, text in enumerate(YAMLS):
            self.configs.append(folder / f"{index}.yaml")
            self.configs[-1].write_text(text)

    def line(self) -> list[str]:
        """One command line after serve: mostly a model first, then options in all spellings."""
        words = ["m"] if self.random.random() < 0.75 else []
        for _ in range(self.random.randrange(5)):
            words += self._part()
        return words

    def _part(self) -> list[str]:
        chance = self.random.random()
        if chance < 0.72:
            return self._option()
        if chance < 0.80:
            return self._dotted()
        odd = [
            ["m2"],
            ["--"],
            ["--", "m"],
            ["-O3"],
            ["-O", "2"],
            ["-O=1"],
            ["--model", "X"],
            ["--model=X"],
            ["--nope"],
            ["--nope", "5"],
            ["-x=1"],
            ["--help"],
            ["-h"],
        ]
        config = str(self.random.choice(self.configs))
        return self.random.choice([*odd, *[["--config", config]] * 6, [f"--config={config}"]])

    def _option(self) -> list[str]:
        option = self.options[self.random.choice(COMMON)] if self.random.random() < 0.6 else self.random.choice(list(self.options.values()))
        name = self._spelled(option.name)
        if option.arity == "0":
            return [name] if self.random.random() < 0.95 else [name + "=true"]
        values = [self.random.choice(TEXTS[option.kind]) for _ in range(self.random.randint(1, 2) if option.arity == "+" else 1)]
        if self.random.random() < 0.3:
            return [f"{name}={values[0]}", *values[1:]]
        return [name, *values] if self.random.random() < 0.97 else [name]

    def _dotted(self) -> list[str]:
        option = self.options[self.random.choice(["--compilation-config", "--speculative-config", "--hf-overrides", "--additional-config", "-sc", "-cc"])]
        key, value = self._spelled(option.name) + self.random.choice(STEPS), self.random.choice(["1", "x", "1k", "[1]", '{"c": 2}', "true", "a,b", "-1", "--y"])
        return [f"{key}={value}"] if self.random.random() < 0.3 else [key, value]

    def _spelled(self, name: str) -> str:
        chance = self.random.random()
        if chance < 0.6 or len(name) < 5:
            return name
        if chance < 0.8:
            return name[:2] + "".join(self.random.choice("-_") if letter == "-" else letter for letter in name[2:])
        return name[: self.random.randint(4, len(name))]


@contextmanager
def _oracle(python: Path) -> Iterator[tuple[IO[str], IO[str]]]:
    with subprocess.Popen([python, ORACLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield process.stdin, process.stdout
        process.stdin.close()


def _same(ours: Any, theirs: Any) -> bool:
    """Equal; of a config object the fields that the command line names, numbers also as text because pydantic turns "1" into 1."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(_same(value, theirs.get(key)) for key, value in ours.items())
    if isinstance(ours, (list, tuple)) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return str(ours) == str(theirs)


def _disagreements(command: Command, values: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    """Where the guard is wrong about a command line that vLLM takes."""
    wrong = [f"rejected: {command.rejection}"] if command.rejection else []
    wrong += [f"unknown: {name}" for name in command.unknown]
    theirs = {**defaults, **values}
    model = theirs.pop("model_tag") or values.get("model")
    if model != command.model:
        wrong.append(f"model: {model!r}, not {command.model!r}")
    for dest in values.keys() - {"model_tag"} | command.given.keys():
        ours = command.given[dest].value if dest in command.given else "not given"
        if dest == "lora_modules" and isinstance(ours, tuple):  # vLLM makes objects of name=path, and nothing of an empty one
            ours = [dict(zip(("name", "path"), text.split("=", 1), strict=True)) for text in ours if text]
        if dest == "device_ids" and isinstance(ours, str):
            ours = [part.strip() for part in ours.split(",")]
        if not _same(ours, theirs[dest]):
            wrong.append(f"{dest}: {theirs[dest]!r}, not {ours!r}")
    return wrong


def _parsed(argv: list[str], release: Release | None) -> Command:
    path = config_path(argv, release)
    return parse(argv, release, Path(path).read_text() if path and Path(path).is_file() else None)


def test_the_guard_reads_command_lines_as_vllm_does(vllm_python: Path, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """What vLLM takes, the guard takes, with the same values; what vLLM rejects is seen too, except where only vLLM knows the choices and fields."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    unseen: list[str] = []
    with _oracle(vllm_python) as (ask, answers):
        first = json.loads(answers.readline())
        release = parse_release(first["version"])
        lines = Lines(dict(read_options(release).by_name), tmp_path)
        for _ in range(LINES):
            argv = lines.line()
            ask.write(json.dumps(argv) + "\n")
            ask.flush()
            answer = json.loads(answers.readline())
            command = _parsed(argv, release)
            if "set" in answer:
                counts["taken"] += 1
                wrong += [f"{argv}: {line}" for line in _disagreements(command, answer["set"], first["defaults"])]
            elif command.rejection or command.unknown or command.asks_help:
                counts["rejected, seen"] += 1
            else:
                counts["rejected, unseen"] += 1
                unseen.append(f"{argv}: {answer['rejected'].strip()}")
    for name, count in counts.items():
        record_property(name, count)
    assert wrong == []
    assert [line for line in unseen if not ONLY_VLLM_KNOWS.search(line)] == []
    assert counts["taken"] > LINES / 4
