"""`vllm-guard snapshot` and `vllm-guard demo`: a host as a file, and the whole thing without one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from guard_process import BUSY, NEIGHBOUR, Call, Ended, Host
from standin_driver import Card, Listed
from test_cli_check import BOOLEAN, PROCESS, TEXT, WHOLE, each, keys, one_of, or_null
from test_cli_serve import CONSOLE, closing

TELLING = "61.8033"

SNAPSHOT = keys(
    schema_version=one_of(1),
    taken_at=TEXT,
    vllm_version=or_null(TEXT),
    vllm_device=TEXT,
    environment=lambda value: isinstance(value, dict),
    host=keys(memory_total_bytes=WHOLE, memory_available_bytes=WHOLE, cgroup_limit_bytes=or_null(WHOLE), wsl=BOOLEAN, pid_namespace_initial=BOOLEAN),
    gpus=each(
        keys(
            nvml_index=WHOLE,
            uuid=TEXT,
            name=TEXT,
            compute_capability=or_null(TEXT),
            nvml_total_bytes=WHOLE,
            driver_reserved_bytes=or_null(WHOLE),
            free_bytes=WHOLE,
            processes=each(PROCESS),
        )
    ),
    claims=each(keys(uuid=TEXT, promised_bytes=WHOLE, used_bytes=WHOLE, pid=WHOLE)),
)


@pytest.fixture(name="stranger")
def _stranger() -> Iterator[int]:
    """A process of another user with a telling command line."""
    if os.geteuid() != 0:
        if Path("/proc/1").stat().st_uid == os.geteuid():
            pytest.skip("there is no process of another user")
        yield 1
        return
    with subprocess.Popen(["sleep", TELLING], user=65534) as process:
        yield process.pid
        process.terminate()


def test_the_snapshot_has_every_key(host: Host) -> None:
    """All cards of the host, whatever is visible; of the environment what decides, and only what was set."""
    host.cards(BUSY, Card(capability=None))
    environ = {"CUDA_VISIBLE_DEVICES": "1", "VLLM_USE_V2_MODEL_RUNNER": "0", "HF_TOKEN": "hf_4", "LC_ALL": "C", **CONSOLE}
    ended = host.run("snapshot", environ=environ)
    document = ended.document

    assert SNAPSHOT(document)
    assert (0, "", None) == (ended.code, ended.stderr, ended.report)
    assert {"CUDA_VISIBLE_DEVICES": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"} == document["environment"]
    assert ("0.32.0", "cuda", 2) == (document["vllm_version"], document["vllm_device"], len(document["gpus"]))
    assert ["9.0", None] == [gpu["compute_capability"] for gpu in document["gpus"]]
    assert NEIGHBOUR == document["gpus"][0]["processes"][0]["pid"]
    assert "hf_4" not in ended.stdout.decode()


def test_a_snapshot_can_be_shown_to_others(host: Host, stranger: int) -> None:
    """No user name or command line of somebody else, unless it is asked for; the caller's own are there."""
    host.cards(Card(processes=(Listed(stranger, 1000), Listed(NEIGHBOUR, 2000))))
    own, theirs = host.run("snapshot").document["gpus"][0]["processes"]
    _, told = host.run("snapshot", "--with-commands").document["gpus"][0]["processes"]

    assert (NEIGHBOUR, stranger, None, None) == (own["pid"], theirs["pid"], theirs["user"], theirs["command"])
    assert own["user"] is not None
    assert own["command"] is not None
    assert told["user"] not in {None, own["user"]}
    assert told["command"] is not None


def test_a_host_without_a_driver_has_a_snapshot_too(host: Host) -> None:
    """With a warning, and the fault in it: a bug report needs it."""
    host.cards(init_error=18)
    ended = host.run("snapshot", environ=CONSOLE)

    assert (0, [], "driver") == (ended.code, ended.document["gpus"], ended.document["nvml_fault"]["reason"])
    assert ["vllm-guard: warning: cannot read GPU memory: nvmlInit: driver and library are of different versions (upgraded, not reloaded)"] == ended.lines


@pytest.mark.parametrize("call", [Call(["snapshot", "--with-command"]), Call(["snapshot", "m"])], ids=["option", "model"])
def test_what_snapshot_does_not_know_is_a_usage_error(ended: Ended) -> None:
    """64."""
    assert (64, b"") == (ended.code, ended.stdout)


def test_the_demo_needs_nothing(host: Host) -> None:
    """No GPU, no driver, no vLLM; it launches once, refuses once and ends with 0, also where nobody reads it to the end."""
    environ = {"LD_LIBRARY_PATH": None, "PATH": "/usr/bin:/bin", "VLLM_GUARD_MODE": "observe"}
    ended = host.run("demo", environ=environ)
    cut = host.run("demo", environ=environ, wrapper=["bash", "-c", '"$0" "$@" | head -1; exit ${PIPESTATUS[0]}'])

    assert (0, 0, None) == (ended.code, cut.code, ended.report)
    assert ["launch", "refused"] == [line.split(":")[1].strip() for line in ended.lines if line.startswith("vllm-guard: ")]
    assert b"started as: vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 32k --gpu-memory-utilization 0." in ended.stdout
    assert [b"[exit status 0]", b"[exit status 75]"] == [line for line in ended.stdout.splitlines() if line.startswith(b"[exit")]
    assert "Traceback" not in cut.stderr


def test_the_demo_plays_any_snapshot(host: Host) -> None:
    """A file that is none is a usage error."""
    file = host.folder / "snapshot.json"
    host.cards(BUSY, BUSY)
    file.write_bytes(host.run("snapshot").stdout)
    played = host.run("demo", f"--guard-snapshot={file}")
    file.write_text("{}")
    refused = host.run("demo", environ={**CONSOLE, "VLLM_GUARD_SNAPSHOT": str(file)})

    assert (0, 64) == (played.code, refused.code)
    assert "0.92 to 0.3606" in played.lines[0]


def test_a_snapshot_that_nobody_reads(host: Host) -> None:
    """Is no failure."""
    assert 0 == host.run("snapshot", wrapper=closing(">&-")).code


def test_what_a_snapshot_says_about_processes_is_masked_when_it_is_read(host: Host, tmp_path: Path) -> None:
    """A snapshot is anybody's data: secrets, escape sequences and numbers that are none do not come out again."""
    host.cards(Card(free_mib=300, processes=(Listed(NEIGHBOUR, 80_000),)))
    document = host.run("snapshot", environ=CONSOLE).document
    (process,) = document["gpus"][0]["processes"]
    process.update(name="--api-key=s3cret", command="vllm serve --hf-token s3cret\x1b[31m", age_seconds=1e999)
    document["gpus"][0]["name"] = "https://user:s3cret@host"
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps(document))
    ended = host.check(f"--guard-snapshot={file}", "--guard-json", environ=CONSOLE)

    assert ended.code == 75
    assert "s3cret" not in ended.stderr + ended.stdout.decode()
    assert "\x1b" not in ended.stderr + ended.stdout.decode()


def test_no_text_of_a_snapshot_moves_a_terminal_or_forges_a_line(host: Host, tmp_path: Path) -> None:
    """Whoever wrote it, of a card, a process, a claim or a fault: it stays on its line."""
    host.cards(Card(free_mib=300, processes=(Listed(NEIGHBOUR, 80_000),)), Card())
    evil = "x\x1b[2J\nvllm-guard: launch: forged\u202e"
    document = host.run("snapshot", environ=CONSOLE).document
    card, other = document["gpus"]
    card["processes"][0].update(dict.fromkeys(("name", "user", "command", "container", "unit", "server", "end_command"), evil))
    card.update(name=evil, uuid=card["uuid"] + evil, processes_unreadable=evil)
    document["gpus"][1] = {"unreadable": True, "nvml_index": 1, "uuid": other["uuid"] + evil, "name": evil, "message": evil, "fix": evil}
    document["claims"] = [{"uuid": card["uuid"], "promised_bytes": 1 << 30, "used_bytes": 0, "pid": 4, "user": evil}]
    document.update(vllm_version="0.32.0" + evil, environment={"CUDA_VISIBLE_DEVICES": "0,1" + evil})
    file = tmp_path / "snapshot.json"
    environments: tuple[dict[str, str], ...] = (document["environment"], {})
    for environment in environments:
        file.write_text(json.dumps({**document, "environment": environment}))
        for words in ((), ("-tp", "2")):
            lines = host.check(f"--guard-snapshot={file}", *words, environ=CONSOLE).stderr.removesuffix("\n").split("\n")

            assert all(line.isprintable() for line in lines)
            assert not any(line.startswith("vllm-guard: launch: forged") for line in lines)
