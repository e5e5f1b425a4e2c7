"""On which host each block of the pages is run, or which other test reads it from its page. Every block of every page stands in one table here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from doc_pages import blocks
from guard_process import BUSY, NEIGHBOUR
from standin_driver import Card, Listed
from test_golden import BEGUN, ENGINE, FREE, FULL, LAST, MODEL_FILES, SHARED, card
from test_plan_pool import QWEN_HALF

_LOGS: Final = Path(__file__).parent / "explain" / "logs"
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Scene:
    """A host for the commands of one block: its cards, its vLLM, and in the working folder these files. `programs` are stand-ins on PATH: shell scripts.

    Words in capitals in a command (MODEL, NAME) are taken as they are: names of nothing.
    """

    cards: tuple[Card, ...] = (Card(),)
    init_error: int | None = None
    driver: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartOf:
    """The block stands, word for word, in what this command prints."""

    command: str


@dataclass(frozen=True, slots=True)
class ReadBy:
    """Another test reads the block from its page."""

    test: str


@dataclass(frozen=True, slots=True)
class NotRun:
    """Nothing runs it; why."""

    because: str


Cover = Scene | PartOf | ReadBy | NotRun


def log(name: str, called: str = "vllm.log") -> Mapping[str, str]:
    """A log that the real vLLM wrote."""
    return {called: (_LOGS / f"{name}.log").read_text(encoding="utf-8")}


def snapshot(gpu: Mapping[str, object], **host: object) -> str:
    """A host with this card."""
    memory = {"memory_total_bytes": 64 << 30, "memory_available_bytes": 60 << 30}
    return json.dumps({"schema_version": 1, "vllm_version": "0.32.0", "vllm_device": "cuda", "environment": {}, "host": memory | host, "gpus": [gpu]})


LLAMA: Final = {name.replace("llama/", "Llama-3.1-8B-Instruct/"): text for name, text in MODEL_FILES.items() if name.startswith("llama/")}
QWEN: Final = {
    "Qwen2.5-0.5B-Instruct/config.json": json.dumps(QWEN_HALF),
    "Qwen2.5-0.5B-Instruct/model.safetensors.index.json": json.dumps({"metadata": {"total_size": 943 * _MIB}, "weight_map": {}}),
}
TURING: Final = {"card.json": blocks("docs/how-it-decides.md")["{"].text, **QWEN}
GPU_LOG: Final = {"vllm.log": "\n".join((BEGUN, f"{ENGINE} {FREE}", LAST))}
PRINTERS: Final = dict.fromkeys(("docker", "kubectl", "journalctl"), "cat failed.log")
HIDDEN: Final = card(0, 322)
TAKEN: Final = Card(free_mib=300, processes=(Listed(NEIGHBOUR, 80_000),))
ON_SHARED: Final = Scene(files={"host.json": snapshot(SHARED), **LLAMA})
POOL_OF_16_MIB: Final = "--gpu-memory-utilization 0.8 --kv-cache-memory-bytes 16777216 --block-size 16"
CHECK_QWEN: Final = "vllm-guard check ./Qwen2.5-0.5B-Instruct"
README, CONTRIBUTING = "README.md", "CONTRIBUTING.md"
DECIDES, TROUBLE, EXPLAIN = "docs/how-it-decides.md", "docs/troubleshooting.md", "docs/explain.md"

COVERED: Final[Mapping[tuple[str, str], Cover]] = {
    (README, "vllm serve ./tiny --max-model-len 256 --enforce-eager"): ReadBy("test_first_screen.py"),
    (README, "vllm-guard serve ./tiny --max-model-len 256 --enforce-eager"): ReadBy("test_first_screen.py"),
    (README, "CUDA_VISIBLE_DEVICES=1 vllm-guard serve Qwen/Qwen2.5-7B-Instruct"): PartOf("vllm-guard demo"),
    (README, ". ~/vllm/bin/activate"): ReadBy("test_newcomer.py"),
    (README, "vllm-guard serve MODEL --max-model-len 32k"): Scene(cards=(BUSY,)),
    (README, "make demo"): ReadBy("test_newcomer.py"),
    (README, "vllm-guard check MODEL --tensor-parallel-size 1"): Scene(cards=(BUSY,)),
    (README, "vllm-guard run -- python3 -m vllm.entrypoints.openai.api_server --model MODEL"): Scene(cards=(BUSY,), programs={"python3": "echo started $*"}),
    (README, "mkdir -p ~/bin"): Scene(cards=(BUSY,)),
    (README, "vllm-guard estimate ./Llama-3.1-8B-Instruct --memory 24GiB --max-model-len 32K --concurrency 8"): Scene(files=LLAMA),
    (README, "vllm-guard explain vllm.log"): Scene(files=GPU_LOG),
    (README, "vllm-guard gpus"): Scene(cards=(BUSY,)),
    (README, "vllm-guard snapshot > host.json"): Scene(cards=(BUSY,)),
    (README, "vllm-guard serve MODEL --guard-wait 120"): Scene(),
    (README, "vllm-guard: waiting, 110 s left: GPU 0 h"): ReadBy("test_readme.py"),
    (DECIDES, "usable      = free - claimed - start ove"): ReadBy("test_how_it_decides.py"),
    (DECIDES, "{"): ReadBy("test_how_it_decides.py"),
    (DECIDES, f"{CHECK_QWEN} --guard-snapshot=card.json --guard-start-overhead=0"): Scene(files=TURING),
    (DECIDES, "usable      = 10106.0 free - 0.0 claimed"): ReadBy("test_how_it_decides.py"),
    (DECIDES, f"{CHECK_QWEN} {POOL_OF_16_MIB} --max-model-len 2048 --guard-snapshot=card.json --guard-start-overhead=0"): Scene(files=TURING),
    (TROUBLE, "vllm-guard explain vllm.log"): Scene(files=GPU_LOG),
    (TROUBLE, "vllm-guard explain tiny-budget.log"): Scene(files=log("gate2_0", "tiny-budget.log")),
    (TROUBLE, "vllm-guard estimate ./Llama-3.1-8B-Instruct --memory 16GiB --max-model-len 8K"): Scene(files=LLAMA),
    (TROUBLE, "vllm-guard check ./Llama-3.1-8B-Instruct --gpu-memory-utilization 0.3 --guard-snapshot=host.json"): ON_SHARED,
    (TROUBLE, "vllm-guard serve MODEL"): Scene(cards=(TAKEN,)),
    (TROUBLE, "vllm-guard serve MODEL #2"): Scene(driver=False),
    (TROUBLE, "vllm-guard check MODEL"): Scene(init_error=18),
    (TROUBLE, "vllm-guard check MODEL --tensor-parallel-size 2"): Scene(),
    (TROUBLE, "vllm-guard serve MODEL --guard-vllm=/opt/vllm/bin/vllm"): Scene(),
    (TROUBLE, "vllm-guard serve MODEL --guard-margin=much"): Scene(),
    (TROUBLE, "VLLM_GUARD_MARGN=2GiB vllm-guard serve MODEL"): Scene(),
    (TROUBLE, "vllm-guard check MODEL --guard-snapshot=container.json"): Scene(files={"container.json": snapshot(HIDDEN, pid_namespace_initial=False)}),
    (TROUBLE, "vllm-guard check MODEL --guard-snapshot=host.json"): Scene(files={"host.json": snapshot(FULL)}),
    (TROUBLE, "vllm-guard serve MODEL --guard-wait 4"): Scene(cards=(BUSY,)),
    (TROUBLE, "vllm-guard serve MODEL --guard-min-free=90GiB --guard-wait 4"): Scene(cards=(BUSY,)),
    (TROUBLE, "vllm-guard check ./Llama-3.1-8B-Instruct --max-model-len 8K --guard-snapshot=host.json"): ON_SHARED,
    (TROUBLE, "vllm-guard check ./Llama-3.1-8B-Instruct --max-model-len 8K --guard-min-kv-cache=40GiB --guard-snapshot=host.json"): ON_SHARED,
    (TROUBLE, "VLLM_GUARD_MODE=off vllm-guard serve MODEL"): Scene(cards=(BUSY,)),
    (TROUBLE, "vllm-guard snapshot > host.json"): Scene(cards=(BUSY,)),
    (EXPLAIN, "vllm-guard explain vllm.log"): Scene(files=log("gate3_16m")),
    (EXPLAIN, "vllm serve MODEL 2>&1 | tee vllm.log"): Scene(files=log("gate3_16m", "failed.log"), programs=PRINTERS),
    (EXPLAIN, "[Service]"): ReadBy("test_explain_journal.py"),
    ("docs/measurements.md", "make gpu-check"): NotRun("needs an NVIDIA GPU; tests/test_gpu_check.py runs the script on the stand-in"),
    (CONTRIBUTING, "make demo"): ReadBy("test_newcomer.py"),
    (CONTRIBUTING, ".venv/bin/pytest tests/test_units.py"): ReadBy("test_newcomer.py"),
    (CONTRIBUTING, "make test-slow"): NotRun("it is what runs all the others, and would run itself"),
    (CONTRIBUTING, ".venv/bin/pytest --update-golden tests/test_golden.py"): ReadBy("test_newcomer.py"),
    (CONTRIBUTING, ".venv/bin/python -m build"): ReadBy("test_packaging.py"),
}
ELSEWHERE: Final[Mapping[str, str]] = {
    "docs/systemd.md": "test_systemd_units.py",
    "docs/containers.md": "test_real_image.py",
    "docs/kubernetes.md": "test_kubernetes.py",
}
