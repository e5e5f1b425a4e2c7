"""`vllm-guard explain`: from files, pipes and services; exit codes, the document, and no secret on the way."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from guard_process import GUARD, Call, Ended, Host, rows
from test_cli_check import NUMBER, TEXT, WHOLE, each, keys, one_of, or_null
from test_golden import BEGUN, CONSOLE, ENGINE, FREE, LAST, TOO_LONG

from vllm_guard.explain.diagnose import diagnose
from vllm_guard.explain.signatures import read_signatures
from vllm_guard.render.explain import explain_document

FAILED = f"{BEGUN}\n{ENGINE} {FREE}\n{LAST}"
READY = f"{BEGUN}\nINFO:     Application startup complete."
ALSO = keys(cause=TEXT, line=WHOLE)
DIRECTIONS = ("lower", "raise", "set", "remove", "none")
DOCUMENT = keys(
    schema_version=one_of(1),
    cause=or_null(TEXT),
    stage=or_null(TEXT),
    confidence=one_of("certain", "likely"),
    evidence=keys(line=or_null(WHOLE), text=or_null(TEXT)),
    numbers=lambda value: isinstance(value, dict) and all(NUMBER(each_) or TEXT(each_) for each_ in value.values()),
    fixes=each(keys(action=TEXT, flag=or_null(TEXT), direction=one_of(*DIRECTIONS), value=or_null(TEXT))),
    misleading=each(TEXT),
    also=each(ALSO),
    vllm_version=or_null(TEXT),
    earlier=each(ALSO),
)


def explain(*words: str, log: str = FAILED, wrapper: Sequence[str] = (), environ: Mapping[str, str] = CONSOLE) -> Call:
    """`explain` on a host with this log."""
    return Call(["explain", *words], {**environ, "LOG": "{folder}/log"}, files={"log": log, "empty": ""}, wrapper=wrapper)


def piped(*words: str, command: str = 'cat "$LOG"', log: str = FAILED, environ: Mapping[str, str] = CONSOLE) -> Call:
    """`explain` at the end of a pipe."""
    return explain(*words, log=log, wrapper=("sh", "-c", f'{command} | "$0" "$@"'), environ=environ)


FOUND = {
    "a file": explain("{folder}/log"),
    "a pipe": piped(),
    "a pipe by its name": piped("-"),
    "a pipe that comes in pieces": piped(command='(head -c 100 "$LOG"; sleep 0.3; tail -c +101 "$LOG")'),
    "a file as stdin": explain(wrapper=("sh", "-c", '"$0" "$@" < "$LOG"')),
    "a pipe of the file system": explain("{folder}/fifo", wrapper=("sh", "-c", 'mkfifo "${LOG%/*}/fifo"; cat "$LOG" > "${LOG%/*}/fifo" & "$0" "$@"')),
    "a file behind an option": explain("--guard-log-format=console", "{folder}/log"),
}


@pytest.mark.parametrize("call", FOUND.values(), ids=FOUND)
def test_a_cause_is_told_from_wherever_the_log_comes(ended: Ended) -> None:
    """On stdout, with exit status 0; nothing on stderr."""
    assert (0, "") == (ended.code, ended.stderr)
    assert b"vllm-guard: explain: not enough memory was free when vLLM started (gate_free_memory, certain)" in ended.stdout
    assert b"line 2: ValueError: Free memory on device cuda:0" in ended.stdout
    assert ended.report is None


NOTHING = {
    "an empty file": (explain("{folder}/empty"), "no failure found in this log"),
    "an empty pipe": (explain("-"), "no failure found in this log"),
    "a start that worked": (explain("{folder}/log", log=READY), "no failed start: the server became ready"),
    "an exception that nobody knows": (explain("{folder}/log", log="acme.SpecialError: x"), "no known cause; the first exception is in line 1"),
}


@pytest.mark.parametrize(("call", "words"), rows(NOTHING))
def test_no_cause_ends_with_status_1(ended: Ended, words: str) -> None:
    """It is no failure of the guard."""
    assert (1, "") == (ended.code, ended.stderr)
    assert words in ended.stdout.decode()


USAGE = {
    "a file that is not there": (explain("{folder}/none"), "No such file or directory"),
    "a directory": (explain("{folder}"), "Is a directory"),
    "two files": (explain("{folder}/log", "{folder}/empty"), "explain does not know"),
    "an option of vLLM": (explain("--port"), "explain does not know '--port'"),
    "no stdin at all": (explain(wrapper=("sh", "-c", '"$0" "$@" <&-')), "explain reads a file, or what is piped into it"),
}


@pytest.mark.parametrize(("call", "words"), rows(USAGE))
def test_what_cannot_be_read_is_a_mistake_of_usage(ended: Ended, words: str) -> None:
    """Exit status 64, and the usage."""
    assert (64, b"") == (ended.code, ended.stdout)
    assert words in ended.stderr
    assert "vllm-guard explain [FILE|-]" in ended.stderr


def test_without_a_file_nobody_waits_for_a_terminal(host: Host) -> None:
    """It would look as if it hung."""
    ours, theirs = pty.openpty()
    done = subprocess.run([str(GUARD), "explain"], stdin=theirs, capture_output=True, text=True, env=host.environment(CONSOLE), timeout=20, check=False)
    os.close(ours)
    os.close(theirs)

    assert (64, True) == (done.returncode, "or what is piped into it" in done.stderr)


DOCUMENTS = {
    "a file": (explain("{folder}/log", "--guard-json"), 0, "gate_free_memory"),
    "a pipe": (piped("--guard-json"), 0, "gate_free_memory"),
    "a pipe by its name": (piped("--guard-json", "-"), 0, "gate_free_memory"),
    "two starts": (explain("{folder}/log", "--guard-json", log=f"{BEGUN}\n{ENGINE} {TOO_LONG}\n{LAST}\n{FAILED}"), 0, "gate_free_memory"),
    "no failure": (explain("{folder}/log", "--guard-json", log=READY), 1, None),
    "the setting of a service": (explain("{folder}/log", environ={"VLLM_GUARD_JSON": "true"}), 0, "gate_free_memory"),
}


@pytest.mark.parametrize(("call", "code", "cause"), rows(DOCUMENTS))
def test_the_document_has_the_keys_of_the_contract(ended: Ended, code: int, cause: str | None) -> None:
    """It is all that stdout holds."""
    assert DOCUMENT(ended.document)
    assert (code, cause) == (ended.code, ended.document["cause"])


def test_the_document_tells_line_numbers_and_what_helps(host: Host) -> None:
    """As the start has them: of the last one, with the one before named."""
    (host.folder / "log").write_text(f"{BEGUN}\n{ENGINE} {TOO_LONG}\n{LAST}\n{FAILED}")
    expected: dict[str, Any] = {
        "schema_version": 1,
        "cause": "gate_free_memory",
        "stage": "worker_init",
        "confidence": "certain",
        "evidence": {"line": 5, "text": FREE},
        "numbers": {"free_gib": 3.5, "total_gib": 79.11, "utilization": 0.92, "requested_gib": 72.78},
        "fixes": [{"action": "free_gpu", "flag": None, "direction": "none", "value": "69.28 GiB"}],
        "also": [],
        "vllm_version": "0.32.0",
        "earlier": [{"cause": "gate_one_sequence", "line": 2}],
    }
    document = host.run("explain", str(host.folder / "log"), "--guard-json").document

    assert 2 == len(document.pop("misleading"))
    assert expected == document


TOKEN = "hf_" + "a1B2c3D4e5" * 3 + "f6G7"
SECRETS = {
    "a key of a command line": f"vllm serve: error: unrecognized arguments: --api-key TOPSECRET --hf-token {TOKEN}",
    "a key in the arguments": "ValueError: No available memory for the cache blocks. args {'api_key': ['TOPSECRET'], 'hf_token': 'TOPSECRET'}",
    "a token alone": f"OSError: You are trying to access a gated repo. {TOKEN}",
    "a user in an address": "OSError: couldn't connect to 'https://me:TOPSECRET@hub.example.org/models'",
    "a header": "401 Client Error. Authorization: Bearer TOPSECRET0123",
    "an exception that nobody knows": f"acme.SpecialError: password=TOPSECRET {TOKEN}",
    "a wrong value": "api_key\n  Input should be a valid string [type=string_type, input_value={'api_key': 'TOPSECRET'}, input_type=dict]",
}


@pytest.mark.parametrize("line", SECRETS.values(), ids=SECRETS)
def test_no_secret_of_the_log_is_repeated(host: Host, line: str) -> None:
    """Neither as text nor as JSON."""
    (host.folder / "log").write_text(line)
    text = host.run("explain", str(host.folder / "log"), environ=CONSOLE)
    document = host.run("explain", str(host.folder / "log"), "--guard-json", environ=CONSOLE)

    for ended in (text, document):
        said = ended.stdout.decode() + ended.stderr
        assert ("TOPSECRET" not in said, TOKEN not in said) == (True, True), said
    assert b"***" in text.stdout


def test_nothing_that_a_terminal_acts_on_is_repeated(host: Host) -> None:
    """A log is written by others."""
    (host.folder / "log").write_text("error: unrecognized arguments: --a \x1b]0;owned\x07\x1b[2J\x9b31m\u202e --b\x08\x08")
    said = host.run("explain", str(host.folder / "log"), environ=CONSOLE).stdout.decode()

    assert all(line.isprintable() for line in said.splitlines())


def test_a_reader_that_goes_away_is_no_failure(host: Host) -> None:
    """`explain | head -n 0`: the exit status is the verdict."""
    (host.folder / "log").write_text(FAILED)
    command = f"{GUARD} explain {host.folder / 'log'}; echo $? > {host.folder / 'status'}"
    subprocess.run(["sh", "-c", f"({command}) | true"], env=host.environment(CONSOLE), check=True, timeout=20, stderr=subprocess.DEVNULL)

    assert "0" == Path(host.folder / "status").read_text().strip()


def test_the_document_of_every_example_is_json() -> None:
    """Names, numbers and texts of each wording; `json` refuses what is no number in JSON."""
    signatures = read_signatures()
    for example in (example for signature in signatures for example in signature.examples):
        assert DOCUMENT(json.loads(json.dumps(explain_document(diagnose([example.encode()], signatures)), allow_nan=False)))
