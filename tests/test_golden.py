"""What people read, whole: the texts in tests/golden. They are rewritten only by `pytest --update-golden`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from golden_files import Golden
from guard_process import Call, Ended

MIB: Final = 1 << 20
CONSOLE = {"VLLM_GUARD_LOG_FORMAT": "console"}

Json = dict[str, Any]


def process(pid: int, used_mib: int | None, command: str, **more: object) -> Json:
    """A process on a card."""
    used = None if used_mib is None else used_mib * MIB
    return {
        "pid": pid,
        "kind": "compute",
        "name": command.partition(" ")[0],
        "user": "alice",
        "command": command,
        "used_bytes": used,
        "age_seconds": 10_900,
        **more,
    }


TRAINING = process(48213, 32_480, "python train.py --lr")
SERVER = process(
    977,
    18_140,
    "VLLM::EngineCore",
    user="svc",
    age_seconds=790_000,
    vllm=True,
    server="pid 970 vllm serve Qwen/Qwen3-8B",
    container="docker 3f1c9a2e77d0",
    unit="vllm@qwen.service",
)
ORPHAN = process(61650, 74_512, "VLLM::EngineCore", user="svc", age_seconds=93_600, vllm=True, orphan=True, end_command="kill 61650")
UNTOLD = process(5, None, "Xorg", user=None, age_seconds=None)
HIDDEN = {"pid": 7, "kind": "compute", "name": "unknown", "used_bytes": 300 * MIB}


def card(index: int, free_mib: int, *processes: Json) -> Json:
    """An H100 of a snapshot."""
    return {
        "nvml_index": index,
        "uuid": f"GPU-3f1c9a2{index}-0000-4000-8000-000000000000",
        "name": "NVIDIA H100 80GB HBM3",
        "nvml_total_bytes": 81_559 * MIB,
        "driver_reserved_bytes": 551 * MIB,
        "free_bytes": free_mib * MIB,
        "processes": list(processes),
    }


IDLE = card(0, 81_008)
SHARED = card(0, 30_112, TRAINING, SERVER, UNTOLD)
FULL = card(0, 322, ORPHAN, process(2101, 4_810, "python notebook.py", user="bob", age_seconds=400), HIDDEN)


MODEL_FILES = {
    "model/config.json": json.dumps({"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 32_768, "torch_dtype": "bfloat16"}),
    "model/model.safetensors.index.json": json.dumps({"metadata": {"total_size": 400 << 30}, "weight_map": {}}),
    "llama/config.json": json.dumps(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "torch_dtype": "bfloat16",
        }
    ),
    "llama/model.safetensors.index.json": json.dumps({"metadata": {"total_size": 16_060_522_496}, "weight_map": {}}),
}


def report(gpus: Sequence[Json], *words: str, environ: Mapping[str, str] | None = None, visible: str | None = None, device: str = "cuda") -> Call:
    """`check` on a snapshot of these cards; with `cpu`, on one of 64 GiB of host memory."""
    node = {"node": 0, "total_bytes": 64 << 30, "available_bytes": 60 << 30}
    memory = {"memory_total_bytes": 64 << 30, "memory_available_bytes": 60 << 30, "nodes": [node]}
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    snapshot = {"schema_version": 1, "vllm_version": "0.32.0", "vllm_device": device, "environment": environment, "host": memory, "gpus": gpus}
    model = () if words[:1] in (("{folder}/model",), ("{folder}/llama",)) else ("org/model",)
    files = {"snapshot.json": json.dumps(snapshot), **MODEL_FILES}
    return Call(["check", *model, *words, "--guard-snapshot={folder}/snapshot.json"], {**CONSOLE, **(environ or {})}, files=files)


def estimate(*words: str) -> Call:
    """`estimate` of a llama; on a snapshot of two cards where it names one."""
    host = {"memory_total_bytes": 64 << 30, "memory_available_bytes": 60 << 30}
    snapshot = {"schema_version": 1, "vllm_version": "0.32.0", "vllm_device": "cuda", "environment": {}, "host": host, "gpus": [SHARED, card(1, 81_008)]}
    files = {"snapshot.json": json.dumps(snapshot), **MODEL_FILES}
    return Call(["estimate", *words], CONSOLE, files=files)


def serve(environ: Mapping[str, str | None], init_error: int | None = None) -> Call:
    """`serve` where it does not come to a verdict."""
    return Call(["serve", "org/model"], {**CONSOLE, **environ}, init_error=init_error)


BEGUN = "(APIServer pid=7) INFO 08-20 18:04:01 [api_server.py:1] vLLM API server version 0.32.0"
ENGINE = "(EngineCore pid=42) ERROR 08-20 18:04:22 [core.py:700]"
TOO_LONG = (
    "ValueError: To serve at least one request with the model's max seq len (65536), (4.0 GiB KV cache is needed, which is larger than the available KV "
    "cache memory (1.2 GiB). Based on the available memory, the estimated maximum model length is 19648. Try increasing `gpu_memory_utilization` or "
    "decreasing `max_model_len` when initializing the engine."
)
FREE = (
    "ValueError: Free memory on device cuda:0 (3.5/79.11 GiB) on startup is less than desired GPU memory utilization (0.92, 72.78 GiB). Decrease GPU memory "
    "utilization or reduce GPU memory used by other processes."
)
LAST = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def explain(*lines: str) -> Call:
    """`explain` of a log of these lines."""
    return Call(["explain", "{folder}/log"], CONSOLE, files={"log": "\n".join(lines)})


SCREENS = {
    "launch_unchanged": report([IDLE]),
    "launch_lowered": report([SHARED], "--max-model-len", "32k"),
    "launch_given_value_lowered": report([SHARED], "--gpu-memory-utilization=0.95"),
    "launch_two_cards": report([IDLE, card(1, 61_220, process(9, 19_000, "python train.py"))], "--tensor-parallel-size", "2"),
    "launch_capped_batch": report([IDLE], "{folder}/model", "-tp", "1", "--load-format", "dummy", environ={"VLLM_GUARD_BATCHED_TOKENS": "4096"}),
    "launch_known_model": report([SHARED], "{folder}/llama", "--max-model-len", "32k", "--max-num-seqs", "64"),
    "launch_uncertain": report([SHARED], "{folder}/llama", "--max-model-len", "64k"),
    "refused_context_too_long": report([SHARED], "{folder}/llama", "--gpu-memory-utilization=0.3"),
    "launch_rejected_by_vllm": report([IDLE], "--max-num-seqs", "many"),
    "launch_cpu_two_ranks": report([], "-tp", "2", device="cpu"),
    "refused_gpu_busy": report([FULL]),
    "refused_gpu_busy_other_card_free": report([FULL, card(1, 81_008)], visible="0"),
    "refused_given_value_kept": report([SHARED], "--gpu-memory-utilization=0.9", environ={"VLLM_GUARD_ON_EXPLICIT": "keep"}),
    "refused_model_too_large": report([IDLE], "{folder}/model"),
    "refused_below_min_free": report([SHARED], environ={"VLLM_GUARD_MIN_FREE": "40GiB"}),
    "refused_below_min_kv_cache": report([SHARED], environ={"VLLM_GUARD_MIN_KV_CACHE": "40GiB"}),
    "refused_below_min_utilization": report([SHARED], environ={"VLLM_GUARD_MIN_UTILIZATION": "0.5"}),
    "unmeasured_device_missing": report([IDLE], "-tp", "2"),
    "unmeasured_no_library": serve({"LD_LIBRARY_PATH": None}),
    "unmeasured_tolerated": serve({"VLLM_GUARD_UNMEASURED": "start"}, 9),
    "error_not_found": serve({"PATH": "/nowhere"}),
    "usage_bad_value": serve({"VLLM_GUARD_MARGIN": "1 GiB or so"}),
    "estimate": estimate("{folder}/llama", "--memory", "24GiB", "--memory=80GiB", "--max-model-len", "32K", "--concurrency", "8"),
    "estimate_this_host": estimate("{folder}/llama", "--guard-snapshot={folder}/snapshot.json"),
    "explain_busy_after_a_restart": explain(BEGUN, f"{ENGINE} {TOO_LONG}", LAST, BEGUN, f"{ENGINE} {FREE}", LAST),
    "explain_out_of_memory": explain(
        BEGUN,
        f"{ENGINE} Traceback (most recent call last):",
        f'{ENGINE}   File "/usr/lib/vllm/model_loader.py", line 14, in load_model',
        f"{ENGINE} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 270.00 MiB. GPU 0 has a total capacity of 15.47 GiB of which 115 MiB is free.",
        LAST,
    ),
    "explain_no_known_cause": explain(BEGUN, f"{ENGINE} acme.SpecialError: flux capacitor at https://me:pw@host/", LAST),
    "explain_ready": explain(BEGUN, "INFO:     Application startup complete."),
    "demo": Call(["demo"], wrapper=["sh", "-c", 'exec "$0" "$@" 2>&1']),
    "help": Call(["--help"]),
}


@pytest.mark.parametrize(("name", "call"), SCREENS.items(), ids=SCREENS)
def test_screens(ended: Ended, golden: Golden, name: str) -> None:
    """The verdict, what adds up to it, the fix and the exit code; the demo and the help."""
    text = f"{ended.stderr}[stdout]\n{ended.stdout.decode()}[exit status {ended.code}]\n"

    golden(name, re.sub(r"\bpid \d+\)", "pid PID)", text.replace(str(ended.folder), "/host")))
