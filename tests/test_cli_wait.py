"""`--guard-wait` of the shipped command: when it ends, what it says, and whom it obeys."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from guard_process import BUSY, BUSY_ARGV, FULL, GUARD, MODEL, NEIGHBOUR, UNTOUCHED, Call, Ended, Host, rows
from model_files import stored, write_checkpoint
from other_worlds import booted_systemd, wait_for
from standin_driver import Card, Listed

CONSOLE = {"VLLM_GUARD_LOG_FORMAT": "console"}
SERVE = ("serve", MODEL)
NEEDS = "--gpu-memory-utilization 0.92 needs about 76258 MiB"


def releasing(seconds: float) -> Card:
    """A card that a neighbour holds for so long after the guard's first look at it."""
    return Card(processes=(Listed(NEIGHBOUR, 50_000, until_seconds=seconds),))


def waiting(seconds: float, card: Card, *words: str, environ: Mapping[str, str] = CONSOLE) -> Call:
    """A launch that waits for so long."""
    return Call((*SERVE, f"--guard-wait={seconds:g}", *words), environ, [card])


ENDS: Mapping[str, tuple[Call, int, tuple[bytes, ...] | None, float, float]] = {
    "an idle card is not waited for": (waiting(60, Card()), 0, UNTOUCHED, 0, 5),
    "a release is waited for": (waiting(60, releasing(2.5)), 0, UNTOUCHED, 3, 15),
    "nobody leaves: what fits is taken": (waiting(3, BUSY), 0, BUSY_ARGV, 3, 15),
    "nobody leaves and nothing fits": (waiting(3, FULL), 75, None, 3, 15),
    "no threshold could be met": (waiting(60, FULL, "--guard-min-free=200GiB"), 75, None, 0, 5),
    "a dry run": (waiting(60, BUSY, "--guard-dry-run"), 0, None, 0, 5),
    "check": (Call(("check", MODEL, "--guard-wait=60"), CONSOLE, [FULL]), 75, None, 0, 5),
    "whoever only observes": (waiting(60, FULL, "--guard-mode=observe"), 0, UNTOUCHED, 0, 5),
    "another launcher": (Call(("run", "--guard-wait=60", "--", "vllm", *SERVE), CONSOLE, [releasing(1)]), 0, UNTOUCHED, 1.5, 15),
}


@pytest.mark.parametrize(("call", "code", "reached", "least", "most"), rows(ENDS))
def test_a_wait_ends(ended: Ended, code: int, reached: tuple[bytes, ...] | None, least: float, most: float) -> None:
    """With what fits, or a refusal, in the time of the table (on a busy machine)."""
    assert (code, reached) == (ended.code, ended.reached if ended.report else None)
    assert least <= ended.seconds < most


def test_a_driver_that_is_loaded_late_is_waited_for(host: Host) -> None:
    """As at boot; in the end there is no verdict."""
    host.cards(Card(), init_error=((0.0, 9), (1.5, 0)))
    late = host.serve("--guard-wait=30", environ=CONSOLE)
    host.cards(Card(), init_error=9)
    never = host.serve("--guard-wait=2.5", environ=CONSOLE)

    assert (0, UNTOUCHED, 69) == (late.code, late.reached, never.code)
    assert never.lines[0].endswith("cannot read GPU memory: nvmlInit: the nvidia kernel module is not loaded")
    assert never.lines[1].startswith("vllm-guard: error: ")


def test_what_never_fits_is_refused_for_good_at_once(host: Host, tmp_path: Path) -> None:
    """78, and why it did not wait."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 128_256, "hidden_size": 16_384}
    config |= {"intermediate_size": 53_248, "num_hidden_layers": 40, "num_attention_heads": 128, "num_key_value_heads": 8, "head_dim": 128}
    config |= {"tie_word_embeddings": False, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    model = write_checkpoint(tmp_path / "model", config, stored(config))
    host.cards(BUSY)
    ended = host.run("serve", str(model), "--guard-wait=60", environ=CONSOLE)

    assert (78, True) == (ended.code, ended.seconds < 5)
    assert "vllm-guard: no memory that others free could mend this: it is not waited for" == ended.lines[0]
    assert ended.lines[1].startswith("vllm-guard: refused: ")


@pytest.mark.parametrize("call", [waiting(3, BUSY)], ids=[""])
def test_a_wait_says_what_is_missing_and_who_holds_it(ended: Ended) -> None:
    """One line in the first ten seconds, then the verdict."""
    said = rf"vllm-guard: waiting, [01] s left: GPU 0 has 31080 MiB free, {NEEDS} \(short by 45178 MiB\), pid {NEIGHBOUR} \(.+\) holds 50000 MiB"

    assert re.fullmatch(said, ended.lines[0]), ended.lines[0]
    assert ended.lines[1].startswith("vllm-guard: launch: --gpu-memory-utilization 0.92 to 0.3606 ")


@pytest.mark.parametrize("call", [waiting(3, BUSY, environ={}), waiting(3, BUSY, environ={"VLLM_GUARD_LOG_FORMAT": "json"})], ids=["no terminal", "json"])
def test_a_wait_is_an_event_for_machines(ended: Ended) -> None:
    """With the same figures."""
    event = json.loads(ended.lines[0])

    missing = event["missing"]
    holder = missing["holder"]
    assert ("waiting", "info", "cuda", 0) == (event["event"], event["level"], missing["device"]["kind"], missing["device"]["ordinal"])
    assert (31_080 << 20, NEIGHBOUR, 50_000 << 20) == (missing["have_bytes"], holder["pid"], holder["used_bytes"])
    assert missing["need_bytes"] > missing["have_bytes"]
    assert 2 <= event["waited_seconds"] <= 3 - event["left_seconds"] + 0.2
    assert ended.lines[1].startswith("vllm-guard: launch: ")


def test_on_a_terminal_one_line_lives(host: Host) -> None:
    """Drawn over at each moment, no wider than the window, and gone before the verdict."""
    host.cards(releasing(2.5))
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 70, 0, 0))
    with subprocess.Popen(
        [str(GUARD), *SERVE, "--guard-wait=30"], env=host.environment({"STUB_REPORT": None}), stdout=subprocess.DEVNULL, stderr=follower
    ) as guard:
        os.close(follower)
        drawn = _drawn(leader)
        assert guard.wait(20) == 0
    os.close(leader)
    *moments, last = drawn.split("\r\x1b[K")[1:]

    assert len(moments) >= 3
    assert moments[0].startswith("vllm-guard: waiting, 30 s left: GPU 0 has 31080 MiB free, --gpu-mem")
    assert {69} >= {len(moment) for moment in moments}
    assert last.startswith("vllm-guard: launch: --gpu-memory-utilization 0.92 unchanged")
    assert 1 == drawn.count("\n")


def _drawn(leader: int) -> str:
    """Everything that a terminal got until it was closed."""
    drawn, deadline = b"", time.monotonic() + 20
    while time.monotonic() < deadline:
        if select.select([leader], [], [], 0.2)[0]:
            try:
                drawn += os.read(leader, 65_536)
            except OSError:  # nobody has the other end any more
                return drawn.decode()
    raise AssertionError(drawn)


@contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    """A service manager's socket; @ is the abstract namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + address[1:] if address.startswith("@") else address)
        yield listener


def heard(listener: socket.socket) -> list[dict[str, str]]:
    """The datagrams that came, in order."""
    datagrams = []
    while select.select([listener], [], [], 0)[0]:
        datagrams.append(dict(line.split("=", 1) for line in listener.recv(4096).decode().splitlines()))
    return datagrams


@pytest.mark.parametrize("abstract", [False, True], ids=["a path", "an abstract name"])
def test_a_service_manager_hears_of_the_wait(host: Host, abstract: bool) -> None:  # noqa: FBT001 - a column
    """At every moment what is missing and more time; at the end ten minutes for vLLM, which finds the socket as it was."""
    address = f"@vllm-guard-test-{os.getpid()}" if abstract else str(host.folder / "notify")
    host.cards(BUSY)
    with manager(address) as listener:
        ended = host.serve("--guard-wait=2", environ={**CONSOLE, "NOTIFY_SOCKET": address})
        *moments, last = heard(listener)

    assert ended.report is not None
    assert f"NOTIFY_SOCKET={address}".encode() in ended.report.environ
    assert len(moments) >= 2
    assert {"60000000"} == {moment["EXTEND_TIMEOUT_USEC"] for moment in moments}
    assert moments[0]["STATUS"].startswith("waiting, 2 s left: GPU 0 has 31080 MiB free")
    assert {"STATUS": "waited 2 s for GPU memory", "EXTEND_TIMEOUT_USEC": "600000000"} == last


@pytest.mark.parametrize("address", ["/no/such/socket", "vsock:2:1234", "", "@nobody-listens", "/" + "x" * 300])
def test_a_service_manager_that_is_not_there_is_no_failure(host: Host, address: str) -> None:
    """Nothing is said of it."""
    host.cards(BUSY)
    ended = host.serve("--guard-wait=0.5", environ={**CONSOLE, "NOTIFY_SOCKET": address})

    assert (BUSY_ARGV, False) == (ended.reached, "Traceback" in ended.stderr)


def test_a_launch_without_a_wait_sends_nothing(host: Host) -> None:
    """The start timeout stays the unit's own."""
    address = str(host.folder / "notify")
    with manager(address) as listener:
        host.serve("--guard-wait=60", environ={"NOTIFY_SOCKET": address})

        assert [] == heard(listener)


SIGNALS = {"TERM": (signal.SIGTERM, -15, 143), "INT": (signal.SIGINT, -2, 130)}
PID_1 = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")
FOR_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a PID namespace")


@pytest.mark.parametrize(("number", "status", "status_of_pid_1"), SIGNALS.values(), ids=SIGNALS)
@pytest.mark.parametrize("wrapper", [pytest.param((), id="elsewhere"), pytest.param(PID_1, id="as PID 1", marks=FOR_ROOT)])
def test_a_signal_ends_a_wait(host: Host, wrapper: Sequence[str], number: signal.Signals, status: int, status_of_pid_1: int) -> None:
    """Within two seconds, as any program; as PID 1, where the kernel drops it, with 143 and 130."""
    address = str(host.folder / "notify")
    host.cards(FULL)
    environ = host.environment({"NOTIFY_SOCKET": address})
    with manager(address) as listener, subprocess.Popen([*wrapper, str(GUARD), *SERVE, "--guard-wait=60"], env=environ, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: select.select([listener], [], [], 0)[0])  # it waits
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        began = time.monotonic()
        os.kill(int(children[0]) if wrapper else process.pid, number)

        assert process.wait(10) == (status_of_pid_1 if wrapper else status)
        assert time.monotonic() - began < 2


UNIT = """
[Service]
Type=notify
NotifyAccess=all
TimeoutStartSec=3
ExecStart={guard} serve {model} --guard-wait=10
{environment}
"""


@pytest.mark.slow
def test_a_unit_of_systemd_survives_a_wait_longer_than_its_start_timeout(host: Host) -> None:
    """Type=notify with three seconds to start, ten of waiting, and a vLLM that says it is ready five seconds later."""
    host.cards(BUSY)
    host.stub.write_text("#!/bin/sh\nsleep 5\nsystemd-notify --ready\nexec sleep 60\n")
    environment = "\n".join(f'Environment="{name}={value}"' for name, value in host.environment(CONSOLE).items())
    (host.folder / "vllm.service").write_text(UNIT.format(guard=GUARD, model=MODEL, environment=environment))
    checkout = Path(__file__).resolve().parent.parent
    interpreter = Path(sys.executable).resolve().parent.parent
    outside_usr = [folder for folder in {checkout, interpreter, Path(sys.prefix)} if not folder.is_relative_to("/usr")]
    with booted_systemd(*outside_usr, host.folder, host.driver) as inside:
        subprocess.run([*inside, "sh", "-c", f"cp {host.folder}/vllm.service /run/systemd/system/ && systemctl daemon-reload"], check=True)
        began = time.monotonic()
        start = subprocess.Popen([*inside, "systemctl", "start", "vllm.service"])
        told = wait_for(lambda: _property(inside, "StatusText"))
        started = start.wait(60)
        seconds = time.monotonic() - began
        journal = subprocess.run([*inside, "journalctl", "--unit=vllm", "--output=cat", "--no-pager"], check=True, capture_output=True, text=True).stdout
        told_at_last = _property(inside, "StatusText")

    assert (0, True) == (started, 15 <= seconds < 40), journal
    assert told.startswith("waiting, ")
    assert told_at_last == "waited 10 s for GPU memory"
    assert f"GPU 0 has 31080 MiB free, {NEEDS}" in journal


def _property(inside: Sequence[str], name: str) -> str:
    show = [*inside, "systemctl", "show", "--property", name, "--value", "vllm.service"]
    return subprocess.run(show, check=True, capture_output=True, text=True).stdout.strip()
