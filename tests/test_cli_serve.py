"""`vllm-guard serve`, the shipped command: what reaches vLLM, what is said, and with which code it ends when vLLM is not started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from guard_process import BUSY, BUSY_ARGV, CLAIM, FULL, GUARD, MODEL, UNTOUCHED, Call, Ended, Host, rows
from standin_driver import Card

from vllm_guard import __version__

CONSOLE = {"VLLM_GUARD_LOG_FORMAT": "console"}
OFF = {"VLLM_GUARD_MODE": "off"}
NO_DRIVER = 12


def without_guard(environ: Mapping[str, str]) -> set[bytes]:
    """An environment as vLLM should see it."""
    return {os.fsencode(f"{name}={value}") for name, value in environ.items() if not name.startswith("VLLM_GUARD_")}


def closing(streams: str) -> list[str]:
    """A wrapper that closes streams: `2>&-`."""
    return ["sh", "-c", f'exec "$0" "$@" {streams}']


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"VLLM_GUARD_MODE": "observe", "VLLM_GUARD_LOG_FORMAT": "console"}, id="while it observes"),
        pytest.param({**OFF, "LC_ALL": "C"}, id="with mode off"),
        pytest.param({"LC_ALL": "C", "LANG": "nowhere"}, id="in the C locale"),
        pytest.param({"VLLM_GUARD_MARGIN": "1GiB", "VLLM_GUARD_PORT_80_TCP": "x", "VLLM_LOGGING_LEVEL": "DEBUG"}, id="with settings in the environment"),
    ],
)
def test_the_guard_becomes_vllm(host: Host, environ: Mapping[str, str]) -> None:
    """Same PID, argv, folder, environment and descriptors but for the claim's, nothing ignored or blocked, stdout byte for byte vLLM's own."""
    reader, writer = os.pipe()
    ended = host.serve("--max-model-len", "32k", environ=environ, inherited=[writer], cwd=host.folder)
    os.close(reader)
    os.close(writer)

    assert ended.report is not None
    assert (ended.pid, (*UNTOUCHED, b"--max-model-len", b"32k")) == (ended.report.pid, ended.reached)
    assert (0, b"stub vllm\n", host.folder) == (ended.code, ended.stdout, ended.report.folder)
    assert {0, 1, 2, writer} == ended.report.descriptors - {CLAIM}
    assert ("VLLM_GUARD_MODE" not in environ) == (CLAIM in ended.report.descriptors)
    assert frozenset() == ended.report.ignored | ended.report.blocked
    assert without_guard(host.environment(environ)) == set(ended.report.environ)


SERVE = ("serve", MODEL)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        *((Call(SERVE, {"STUB_EXIT": str(status)}), status) for status in (0, 75, 255)),
        *((Call(SERVE, {"STUB_EXIT": str(status), **OFF}), status) for status in (1, 2, 130)),
        (Call(SERVE, {"STUB_SIGNAL": "TERM"}), -signal.SIGTERM),
    ],
    ids=["0", "75", "255", "1", "2", "130", "TERM"],
)
def test_vllms_exit_status_is_the_exit_status(ended: Ended, code: int) -> None:
    """After exec there is nobody between vLLM and its parent: its codes, and its death by a signal, are its own."""
    assert (code, UNTOUCHED) == (ended.code, ended.reached)


@pytest.mark.parametrize("call", [Call(SERVE, {**CONSOLE, "VLLM_GUARD_TERMINATION_LOG": "{folder}/log"}, files={"log": "before"})], ids=[""])
def test_an_idle_card_changes_nothing(ended: Ended) -> None:
    """One line is said, argv is as it was given, and the termination log, which is for ends, as it was."""
    assert UNTOUCHED == ended.reached
    assert ["vllm-guard: launch: --gpu-memory-utilization 0.92 unchanged (vLLM's default fits): GPU 0 has 81080 of 81559 MiB free"] == ended.lines
    assert "before" == (ended.folder / "log").read_text()


GIVEN = ("--gpu_memory_utilization=0.95", "--gpu-mem", "0.9")


@pytest.mark.parametrize("call", [Call((*SERVE, *GIVEN), CONSOLE, [BUSY])], ids=[""])
def test_a_given_value_that_cannot_work_is_lowered_in_place(ended: Ended) -> None:
    """In the user's spelling, every occurrence, and said."""
    assert (b"--gpu_memory_utilization=0.3606", b"--gpu-mem", b"0.3606") == ended.reached[2:]
    assert ended.lines[0].startswith("vllm-guard: launch: --gpu-memory-utilization 0.9 to 0.3606 (GPU 0: 31080 of 81559 MiB free")
    assert "vLLM would have refused it" in ended.lines[1]


LOGGED = {**CONSOLE, "VLLM_GUARD_TERMINATION_LOG": "{folder}/log"}


def ending(*words: str, environ: Mapping[str, str] | None = None) -> Call:
    """A launch that does not come to pass, on a host with a termination log."""
    return Call((*SERVE, *words), {**LOGGED, **(environ or {})}, files={"log": "before"})


# The published table, with the beginning of the line that says it.
ENDS: Mapping[str, tuple[Call, int, str]] = {
    "unknown flag": (ending("--guard-marign=1GiB"), 64, "usage: unknown flag '--guard-marign'; the nearest known one is --guard-margin"),
    "bad value": (ending(environ={"VLLM_GUARD_MARGIN": "much"}), 64, "usage: margin 'much' (environment VLLM_GUARD_MARGIN) is not"),
    "json with serve": (ending("--guard-json"), 64, "usage: json (flag --guard-json) is not for serve"),
    "more cards than there are": (ending("-tp", "2"), 69, "error: this command takes 2 GPUs of this host, 1 visible"),
    "threshold": (ending("--guard-min-free=200GiB"), 75, "refused: GPU 0 has 81080 MiB free, min_free asks for 204800 MiB"),
    "not a program": (ending("--guard-vllm=/etc/passwd"), 126, "error: cannot run '/etc/passwd': Permission denied"),
    "no such program": (ending("--guard-vllm=/no/vllm"), 127, "error: cannot run '/no/vllm': no such file"),
    "no such program with mode off": (ending("--guard-vllm=/no/vllm", environ=OFF), 127, "error: cannot run '/no/vllm': no such file"),
    "no vLLM": (ending(environ={"PATH": "/nowhere"}), 127, "error: cannot run 'vllm': not found beside vllm-guard nor on PATH"),
}


@pytest.mark.parametrize(("call", "code", "line"), rows(ENDS))
def test_the_exit_codes_before_vllm_starts(ended: Ended, code: int, line: str) -> None:
    """Nothing on stdout, one line that is enough by itself, the action that mends it; the same in the termination log."""
    assert (code, b"", None) == (ended.code, ended.stdout, ended.report)
    assert ended.lines[0].startswith(f"vllm-guard: {line}"), ended.lines[0]
    assert ended.lines[-2].startswith("  fix: ")
    assert ended.lines[-1].startswith(f"  exit {code}")
    assert ended.stderr == (ended.folder / "log").read_text()


@pytest.mark.parametrize("call", [Call(SERVE, CONSOLE, [FULL])], ids=[""])
def test_a_full_card_is_refused(ended: Ended) -> None:
    """75, with who holds the memory."""
    assert (75, b"", None) == (ended.code, ended.stdout, ended.report)
    assert "vllm-guard: refused: GPU 0 has 300 MiB free, this launch needs at least 1227 MiB (short by 927 MiB)" == ended.lines[0]
    assert ended.lines[-2].startswith(f"  fix: stop pid {os.getpid()} (frees 80000 MiB)")
    assert "  exit 75: may succeed later" == ended.lines[-1]


def shim(text: str) -> dict[str, str]:
    """A file that Python runs before the guard, where PYTHONPATH names its folder."""
    return {"shim/sitecustomize.py": text}


def bug_in(target: str) -> dict[str, str]:
    """A shim that replaces a function by one that raises, before the guard imports it by name."""
    module, _, name = target.rpartition(".")
    return shim(f"import vllm_guard.{module} as module\n\ndef broken(*args, **options):\n    raise AssertionError('planted')\n\nmodule.{name} = broken\n")


SHIMMED = {"PYTHONPATH": "{folder}/shim"}
BUGGY = ("serve", MODEL, "--guard-margin", "1GiB", "--invented", "1")
BUGS = {
    **{
        target: Call(BUGGY, SHIMMED, [BUSY], files=bug_in(target))
        for target in (
            "plan.decide.decide",
            "host.nvml.read_gpus",
            "host.vllm_install.read_install",
            "model.files.read_model",
            "command.rewrite.rewrite",
            "command.entrypoint.behind_entrypoint",
            "settings.load",
            "setting_layers.of_file",
            "render.text.verdict_line",
            "log.configure",
        )
    },
    "settle.should_settle": Call(BUGGY, {**SHIMMED, "VLLM_GUARD_SETTLE": "auto"}, [BUSY], files=bug_in("settle.should_settle")),
    **{target: Call((*BUGGY, "--guard-wait=2"), SHIMMED, [BUSY], files=bug_in(target)) for target in ("wait.outlook", "render.waiting.missing_text")},
    "a library that is gone": Call(BUGGY, SHIMMED, files=shim("import sys\nsys.modules['pydantic_settings'] = None\nprint('planted', file=sys.stderr)\n")),
    "a library that is broken": Call(BUGGY, SHIMMED, [BUSY], files={"shim/psutil.py": "raise RuntimeError('planted')\n"}),
    "a library of another world": Call(BUGGY, SHIMMED, files={"shim/structlog.py": "planted = 1\n"}),
}


@pytest.mark.parametrize("call", BUGS.values(), ids=BUGS)
def test_a_bug_of_the_guard_does_not_stop_vllm(ended: Ended) -> None:
    """The traceback is printed, and the untouched argv is executed without the guard's own flags."""
    assert (0, b"stub vllm\n", (*UNTOUCHED, b"--invented", b"1")) == (ended.code, ended.stdout, ended.reached)
    assert "Traceback (most recent call last):" in ended.stderr
    assert "vllm-guard: warning: the above is a bug of vllm-guard; starting vLLM with the command line as given" == ended.lines[-1]


@pytest.mark.parametrize("call", [Call(SERVE, SHIMMED, files=bug_in("plan.decide.decide"), wrapper=closing("2>&-"))], ids=[""])
def test_a_bug_with_a_closed_stderr_keeps_stdout_clean(ended: Ended) -> None:
    """Python prints to stdout where there is no stderr; stdout is vLLM's."""
    assert (0, b"stub vllm\n", UNTOUCHED) == (ended.code, ended.stdout, ended.reached)


WITHOUT = "import sys\nfor name in ('pydantic', 'pydantic_settings', 'psutil', 'pynvml', 'yaml', 'structlog'):\n    sys.modules[name] = None\n"


@pytest.mark.parametrize("call", [Call(SERVE, {**SHIMMED, **OFF}, files=shim(WITHOUT))], ids=[""])
def test_mode_off_needs_no_library(ended: Ended) -> None:
    """Somebody's upgrade does not even show."""
    assert (0, UNTOUCHED, "") == (ended.code, ended.reached, ended.stderr)


@pytest.mark.parametrize("call", [Call(SERVE, SHIMMED, files=shim("import sys\nsys.modules['pynvml'] = None\n"))], ids=[""])
def test_a_missing_binding_is_no_bug(ended: Ended) -> None:
    """Without pynvml nothing can be measured: 69."""
    assert (69, "vllm-guard: error: cannot read GPU memory: the Python module pynvml is missing") == (ended.code, ended.lines[0])


def signalled(host: Host, number: signal.Signals, *, as_pid_1: bool) -> int:
    """The exit status of a guard that gets this signal while it waits for memory to become steady."""
    host.cards(Card(free_mib=tuple((step / 10, 1000 + 500 * (step % 2)) for step in range(16))))
    wrapper = ["unshare", "-fp", "--kill-child"] if as_pid_1 else []
    environ = host.environment({"VLLM_GUARD_SETTLE": "auto"})
    with subprocess.Popen([*wrapper, str(GUARD), "serve", MODEL], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        os.kill(reading_guard(process.pid, as_pid_1=as_pid_1), number)
        return process.wait(10)


def reading_guard(pid: int, *, as_pid_1: bool) -> int:
    """The guard's pid, once it has loaded the driver."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] if as_pid_1 else [pid]
        for guard in children:
            if "libnvidia-ml" in Path(f"/proc/{guard}/maps").read_text():
                return guard
        time.sleep(0.02)
    msg = "the guard never read the driver"
    raise AssertionError(msg)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -15), (signal.SIGINT, -2)], ids=["TERM", "INT"])
def test_a_signal_while_checking_ends_the_guard(host: Host, number: signal.Signals, status: int) -> None:
    """Death by the signal, as any program."""
    assert status == signalled(host, number, as_pid_1=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a PID namespace")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"])
def test_a_signal_while_checking_ends_the_guard_as_pid_1(host: Host, number: signal.Signals, status: int) -> None:
    """The kernel would drop the signal there: 143 and 130."""
    assert status == signalled(host, number, as_pid_1=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a PID namespace")
@pytest.mark.parametrize("seconds", [0.06, 0.1, 0.15])
def test_pid_1_obeys_from_the_first_moment(host: Host, seconds: float) -> None:
    """While the libraries are still being imported."""
    host.cards(Card(free_mib=tuple((step / 10, 1000 + 500 * (step % 2)) for step in range(200))))
    environ = host.environment({"VLLM_GUARD_SETTLE": "auto"})
    command = ["unshare", "-fp", "--kill-child", str(GUARD), "serve", MODEL]
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 5
        while not children.read_text().split() and time.monotonic() < deadline:
            time.sleep(0.005)
        guard = int(children.read_text().split()[0])
        time.sleep(seconds)
        while process.poll() is None and time.monotonic() < deadline:
            os.kill(guard, signal.SIGTERM)  # before Python itself is up nobody can obey
            time.sleep(0.05)

        assert process.wait(5) == 143
        assert time.monotonic() < deadline


def test_an_unknown_release_and_unknown_flags_are_vllms_business(host: Host) -> None:
    """A release of the future with flags of the future starts, on an idle card and on a shared one, and the flags reach it untouched."""
    host.install("0.99.0")
    invented = ("--turbo", "--kv-cache-shards=3", "--plan-ahead", "7")
    idle = host.serve(*invented, environ=CONSOLE)
    host.cards(BUSY)
    busy = host.serve(*invented, environ=CONSOLE)

    reached = (*UNTOUCHED, *(word.encode() for word in invented))
    assert (reached, (*reached, b"--gpu-memory-utilization", b"0.3606")) == (idle.reached, busy.reached)
    assert any("0.99.0 is not known to this guard" in line for line in idle.lines[1:])
    assert any(line.endswith("left to vLLM: --turbo, --kv-cache-shards, --plan-ahead") for line in idle.lines[1:])


STRANGE = {"VLLM_GUARD_MARGN": "1"}


@pytest.mark.parametrize("call", [Call(SERVE, {**CONSOLE, **STRANGE}, [BUSY])], ids=[""])
def test_what_is_said_comes_in_one_order(ended: Ended) -> None:
    """Verdict, warnings, evidence; nothing of it on stdout."""
    assert (b"stub vllm\n", BUSY_ARGV) == (ended.stdout, ended.reached)
    assert ended.lines[0].startswith("vllm-guard: launch: ")
    assert "vllm-guard: warning: environment VLLM_GUARD_MARGN is no setting; the nearest known one is VLLM_GUARD_MARGIN" == ended.lines[1]
    assert ended.lines[2].startswith("  0.92 is vLLM's default and needs ")
    assert all(line.startswith("  ") for line in ended.lines[2:])


JSON = {**STRANGE, "VLLM_GUARD_LOG_FORMAT": "json"}
EVENTS: Mapping[str, tuple[Call, str, Sequence[str]]] = {
    "a launch": (Call(SERVE, STRANGE, [BUSY]), "launch", ["warning", "launch_decided"]),
    "a launch, asked for": (Call(SERVE, JSON, [BUSY]), "launch", ["warning", "launch_decided"]),
    "a refusal": (Call(SERVE, STRANGE, [FULL]), "refused", ["warning", "launch_refused"]),
    "no verdict": (Call((*SERVE, "-tp", "2"), JSON), "error", ["warning", "not_measured"]),
    "no vLLM": (Call((*SERVE, "--guard-vllm=/no/vllm"), JSON), "error", ["not_found"]),
    "a wrong setting": (Call((*SERVE, "--guard-margin=much"), STRANGE), "usage", ["usage_error"]),
}


@pytest.mark.parametrize(("call", "word", "events"), rows(EVENTS))
def test_json_events_replace_warnings_and_evidence(ended: Ended, word: str, events: Sequence[str]) -> None:
    """One JSON object a line; the verdict line stays text. Without a terminal that is the default."""
    said = [json.loads(line) for line in ended.lines[1:]]

    assert ended.lines[0].startswith(f"vllm-guard: {word}: ")
    assert list(events) == [event["event"] for event in said]
    assert all({"level", "timestamp"} <= event.keys() for event in said)


OBSERVE = ("serve", MODEL, "--guard-mode=observe")
OBSERVED: Mapping[str, tuple[Call, str]] = {
    "a launch as it is": (Call(OBSERVE, CONSOLE), "would launch with: --gpu-memory-utilization 0.92 unchanged"),
    "a change": (Call(OBSERVE, CONSOLE, [BUSY]), "would launch with: --gpu-memory-utilization 0.92 to 0.3606"),
    "a refusal": (Call(OBSERVE, CONSOLE, [FULL]), "would refuse: GPU 0 has 300 MiB free"),
    "nothing measured": (Call(OBSERVE, CONSOLE, init_error=NO_DRIVER), "would refuse: cannot read GPU memory: nvmlInit"),
    "nothing measured, tolerated": (
        Call(OBSERVE, {**CONSOLE, "VLLM_GUARD_UNMEASURED": "start"}, init_error=NO_DRIVER),
        "would launch with: the command line as given: cannot read GPU memory: nvmlInit",
    ),
}


@pytest.mark.parametrize(("call", "line"), rows(OBSERVED))
def test_observing_acts_on_nothing(ended: Ended, line: str) -> None:
    """The verdict is a warning, and vLLM starts with argv untouched whatever it is."""
    assert (0, UNTOUCHED) == (ended.code, ended.reached)
    assert ended.lines[0].startswith(f"vllm-guard: warning: {line}"), ended.lines[0]
    assert not any("  exit" in text for text in ended.lines)


FILES = {"off.toml": 'mode = "off"\n', "broken.toml": 'mode = "guard\n'}


def off(*words: str, **environ: str) -> Call:
    """A launch with mode off on a full card."""
    return Call((*SERVE, *words, "--port", "1"), {f"VLLM_GUARD_{name}": value for name, value in environ.items()}, [FULL], files=FILES)


MODES_OFF = {
    "flag": off("--guard-mode=off"),
    "flag of two words": off("--guard-mode", "OFF"),
    "empty flag": off("--guard-mode="),
    "environment": off(MODE="off"),
    "flag beats environment": off("--guard-mode=off", MODE="nonsense"),
    "beside flags that are wrong": off("--guard-invented=3", "--guard-margin", "much", "--guard-dry-run", MODE="off"),
    "beside settings that are wrong": off(MODE="off", MARGIN="much", CONFIG="/nowhere"),
    "beside a file that is broken": off(MODE="off", CONFIG="{folder}/broken.toml"),
    "file": off(CONFIG="{folder}/off.toml"),
}


@pytest.mark.parametrize("call", MODES_OFF.values(), ids=MODES_OFF)
def test_mode_off_starts_vllm_at_once(ended: Ended) -> None:
    """Nothing is measured or said, whatever else is broken."""
    assert (0, (*UNTOUCHED, b"--port", b"1"), b"stub vllm\n", "") == (ended.code, ended.reached, ended.stdout, ended.stderr)


def test_mode_off_finds_vllm_where_the_file_says(host: Host) -> None:
    """The one other setting that still counts."""
    config = host.folder / "config.toml"
    config.write_text(f'vllm = "{host.stub}"\nmargin = "much"\n')
    ended = host.serve(environ={**OFF, "VLLM_GUARD_CONFIG": str(config), "PATH": os.defpath})

    assert (0, UNTOUCHED) == (ended.code, ended.reached)


@pytest.mark.parametrize("words", [["--help=ModelConfig"], [MODEL, "--port", "1", "--version"]], ids=" ".join)
def test_help_and_version_after_serve_are_vllms(host: Host, words: Sequence[str]) -> None:
    """Executed without a check: nothing is measured or said."""
    host.cards(FULL)
    ended = host.run("serve", *words)

    assert (0, tuple(map(os.fsencode, ["serve", *words])), "") == (ended.code, ended.reached, ended.stderr)


@pytest.mark.parametrize("call", [Call(["-h"]), Call([*SERVE, "--guard-help"])], ids=["-h", "serve --guard-help"])
def test_the_guards_own_help(ended: Ended) -> None:
    """On stdout, without vLLM."""
    assert (0, "", None) == (ended.code, ended.stderr, ended.report)
    assert ended.stdout.startswith(b"usage: vllm-guard serve MODEL")


@pytest.mark.parametrize("call", [Call(["--version"]), Call([*SERVE, "--guard-version"])], ids=["--version", "serve --guard-version"])
def test_the_guards_own_version(ended: Ended) -> None:
    """Alone on a line."""
    assert (0, f"vllm-guard {__version__}\n".encode(), None) == (ended.code, ended.stdout, ended.report)


@pytest.mark.parametrize("call", [Call(["sevre", MODEL], CONSOLE), Call(["--guard-margin=1GiB"], CONSOLE)], ids=["a typing error", "only a flag of ours"])
def test_a_command_that_is_none_is_a_usage_error(ended: Ended) -> None:
    """64, with the command that is meant."""
    assert (64, b"", True) == (ended.code, ended.stdout, "vllm-guard serve MODEL" in ended.lines[1])
    assert ended.lines[0].startswith("vllm-guard: usage: ")


def test_options_alone_are_a_server(host: Host) -> None:
    """An image whose entrypoint had no `serve` keeps its arguments; the guard's flags may stand anywhere before a `--`."""
    host.cards(BUSY)
    guarded = host.run("--guard-margin=2GiB", "--model", MODEL, "--port", "1")
    off = host.run(f"--model={MODEL}", "--port", "1", environ=OFF)

    assert (b"serve", b"--model", MODEL.encode(), b"--port", b"1", b"--gpu-memory-utilization", b"0.3481") == guarded.reached
    assert (b"serve", b"--model=" + MODEL.encode(), b"--port", b"1") == off.reached


YAML = {"vllm.yaml": "gpu-memory-utilization: 0.8\nport: 1\n"}


@pytest.mark.parametrize("call", [Call((*SERVE, "--config", "{folder}/vllm.yaml"), CONSOLE, [BUSY], files=YAML)], ids=[""])
def test_a_yaml_value_is_lowered_by_a_flag(ended: Ended) -> None:
    """Argv beats the file that `--config FILE` names."""
    assert (b"--gpu-memory-utilization", b"0.3606") == ended.reached[-2:]
    assert ended.lines[0].startswith("vllm-guard: launch: --gpu-memory-utilization 0.8 to 0.3606 ")


@pytest.mark.parametrize("call", [Call((*SERVE, "--config={folder}/vllm.yaml"), CONSOLE, [BUSY], files=YAML)], ids=[""])
def test_a_file_that_vllm_ignores_is_ignored(ended: Ended) -> None:
    """vLLM reads no `--config=FILE`, and that is said."""
    assert ended.lines[0].startswith("vllm-guard: launch: --gpu-memory-utilization 0.92 to 0.3606 ")
    assert any("only as two words, --config FILE: this one is ignored" in line for line in ended.lines[1:])


UNMEASURED: Mapping[str, tuple[Call, int]] = {
    "start": (Call(SERVE, {**CONSOLE, "VLLM_GUARD_UNMEASURED": "start"}, init_error=NO_DRIVER), 0),
    "an unknown build is taken for CUDA's": (Call(SERVE, CONSOLE, init_error=NO_DRIVER, version=None), 69),
    "another build is not judged": (Call(SERVE, {**CONSOLE, "VLLM_GUARD_UNMEASURED": "refuse"}, init_error=NO_DRIVER, version="0.32.0+rocm700"), 0),
}


@pytest.mark.parametrize(("call", "code"), rows(UNMEASURED))
def test_what_cannot_be_measured(ended: Ended, code: int) -> None:
    """No verdict is no launch for CUDA, unless the operator says otherwise."""
    assert (code, None if code else UNTOUCHED) == (ended.code, ended.reached if ended.report else None)
    assert ended.lines[0].startswith("vllm-guard: error: " if code else "vllm-guard: ")


def test_the_termination_log_is_an_existing_plain_file_or_nothing(host: Host) -> None:
    """Never created, no link followed, no pipe waited for; the verdict does not depend on it."""
    kept = host.folder / "kept"
    kept.write_text("before")
    link, missing, pipe = host.folder / "link", host.folder / "missing", host.folder / "pipe"
    link.symlink_to(kept)
    os.mkfifo(pipe)
    host.cards(FULL)
    codes = [host.serve(f"--guard-termination-log={path}").code for path in (link, missing, pipe)]

    assert ([75] * 3, "before", False) == (codes, kept.read_text(), missing.exists())


def test_the_termination_log_gets_what_a_file_of_settings_asks_for(host: Host) -> None:
    """Whole and at most 4 KiB, replacing what was there; also for an error after the settings were read."""
    log, config = host.folder / "log", host.folder / "config.toml"
    log.write_text("x" * 9000)
    config.write_text(f'termination_log = "{log}"\nlog_format = "console"\n')
    host.cards(FULL)
    refused = host.serve(environ={"VLLM_GUARD_CONFIG": str(config)})
    said = log.read_text()
    missing = host.serve(environ={"VLLM_GUARD_CONFIG": str(config), "PATH": "/nowhere"})

    assert (75, refused.stderr, 127, missing.stderr) == (refused.code, said, missing.code, log.read_text())


def test_a_long_refusal_is_cut_at_4_kib_in_the_termination_log(host: Host) -> None:
    """Kubernetes takes no more."""
    log = host.folder / "log"
    log.touch()
    host.cards(*[Card(free_mib=300, name="N" * 90) for _ in range(16)])
    ended = host.serve("-tp", "16", environ={**CONSOLE, "VLLM_GUARD_TERMINATION_LOG": str(log)})

    assert (75, True) == (ended.code, len(ended.stderr) > 4096)
    assert ended.stderr[: log.stat().st_size] == log.read_text()
    assert 4096 - 4 <= log.stat().st_size <= 4096


SECRETS = ("sk-1", "sk-2", "sk-3", "hf_4", "pass5", "deep6", "flat7")
SECRET_WORDS = (
    *("--api-key", "sk-1", "sk-2"),
    "--api-k=sk-3",
    *("--hf-tok", "hf_4"),
    *("--otlp-traces-endpoint", "http://user:pass5@collector:4317"),
    *("--kv-transfer-config", '{"kv_connector":"X","kv_connector_extra_config":{"client_secret":"deep6"}}'),
    *("--additional-config.auth_token", "flat7"),
)


def leaks(text: str) -> list[str]:
    """The secrets in a text."""
    return [secret for secret in SECRETS if secret in text]


def secretive(log_format: str, card: Card) -> Call:
    """A launch with secrets everywhere."""
    return Call((*SERVE, *SECRET_WORDS), {**LOGGED, "VLLM_GUARD_LOG_FORMAT": log_format}, [card], files={"log": ""})


@pytest.mark.parametrize(
    ("call", "code"), [(secretive("json", BUSY), 0), (secretive("console", FULL), 75), (secretive("json", FULL), 75)], ids=["launch", "refusal", "event"]
)
def test_secrets_reach_vllm_and_nobody_else(ended: Ended, code: int) -> None:
    """Not stderr, not the termination log; argv has them as they were given."""
    assert (code, [], []) == (ended.code, leaks(ended.stderr), leaks((ended.folder / "log").read_text()))
    if ended.report:
        assert tuple(map(os.fsencode, SECRET_WORDS)) == ended.reached[2:-2]


COMPLAINTS = {
    "a key that belongs to no option": ("--api-key=sk-1", "sk-2"),
    "a setting that holds a password": ("--guard-margin=http://user:pass5@host",),
    "a program that holds a password": ("--guard-vllm=http://user:pass5@host/vllm",),
    "a value that vLLM rejects": ("--max-model-len", '{"token": "flat7"}'),
}


@pytest.mark.parametrize("call", [Call((*SERVE, *words), CONSOLE) for words in COMPLAINTS.values()], ids=COMPLAINTS)
def test_complaints_do_not_repeat_secrets(ended: Ended) -> None:
    """Whatever is wrong with them."""
    assert ([], True) == (leaks(ended.stderr), bool(ended.lines))


def deaf(streams: str, card: Card) -> Call:
    """A guard whose streams are closed or full."""
    return Call(SERVE, CONSOLE, [card], wrapper=closing(streams))


@pytest.mark.parametrize(
    ("call", "descriptors"),
    [(deaf(">&- 2>&-", BUSY), {0}), (deaf("<&- 2>&-", BUSY), {1}), (deaf("2>/dev/full", BUSY), {0, 1, 2})],
    ids=["stdout and stderr", "stdin and stderr", "full"],
)
def test_a_stderr_that_takes_nothing_does_not_stop_a_launch(ended: Ended, descriptors: set[int]) -> None:
    """vLLM gets just the descriptors that the guard was given, and the claim's, which never becomes a standard stream."""
    assert ended.report is not None
    assert (BUSY_ARGV, descriptors | {CLAIM}) == (ended.reached, set(ended.report.descriptors))


@pytest.mark.parametrize("call", [deaf("2>&-", FULL), deaf("2>/dev/full", FULL)], ids=["closed", "full"])
def test_a_stderr_that_takes_nothing_does_not_change_an_exit_code(ended: Ended) -> None:
    """A refusal refuses."""
    assert (75, b"", None) == (ended.code, ended.stdout, ended.report)


BYTES = (b"--served-model-name", b"\xff\xfe\x80 caf\xe9", "na\u00efve \u2603".encode(), b"a\nb\x1b[31m")
LOCALES: Mapping[str, Mapping[str, str]] = {"plain": {}, "POSIX without UTF-8": {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}, "mode off": OFF}


@pytest.mark.parametrize("call", [Call((*SERVE, *map(os.fsdecode, BYTES)), environ, [BUSY]) for environ in LOCALES.values()], ids=LOCALES)
def test_bytes_that_are_no_text_reach_vllm(ended: Ended) -> None:
    """Argv is bytes."""
    assert BYTES == ended.reached[2:6]
    assert "\x1b" not in ended.stderr


def test_an_argv_of_two_thousand_words(host: Host) -> None:
    """Takes no noticeable time."""
    host.cards(BUSY)
    many = [f"--invented-{number}=x" for number in range(1000)] + ["--lora-modules", *(f"name{number}=/path" for number in range(999))]
    began = time.monotonic()
    ended = host.serve(*many)

    assert (*map(os.fsencode, many), b"--gpu-memory-utilization", b"0.3606") == ended.reached[2:]
    assert time.monotonic() - began < 3


def test_a_working_folder_that_is_gone(host: Host) -> None:
    """Nothing needs it."""
    gone = host.folder / "gone"
    gone.mkdir()
    host.cards(BUSY)
    ended = host.serve(wrapper=["sh", "-c", f'rmdir "{gone}"; exec "$0" "$@"'], cwd=gone, environ={"PATH": f":{host.folder / 'bin'}:{os.defpath}"})

    assert (0, b"0.3606", False) == (ended.code, ended.reached[-1], "Traceback" in ended.stderr)


def test_a_guard_that_is_started_from_its_own_folder_finds_the_vllm_beside_it(host: Host) -> None:
    """`./vllm-guard` is a path, not a name that is looked up."""
    host.cards(BUSY)
    (host.stub.parent / "vllm-guard").symlink_to(GUARD)
    ended = host.serve(wrapper=["sh", "-c", 'exec ./vllm-guard "$@"'], cwd=host.stub.parent, environ={"PATH": os.defpath})

    assert (0, BUSY_ARGV) == (ended.code, ended.reached)


NOBODY = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]


def test_a_user_whom_nobody_knows(host: Host) -> None:
    """A container's random uid without HOME, in a folder that it may not read."""
    if os.geteuid() != 0 or subprocess.run([*NOBODY, str(GUARD), "--guard-version"], check=False, capture_output=True).returncode != 0:
        pytest.skip("needs root, and a guard that others may run")
    closed = host.folder / "closed"
    closed.mkdir(mode=0o700)
    host.cards(BUSY)
    for folder in (host.driver, host.folder, host.folder.parent, host.folder.parent.parent):
        folder.chmod(0o711)  # pytest's own folders, closed to others
    ended = host.serve(wrapper=NOBODY, cwd=closed, environ={"HOME": None, "STUB_REPORT": None, "VLLM_GUARD_LOG_FORMAT": "console"})

    assert (0, b"stub vllm\n") == (ended.code, ended.stdout)
    assert ended.lines[0].startswith("vllm-guard: launch: --gpu-memory-utilization 0.92 to 0.3606")


def test_an_interpreter_that_may_not_be_reached(host: Host) -> None:
    """It lies in a folder that is closed to this user: 126 and no traceback."""
    if os.geteuid() != 0 or subprocess.run([*NOBODY, str(GUARD), "--guard-version"], check=False, capture_output=True).returncode != 0:
        pytest.skip("needs root, and a guard that others may run")
    closed = host.folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to("/bin/sh")
    host.stub.write_text(f"#!{closed}/python\n")
    for folder in (host.driver, host.folder, host.folder.parent, host.folder.parent.parent):
        folder.chmod(0o711)  # pytest's own folders, closed to others
    ended = host.serve(wrapper=NOBODY, environ={"HOME": None, "STUB_REPORT": None, "VLLM_GUARD_LOG_FORMAT": "console"})

    assert (126, f"vllm-guard: error: cannot run '{host.stub}': Permission denied") == (ended.code, ended.lines[0])


def hostile_models(folder: Path) -> list[str]:
    """Models that are something else."""
    os.mkfifo(folder / "pipe")
    for name in ("pipe-config", "huge", "deep", "list"):
        (folder / name).mkdir()
    os.mkfifo(folder / "pipe-config" / "config.json")
    with (folder / "huge" / "config.json").open("w") as file:
        file.truncate(1 << 33)
    (folder / "deep" / "config.json").write_text("[" * 100_000)
    (folder / "list" / "config.json").write_text('{"architectures": {"a": 1}, "max_position_embeddings": "many", "text_config": [1]}')
    return [*(str(folder / name) for name in ("pipe", "pipe-config", "huge", "deep", "list")), "m" * 5000]


def test_a_hostile_model_is_an_unknown_model(host: Host) -> None:
    """A pipe, a file of 8 GiB, JSON as deep as a well: the launch goes on, at once."""
    host.cards(BUSY)
    for model in hostile_models(host.folder):
        ended = host.run("serve", model, timeout_seconds=5)

        assert (0, b"0.3606") == (ended.code, ended.reached[-1]), model
        assert "Traceback" not in ended.stderr


def test_hostile_settings_and_config_files_do_not_hang(host: Host) -> None:
    """Pipes where files should be."""
    pipe = host.folder / "pipe.yaml"
    os.mkfifo(pipe)
    yaml = host.serve("--config", str(pipe), timeout_seconds=20)
    toml = host.serve(environ={"VLLM_GUARD_CONFIG": str(pipe)}, timeout_seconds=20)

    assert (0, 64) == (yaml.code, toml.code)
    assert "Traceback" not in yaml.stderr + toml.stderr
