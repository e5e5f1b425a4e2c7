"""`vllm-guard run -- CMD` and a link named vllm, the shipped command: what is started, with which words, and what is left alone."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from guard_process import BUSY, FULL, GUARD, Call, Ended, Host, rows
from standin_driver import Card
from stub_vllm import write_stub

CONSOLE = {"VLLM_GUARD_LOG_FORMAT": "console"}
OFF = {"VLLM_GUARD_MODE": "off"}
RELEASE = {"VLLM_GUARD_VLLM_VERSION": "0.32.0", **CONSOLE}
NO_DRIVER = 12
API_SERVER = "vllm.entrypoints.openai.api_server"
STUB_MODULE = """\
import os, sys
os.execv(os.environ["STUB"], [os.environ["STUB"], "module", str(os.getpid()), *sys.argv[1:]])
"""
CHOSEN = "--gpu-memory-utilization 0.3606"


def write_module(folder: Path, name: str) -> None:
    """A stub of one of vLLM's modules, which becomes the stub executable."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(STUB_MODULE)


@pytest.fixture(name="linked")
def _linked(host: Host) -> Host:
    """A host whose first `vllm` on PATH is a link to the guard."""
    (host.folder / "front").mkdir()
    (host.folder / "front" / "vllm").symlink_to(GUARD)
    host.environ["PATH"] = f"{host.folder / 'front'}:{host.folder / 'bin'}:{os.defpath}"
    return host


def typed(host: Host, *words: str, environ: Mapping[str, str] | None = None) -> Ended:
    """`vllm WORDS` in a shell: the link is what PATH finds."""
    return host.run(*words, environ=environ, wrapper=["sh", "-c", 'shift; exec vllm "$@"', "sh"])


BENCH = ("vllm", "bench", "latency", "--model", "m", "--input-len", "8")


@pytest.mark.parametrize(
    ("call", "reached"),
    rows(
        {
            "vllm serve, as without run": (Call(("run", "--", "vllm", "serve", "m"), CONSOLE, (BUSY,)), f"serve m {CHOSEN}"),
            "a benchmark": (Call(("run", "--", *BENCH), CONSOLE, (BUSY,)), f"bench latency --model m --input-len 8 {CHOSEN}"),
            "wrappers in front": (Call(("run", "--", "nice", "env", "A=b", "vllm", "serve", "m"), CONSOLE, (BUSY,)), f"serve m {CHOSEN}"),
            "the guard's flags before the --": (
                Call(("--guard-margin=2GiB", "run", "--guard-settle", "0", "--", "vllm", "serve", "m"), CONSOLE, (BUSY,)),
                "serve m --gpu-memory-utilization 0.3481",
            ),
            "not behind it": (Call(("run", "--", "vllm", "serve", "m", "--guard-mode=off"), CONSOLE, (BUSY,)), f"serve m --guard-mode=off {CHOSEN}"),
            "a given value is lowered where it stands": (
                Call(("run", "--", "vllm", "run-batch", "--gpu-mem=0.9", "-i", "a"), CONSOLE, (BUSY,)),
                "run-batch --gpu-mem=0.3606 -i a",
            ),
            "the card that env names": (Call(("run", "--", "env", "CUDA_VISIBLE_DEVICES=1", "vllm", "serve", "m"), CONSOLE, (FULL, BUSY)), f"serve m {CHOSEN}"),
            "what starts no engine, on a full card": (Call(("run", "--", "vllm", "--version"), CONSOLE, (FULL,)), "--version"),
            "vLLM's help": (Call(("run", "--", "vllm", "bench", "latency", "--help"), CONSOLE, (FULL,)), "bench latency --help"),
            "observed": (Call(("run", "--guard-mode=observe", "--", *BENCH), CONSOLE, (FULL,)), "bench latency --model m --input-len 8"),
            "mode off, on a full card": (Call(("run", "--", *BENCH), OFF, (FULL,)), "bench latency --model m --input-len 8"),
            "mode off with broken settings": (
                Call(("run", "--guard-mode=off", "--guard-nope", "--", *BENCH), {"VLLM_GUARD_MARGIN": "x"}, (FULL,)),
                "bench latency --model m --input-len 8",
            ),
            "mode off in the settings file": (
                Call(("run", "--", *BENCH), {"VLLM_GUARD_CONFIG": "{folder}/toml"}, (FULL,), files={"toml": 'mode = "off"\nx = 1\n'}),
                "bench latency --model m --input-len 8",
            ),
            "without a driver, where that is tolerated": (
                Call(("run", "--guard-unmeasured=start", "--", *BENCH), CONSOLE, init_error=NO_DRIVER),
                "bench latency --model m --input-len 8",
            ),
        }
    ),
)
def test_the_command_is_started(ended: Ended, reached: str) -> None:
    """With the guard's values in vLLM's own words, and nothing else changed."""
    assert (0, reached) == (ended.code, os.fsdecode(b" ".join(ended.reached))), ended.stderr


@pytest.mark.parametrize(
    ("call", "code", "said"),
    rows(
        {
            "a full card": (Call(("run", "--", *BENCH), CONSOLE, (FULL,)), 75, "vllm-guard: refused: GPU 0"),
            "no driver": (Call(("run", "--", *BENCH), CONSOLE, init_error=NO_DRIVER), 69, "vllm-guard: error: "),
            "no --": (Call(("run", "vllm", "serve", "m"), CONSOLE), 64, "vllm-guard: usage: run has no -- before its command, 'vllm'"),
            "a word before the --": (Call(("run", "x", "--", "vllm"), CONSOLE), 64, "vllm-guard: usage: run does not know 'x'"),
            "no command": (Call(("run", "--"), CONSOLE), 64, "vllm-guard: usage: run has no command behind its --"),
            "no words": (Call(("run",), OFF), 64, "vllm-guard: usage: run has no command behind its --"),
            "json": (Call(("run", "--guard-json", "--", "vllm"), CONSOLE), 64, "vllm-guard: usage: json (flag --guard-json) is not for run"),
            "no such program": (Call(("run", "--", "nosuch", "serve"), CONSOLE), 127, "vllm-guard: error: cannot run 'nosuch': not found on PATH"),
            "no such program, with mode off": (Call(("run", "--", "nosuch"), OFF), 127, "vllm-guard: error: cannot run 'nosuch': not found on PATH"),
        }
    ),
)
def test_the_command_is_not_started(ended: Ended, code: int, said: str) -> None:
    """The published codes, and one line that says why."""
    assert (code, None) == (ended.code, ended.report)
    assert said in ended.lines[0]


@pytest.mark.parametrize("name", [API_SERVER, "vllm.entrypoints.api_server", "vllm.entrypoints.openai.run_batch"])
def test_a_module_of_vllm_is_started(host: Host, name: str) -> None:
    """`python -m` with its own words: the same PID all the way, the environment and the exit status its own."""
    write_module(host.folder / "packages", name)
    host.cards(BUSY)
    environ = {"PYTHONPATH": str(host.folder / "packages"), "STUB": str(host.stub), "STUB_EXIT": "7"}
    ended = host.run("run", "--", sys.executable, "-u", "-m", name, "--model", "m", environ={**environ, **RELEASE})

    assert f"module {ended.pid} --model m {CHOSEN}" == os.fsdecode(b" ".join(ended.reached))
    assert ended.report is not None
    assert (7, ended.pid) == (ended.code, ended.report.pid)
    assert {os.fsencode(f"{name}={value}") for name, value in environ.items()} <= set(ended.report.environ)
    assert not [entry for entry in ended.report.environ if entry.startswith(b"VLLM_GUARD_")]


@pytest.mark.parametrize(
    ("words", "card", "reached", "said"),
    [
        pytest.param("--model m", BUSY, "--model m", "would need --gpu-memory-utilization 0.3606", id="nothing is added"),
        pytest.param("--model m", FULL, "--model m", "with its default would fail now", id="nothing is refused"),
        pytest.param("-x --gpu-memory-utilization=0.9", BUSY, "-x --gpu-memory-utilization=0.3606", "changed only where they stand", id="a value is lowered"),
    ],
)
def test_an_unknown_program_is_started(host: Host, words: str, card: Card, reached: str, said: str) -> None:
    """Its own words may not be vLLM's."""
    write_stub(host.folder / "bin", "mine")
    host.cards(card)
    ended = host.run("run", "--", "mine", *words.split(), environ=RELEASE)

    assert reached == os.fsdecode(b" ".join(ended.reached))
    assert "vllm-guard: warning: this program is not known to the guard" in ended.stderr
    assert said in ended.stderr


def test_an_internal_error_starts_the_untouched_command(host: Host) -> None:
    """A bug of ours, here a library that cannot be imported, stands in nobody's way."""
    (host.folder / "broken").mkdir()
    (host.folder / "broken" / "pydantic.py").write_text("raise SystemError('broken')\n")
    ended = host.run("run", "--guard-margin=1GiB", "--", *BENCH, environ={"PYTHONPATH": str(host.folder / "broken")})

    assert (0, b"bench") == (ended.code, ended.reached[0])
    assert b"--gpu-memory-utilization" not in ended.reached
    assert "SystemError: broken" in ended.stderr


def test_a_dry_run_prints_the_words(host: Host) -> None:
    """As check does, without secrets in the document."""
    host.cards(BUSY)
    words = ("run", "--guard-dry-run", "--", "env", "HF_TOKEN=secret", "vllm", "bench", "latency", "--model", "m")
    printed = host.run(*words, environ=CONSOLE)
    document = host.run("--guard-json", *words, environ=CONSOLE).document

    assert f"env HF_TOKEN=secret vllm bench latency --model m {CHOSEN}\n" == printed.stdout.decode()
    assert f"env HF_TOKEN=*** vllm bench latency --model m {CHOSEN}".split() == document["argv"]
    assert ("launch", "0.32.0") == (document["verdict"], document["vllm"]["version"])
    assert "secret" not in json.dumps(document) + printed.stderr
    assert printed.report is None


class TestALinkNamedVllm:
    """`vllm serve` goes through the guard, everything else straight on."""

    def test_serve_is_guarded(self, linked: Host) -> None:
        """The guard's flags work there, and the real vllm is what is started."""
        linked.cards(BUSY)
        ended = typed(linked, "serve", "m", "--guard-margin=2GiB", environ=CONSOLE)

        assert "serve m --gpu-memory-utilization 0.3481" == os.fsdecode(b" ".join(ended.reached))
        assert ended.report is not None
        assert (os.fsencode(linked.stub), ended.pid) == (ended.report.argv[0], ended.report.pid)

    def test_serve_is_refused(self, linked: Host) -> None:
        """With the guard's code."""
        linked.cards(FULL)

        assert 75 == typed(linked, "serve", "m").code

    def test_the_guards_help_behind_serve(self, linked: Host) -> None:
        """Is ours; without `serve` it is vLLM's to answer."""
        assert typed(linked, "serve", "--guard-help").stdout.startswith(b"usage: vllm-guard")
        assert () == typed(linked, "--guard-help").reached

    @pytest.mark.parametrize(
        "words",
        ["--version", "--help", "serve --help", "", "chat --url u", "bench latency --model m -- --guard-mode=x", "check m", "gpus", "run -- x", "--model m"],
    )
    def test_everything_else_passes(self, linked: Host, words: str) -> None:
        """Word for word, with vLLM's exit status, whatever the card and the settings say."""
        linked.cards(FULL)
        ended = typed(linked, *words.split(), environ={"STUB_EXIT": "9", "VLLM_GUARD_MARGIN": "nonsense"} if words != "serve --help" else {"STUB_EXIT": "9"})

        assert ended.report is not None, ended.stderr
        assert (9, words, ended.pid) == (ended.code, os.fsdecode(b" ".join(ended.reached)), ended.report.pid)
        assert ("", b"stub vllm\n") == (ended.stderr, ended.stdout)

    def test_run_does_not_come_back(self, linked: Host) -> None:
        """`run -- vllm ...` starts the real one too, also with mode off, where the link would not know of that."""
        linked.cards(FULL)
        off = linked.run("run", "--guard-mode=off", "--", "nice", "vllm", "serve", "m")
        linked.cards(BUSY)
        on = linked.run("run", "--", "vllm", "serve", "m", environ=CONSOLE)

        assert (b"serve", b"m") == off.reached
        assert f"serve m {CHOSEN}" == os.fsdecode(b" ".join(on.reached))
        assert 1 == on.stderr.count("vllm-guard: launch")

    def test_what_looks_vllm_up_itself_is_left_alone(self, linked: Host) -> None:
        """`uv run vllm` means the one of the project, whatever stands on PATH."""
        write_stub(linked.folder / "bin", "uv")
        ended = linked.run("run", "--", "uv", "run", "vllm", "serve", "m", environ=CONSOLE)

        assert (b"run", b"vllm", b"serve", b"m") == ended.reached

    @pytest.mark.parametrize("words", [("serve", "m"), ("--version",)])
    def test_no_other_vllm(self, linked: Host, words: Sequence[str]) -> None:
        """127 with the fix."""
        linked.stub.unlink()
        ended = typed(linked, *words, environ=CONSOLE)

        assert 127 == ended.code
        assert "  fix: pass the full path, for example --guard-vllm=/opt/vllm/bin/vllm" in ended.lines

    def test_the_link_is_not_taken_for_vllm(self, linked: Host) -> None:
        """By a setting neither."""
        ended = typed(linked, "serve", "m", environ={**CONSOLE, "VLLM_GUARD_VLLM": str(linked.folder / "front" / "vllm")})

        assert 126 == ended.code
        assert "it is vllm-guard itself" in ended.lines[0]

    @pytest.mark.parametrize(
        "layout", ["a second link", "a link to the link", "a guard of another venv", "a copy", "a shell script", "vllm of uv tool or pipx", "beside the guard"]
    )
    def test_layouts(self, linked: Host, layout: str) -> None:
        """Guards under any name are passed over, and a vllm that is itself a link is found."""
        second = linked.folder / "second"
        second.mkdir()
        match layout:
            case "a second link":
                (second / "vllm").symlink_to(GUARD)
            case "a link to the link":
                (second / "vllm").symlink_to(linked.folder / "front" / "vllm")
            case "a guard of another venv":
                other = linked.folder / "venv" / "bin"
                other.mkdir(parents=True)
                shutil.copy(GUARD, other / "vllm-guard")
                (second / "vllm").symlink_to(other / "vllm-guard")
            case "a copy":
                shutil.copy(GUARD, second / "vllm")
            case "a shell script":
                (second / "vllm").write_text(f'#!/bin/sh\nexec "{GUARD}" "$@"\n')
                (second / "vllm").chmod(0o755)
            case "vllm of uv tool or pipx":
                tools = linked.folder / "tools" / "vllm" / "bin"
                tools.mkdir(parents=True)
                (second / "vllm").symlink_to(write_stub(tools))
            case _:
                shutil.copy(GUARD, second / "vllm-guard")
                write_stub(second)
                (linked.folder / "front" / "vllm").unlink()
                (linked.folder / "front" / "vllm").symlink_to(second / "vllm-guard")
        path = f"{linked.folder / 'front'}:{second}:{linked.folder / 'bin'}:{os.defpath}"
        ended = typed(linked, "chat", environ={"PATH": path})

        assert ended.report is not None, ended.stderr
        expected = second / "vllm" if layout in {"vllm of uv tool or pipx", "beside the guard"} else linked.stub
        assert (os.fsencode(expected), (b"chat",)) == (ended.report.argv[0], ended.reached)


def cpu_seconds(command: Sequence[str], environ: Mapping[str, str]) -> float:
    """The least that a command takes of a processor, of some tries."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    tries = []
    for _ in range(5):
        before = used()
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
        tries.append(used() - before)
    return min(tries)


def test_passing_on_costs_little(linked: Host) -> None:
    """A few times what an interpreter takes to do nothing: none of the libraries is imported."""
    environ = linked.environment({})
    nothing = cpu_seconds([sys.executable, "-c", "pass"], environ)
    passed = cpu_seconds([str(linked.folder / "front" / "vllm"), "--version"], environ)

    assert passed < nothing * 5
