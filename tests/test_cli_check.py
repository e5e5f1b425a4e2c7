"""`vllm-guard check`: the same decision with nothing started, as text and as the document that other programs rely on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from guard_process import BUSY, FULL, GUARD, MODEL, NEIGHBOUR, Call, Ended, Host, rows
from standin_driver import Card, Listed
from test_cli_serve import CONSOLE, LOGGED, SECRET_WORDS, SHIMMED, bug_in, closing, leaks

NO_DRIVER = 12
Check = Callable[[Any], bool]


def a(*kinds: type) -> Check:
    """A value of one of these types; a boolean is no number."""
    return lambda value: isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)


def one_of(*values: object) -> Check:
    """One of these values."""
    return lambda value: value in values


def or_null(check: Check) -> Check:
    """The same, or null."""
    return lambda value: value is None or check(value)


def each(check: Check) -> Check:
    """A list of such values."""
    return lambda value: isinstance(value, list) and all(map(check, value))


def keys(**checks: Check) -> Check:
    """An object with at least these keys, each of the right kind; adding keys is free."""

    def check(value: Any) -> bool:
        wrong = [key for key, of in checks.items() if not isinstance(value, dict) or key not in value or not of(value[key])]
        assert not wrong, f"{wrong} in {value}"
        return True

    return check


TEXT, WHOLE, BOOLEAN, NUMBER = a(str), a(int), a(bool), a(int, float)
PROCESS = keys(
    pid=WHOLE,
    kind=one_of("compute", "graphics", "mps"),
    name=TEXT,
    user=or_null(TEXT),
    command=or_null(TEXT),
    used_bytes=or_null(WHOLE),
    age_seconds=or_null(NUMBER),
    container=or_null(TEXT),
    unit=or_null(TEXT),
    vllm=BOOLEAN,
    orphan=BOOLEAN,
)
DEVICE = keys(
    kind=one_of("cuda", "cpu"),
    ordinal=WHOLE,
    nvml_index=WHOLE,
    uuid=TEXT,
    name=TEXT,
    nvml_total_bytes=WHOLE,
    driver_reserved_bytes=or_null(WHOLE),
    free_bytes=WHOLE,
    claimed_bytes=WHOLE,
    start_overhead_bytes=WHOLE,
    outside_budget_bytes=WHOLE,
    margin_bytes=WHOLE,
    budget_bytes=WHOLE,
    unaccounted_bytes=WHOLE,
    gpu_memory_utilization=NUMBER,
    limiting=BOOLEAN,
    processes=each(PROCESS),
)
SETTING = keys(value=lambda _: True, given=lambda _: True, source=one_of("argv", "yaml", "vllm_default", "guard"))
SETTINGS = keys(
    gpu_memory_utilization=SETTING,
    max_num_batched_tokens=SETTING,
    max_num_seqs=SETTING,
    max_model_len=SETTING,
    kv_cache_memory_bytes=SETTING,
    tensor_parallel_size=SETTING,
)
REASONS = (
    *("gpu_busy", "model_too_large", "below_min_free", "below_min_kv_cache", "below_min_utilization", "competitors"),
    *("no_gpu", "driver", "device_missing"),
)
GATE = keys(
    gate=one_of("free_memory", "cache_blocks", "one_sequence"),
    outcome=one_of("pass", "fail", "uncertain", "unknown"),
    have_bytes=or_null(WHOLE),
    need_bytes=or_null(WHOLE),
    detail=TEXT,
)
DOCUMENT = keys(
    schema_version=one_of(1),
    verdict=one_of("launch", "refuse", "unmeasured"),
    exit_code=WHOLE,
    reason=or_null(one_of(*REASONS)),
    summary=TEXT,
    vllm=keys(executable=or_null(TEXT), version=or_null(TEXT), device=TEXT, assumed=BOOLEAN),
    devices=each(DEVICE),
    settings=SETTINGS,
    changes=each(keys(flag=TEXT, **{"from": or_null(TEXT), "to": TEXT}, because=TEXT)),
    demand=one_of(None),
    gates=lambda value: each(GATE)(value) and [gate["gate"] for gate in value] == ["free_memory", "cache_blocks", "one_sequence"],
    fits=one_of(None),
    host=keys(memory_available_bytes=WHOLE, cgroup_limit_bytes=or_null(WHOLE), warnings=each(TEXT)),
    warnings=each(keys(code=TEXT, message=TEXT)),
    fixes=each(TEXT),
    argv=each(TEXT),
    elapsed_seconds=NUMBER,
)


def strict(text: bytes) -> dict[str, Any]:
    """The document, read as a program of another language would: no NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document: dict[str, Any] = json.loads(text, parse_constant=refuse)
    assert DOCUMENT(document)
    return document


def check(*words: str, cards: Sequence[Card] = (Card(),), init_error: int | None = None) -> Call:
    """`check --guard-json` on these cards."""
    return Call(["check", MODEL, *words, "--guard-json"], cards=cards, init_error=init_error)


# Verdict, exit code, reason, number of devices and of changes.
DOCUMENTS: Mapping[str, tuple[Call, tuple[str, int, str | None, int, int]]] = {
    "a launch as it is": (check(), ("launch", 0, None, 1, 0)),
    "a launch with a change": (check(cards=[BUSY]), ("launch", 0, None, 1, 1)),
    "a value that vLLM rejects": (check("--gpu-memory-utilization", "nan", cards=[BUSY]), ("launch", 0, None, 0, 0)),
    "a refusal": (check(cards=[FULL]), ("refuse", 75, "gpu_busy", 1, 0)),
    "a refusal for one of two cards": (check("-tp", "2", cards=[Card(), FULL]), ("refuse", 75, "gpu_busy", 2, 0)),
    "below min_free": (check("--guard-min-free=50%", cards=[BUSY]), ("refuse", 75, "below_min_free", 1, 0)),
    "below min_utilization": (check("--guard-min-utilization=0.5", cards=[BUSY]), ("refuse", 75, "below_min_utilization", 1, 0)),
    "below min_kv_cache": (check("--guard-min-kv-cache=40GiB", cards=[BUSY]), ("refuse", 75, "below_min_kv_cache", 1, 0)),
    "no driver": (check(init_error=NO_DRIVER), ("unmeasured", 69, "driver", 0, 0)),
    "no card": (check(cards=[]), ("unmeasured", 69, "no_gpu", 0, 0)),
    "too few cards": (check("-tp", "4"), ("unmeasured", 69, "device_missing", 0, 0)),
    "no driver, tolerated": (check("--guard-unmeasured=start", init_error=NO_DRIVER), ("unmeasured", 0, "driver", 0, 0)),
}


@pytest.mark.parametrize(("call", "expected"), rows(DOCUMENTS))
def test_the_document_has_every_key(ended: Ended, expected: tuple[str, int, str | None, int, int]) -> None:
    """Whatever the verdict; the exit code in it is the process's."""
    document, program = strict(ended.stdout), str(ended.folder / "bin" / "vllm")

    found = (document["verdict"], document["exit_code"], document["reason"], len(document["devices"]), len(document["changes"]))
    assert (expected, expected[1]) == (found, ended.code)
    assert ended.lines[0].endswith(document["summary"])
    assert [program, "serve", MODEL] == document["argv"][:3]
    assert {"executable": program, "version": "0.32.0", "device": "cuda", "assumed": False} == document["vllm"]


def test_the_document_tells_what_is_effective(host: Host) -> None:
    """Values after the guard, with where they came from; sizes in bytes; the processes of the card."""
    host.cards(BUSY)
    yaml = host.folder / "vllm.yaml"
    yaml.write_text("max-num-seqs: 16\n")
    document = strict(host.check("--config", str(yaml), "--max-model-len", "32k", "--guard-margin=2GiB", "--guard-json").stdout)
    settings, device, change = document["settings"], document["devices"][0], document["changes"][0]

    assert {"value": 0.3481, "given": None, "source": "guard"} == settings["gpu_memory_utilization"]
    assert {"value": 16, "given": 16, "source": "yaml"} == settings["max_num_seqs"]
    assert {"value": 32_000, "given": 32_000, "source": "argv"} == settings["max_model_len"]
    assert {"value": 1, "given": None, "source": "vllm_default"} == settings["tensor_parallel_size"]
    assert ("--gpu-memory-utilization", "0.92", "0.3481") == (change["flag"], change["from"], change["to"])
    assert (2 << 30, 640 << 20, 50_000 << 20) == (device["margin_bytes"], device["start_overhead_bytes"], device["processes"][0]["used_bytes"])
    assert device["free_bytes"] - device["start_overhead_bytes"] - device["margin_bytes"] == device["budget_bytes"]
    assert (NEIGHBOUR, "compute", False) == tuple(device["processes"][0][key] for key in ("pid", "kind", "vllm"))
    assert ["--gpu-memory-utilization", "0.3481"] == document["argv"][-2:]


def test_the_devices_are_in_rank_order(host: Host) -> None:
    """The order of CUDA_VISIBLE_DEVICES, with NVML's indices, and the one that decides."""
    host.cards(Card(), BUSY, Card())
    document = strict(host.check("-tp", "2", "--guard-json", environ={"CUDA_VISIBLE_DEVICES": "2,1"}).stdout)

    assert [(0, 2, False), (1, 1, True)] == [(device["ordinal"], device["nvml_index"], device["limiting"]) for device in document["devices"]]


def test_the_command_that_would_be_executed_stands_alone_on_stdout(host: Host) -> None:
    """Quoted for a shell and exact: running it is the launch. Secrets are masked everywhere else."""
    host.cards(BUSY)
    strange = (*SECRET_WORDS, "--served-model-name", "it's a name", b"\xff")
    ended = host.check(*strange, environ=CONSOLE)
    line = ended.stdout.removesuffix(b"\n")
    words = subprocess.run(["/bin/bash", "-c", b"printf '%s\\0' " + line], check=True, capture_output=True).stdout.split(b"\0")[:-1]

    assert 0 == ended.code
    assert [str(host.stub).encode(), b"serve", MODEL.encode()] == words[:3]
    assert [word if isinstance(word, bytes) else word.encode() for word in strange] == words[3:-2]
    assert ([b"--gpu-memory-utilization", b"0.3606"], []) == (words[-2:], leaks(ended.stderr))


@pytest.mark.parametrize("card", [BUSY, FULL], ids=["launch", "refusal"])
def test_the_document_masks_secrets(host: Host, card: Card) -> None:
    """The exact line is printed by plain `check` only."""
    host.cards(card)
    ended = host.check(*SECRET_WORDS, "--guard-json")

    assert ([], [], 7) == (leaks(ended.stdout.decode()), leaks(ended.stderr), sum("***" in word for word in strict(ended.stdout)["argv"]))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (Call(["check", MODEL], LOGGED, [FULL], files={"log": "before"}), 75),
        (Call(["check", MODEL], LOGGED, [], files={"log": "before"}), 69),
        (Call(["check", MODEL, "--guard-margin=much"], LOGGED, files={"log": "before"}), 64),
    ],
    ids=["refused", "not measured", "usage"],
)
def test_nothing_but_a_launch_prints_a_command(ended: Ended, code: int) -> None:
    """An empty stdout, and the reason in the termination log too."""
    assert (code, b"") == (ended.code, ended.stdout)
    assert ended.lines[0] == (ended.folder / "log").read_text().splitlines()[0]


@pytest.mark.parametrize("call", [Call(["check", MODEL], SHIMMED, files=bug_in("plan.decide.decide"))], ids=[""])
def test_a_bug_is_70(ended: Ended) -> None:
    """With the traceback, and nothing on stdout."""
    assert (70, b"", None) == (ended.code, ended.stdout, ended.report)
    assert "AssertionError: planted" in ended.stderr


def test_check_needs_no_vllm(host: Host) -> None:
    """The release to decide for may be said; one that contradicts what is installed warns."""
    host.cards(BUSY)
    absent = strict(host.check("--guard-json", "--guard-vllm-version=0.9.2", environ={"PATH": "/nowhere"}).stdout)
    unknown = strict(host.check("--guard-json", environ={"PATH": "/nowhere"}).stdout)
    other = strict(host.check("--guard-json", "--guard-vllm-version=0.9.2").stdout)

    assert {"executable": None, "version": "0.9.2", "device": "cuda", "assumed": False} == absent["vllm"]
    assert ("0.9", "vllm") == (absent["changes"][0]["from"], absent["argv"][0])
    assert {"executable": None, "version": None, "device": "cuda", "assumed": True} == unknown["vllm"]
    assert ["version_contradicts"] == [warning["code"] for warning in other["warnings"]]


def test_a_dry_run_is_a_check(host: Host) -> None:
    """`serve` with dry_run prints the same and starts nothing."""
    host.cards(BUSY)
    checked, dry = host.check(environ=CONSOLE), host.serve("--guard-dry-run", environ=CONSOLE)
    document = strict(host.serve("--guard-dry-run", "--guard-json").stdout)

    assert (checked.stdout, checked.code, None) == (dry.stdout, dry.code, dry.report)
    assert checked.lines[0] == dry.lines[0]
    assert "launch" == document["verdict"]


def comparable(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document without what another run may say otherwise."""
    return {key: value for key, value in document.items() if key not in {"elapsed_seconds", "host", "devices", "argv", "vllm"}}


@pytest.mark.parametrize(
    ("cards", "words"),
    [([BUSY], ["--gpu-memory-utilization=0.9"]), ([BUSY, FULL, Card()], ["-tp", "2"])],
    ids=["launch", "refusal for two of three cards"],
)
def test_a_snapshot_decides_as_its_host_did(host: Host, cards: Sequence[Card], words: Sequence[str]) -> None:
    """Replayed on a machine without driver and without vLLM, from a file or a pipe."""
    host.cards(*cards)
    here = host.check(*words, "--guard-json", environ={"CUDA_VISIBLE_DEVICES": "0,1"})
    file = host.folder / "snapshot.json"
    file.write_bytes(host.run("snapshot", environ={"CUDA_VISIBLE_DEVICES": "0,1"}).stdout)
    host.cards(init_error=NO_DRIVER)
    away = {"PATH": "/nowhere", "CUDA_VISIBLE_DEVICES": "7"}
    there = host.check(*words, "--guard-json", f"--guard-snapshot={file}", environ=away)

    assert (here.code, comparable(strict(here.stdout))) == (there.code, comparable(strict(there.stdout)))
    assert here.document["vllm"]["version"] == there.document["vllm"]["version"]


def test_a_snapshot_may_come_through_a_pipe(host: Host) -> None:
    """As a shell writes <(…); its release can be overridden, and with it the build."""
    file = host.folder / "snapshot.json"
    file.write_bytes(host.run("snapshot").stdout)
    command = f'{GUARD} check m --guard-json --guard-snapshot <(cat "{file}") --guard-vllm-version 0.32.0+cpu'
    ended = subprocess.run(["/bin/bash", "-c", command], check=False, capture_output=True, env=host.environment({}), timeout=10)

    document = strict_cpu(ended.stdout)
    assert ("cpu", "0.32.0+cpu") == (document["vllm"]["device"], document["vllm"]["version"])
    assert {"cpu"} == {device["kind"] for device in document["devices"]}


def strict_cpu(text: bytes) -> dict[str, Any]:
    """A document about host memory: its devices have no card's names."""
    document: dict[str, Any] = json.loads(text)
    assert DOCUMENT({**document, "devices": []})
    return document


def replay(text: str) -> Call:
    """`check` on a file with this text."""
    return Call(["check", MODEL, "--guard-snapshot={folder}/file"], CONSOLE, files={"file": text})


@pytest.mark.parametrize(
    "call",
    [
        replay('{"schema_version": 2}'),
        replay('{"schema_version": 1, "host": {"memory_total_bytes": -1}}'),
        replay("[" * 100_000),
        Call(["check", MODEL, "--guard-snapshot={folder}/missing"], CONSOLE),
    ],
    ids=["of the future", "a size below zero", "deep", "missing"],
)
def test_what_is_no_snapshot_is_a_usage_error(ended: Ended) -> None:
    """64, with what to do."""
    assert (64, b"", "  fix: take it again with vllm-guard snapshot") == (ended.code, ended.stdout, ended.lines[1])


def test_a_snapshot_starts_nothing(host: Host) -> None:
    """Only for commands that decide and leave it at that."""
    file = host.folder / "snapshot.json"
    file.write_bytes(host.run("snapshot").stdout)

    assert (64, 0) == (host.serve(f"--guard-snapshot={file}").code, host.serve(f"--guard-snapshot={file}", "--guard-dry-run").code)


@pytest.mark.parametrize("streams", [">&- 2>&-", "| true"])
def test_streams_that_nobody_reads_do_not_change_the_verdict(host: Host, streams: str) -> None:
    """The exit code is enough for some."""
    wrapper = ["bash", "-c", '"$0" "$@" | (exec <&-; sleep 0.4); exit ${PIPESTATUS[0]}'] if streams == "| true" else closing(streams)
    host.cards(BUSY)
    launched = host.check(wrapper=wrapper, environ=CONSOLE)
    host.cards(FULL)
    refused = host.check(wrapper=wrapper, environ=CONSOLE)

    assert (0, 75, False) == (launched.code, refused.code, "Traceback" in launched.stderr)


def test_a_stdout_that_loses_the_command_is_no_success(host: Host) -> None:
    """Whoever asks for a command line must not get 0 without it."""
    assert 0 != host.check(wrapper=closing(">/dev/full")).code


def test_settings_come_from_file_environment_and_flag(host: Host) -> None:
    """Each beats the one before."""
    config = host.folder / "config.toml"
    config.write_text('max_utilization = 0.3\nmargin = "1GiB"\n')
    host.cards(Card())
    given = {"VLLM_GUARD_CONFIG": str(config)}

    def chosen(*words: str, environ: Mapping[str, str]) -> object:
        return strict(host.check("--guard-json", *words, environ={**given, **environ}).stdout)["settings"]["gpu_memory_utilization"]["value"]

    assert 0.3 == chosen(environ={})
    assert 0.4 == chosen(environ={"VLLM_GUARD_MAX_UTILIZATION": "0.4"})
    assert 0.5 == chosen("--guard-max-utilization", "0.5", environ={"VLLM_GUARD_MAX_UTILIZATION": "0.4"})
    assert 0.92 == chosen("--guard-max-utilization=0.5", "--guard-levers=", environ={})


def test_a_model_folder_counts(host: Host, tmp_path: Path) -> None:
    """Weights that cannot fit refuse; the length of config.json is told."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}))
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(400 << 30)
    ended = host.run("check", str(model), "--guard-json")
    document = strict(ended.stdout)

    assert (75, "model_too_large", 4096) == (ended.code, document["reason"], document["settings"]["max_model_len"]["value"])


def test_many_processes_are_listed_largest_first(host: Host) -> None:
    """All of them in the document."""
    host.cards(Card(processes=tuple(Listed(NEIGHBOUR if number == 7 else 4_190_000 + number, 100 * number) for number in range(1, 30))))
    processes = strict(host.check("--guard-json").stdout)["devices"][0]["processes"]

    assert (29, 2900 << 20) == (len(processes), processes[0]["used_bytes"])
