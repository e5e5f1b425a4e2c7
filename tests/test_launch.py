"""The guard becomes vLLM: what the program gets, and what is said when it cannot be run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from stub_vllm import Report, read_report, write_stub

from vllm_guard.errors import LaunchError
from vllm_guard.launch import child_environment, launch

DRIVER = """
import os, sys
from vllm_guard import launch
{before}
print("said before exec")
launch.launch(sys.argv[1:], os.environ)
"""


@dataclass(frozen=True)
class Run:
    """One launch of the stub by a process of its own."""

    pid: int
    returncode: int
    stdout: bytes
    report: Report


@dataclass(frozen=True)
class Launcher:
    """Launches the stub in `folder`."""

    folder: Path
    stub: Path

    def run(
        self,
        words: Sequence[bytes] = (b"serve", b"m"),
        *,
        environ: Mapping[bytes, bytes] | None = None,
        before: str = "",
        wrapper: Sequence[str] = (),
        inherited: Sequence[int] = (),
        program: str | None = None,
    ) -> Run:
        """What came of it. `before` runs in the launching process first; `wrapper` starts that process."""
        argv: list[str | bytes] = [*wrapper, sys.executable, "-c", DRIVER.format(before=before), program or str(self.stub), *words]
        with subprocess.Popen(
            argv,
            env={b"PATH": os.environb[b"PATH"], b"STUB_REPORT": os.fsencode(self.folder), **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=self.folder,
            umask=0o027,
            pass_fds=inherited,
        ) as process:
            stdout, _ = process.communicate(timeout=30)
        return Run(process.pid, process.returncode, stdout, read_report(self.folder))


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """A stub in a folder of its own, reporting beside it."""
    (tmp_path / "report").mkdir()
    return Launcher(tmp_path / "report", write_stub(tmp_path))


def test_the_process_becomes_the_program(launcher: Launcher) -> None:
    """Process id, working folder and umask stay, and text not yet flushed comes out first."""
    run = launcher.run()

    assert run.pid == run.report.pid
    assert launcher.folder == run.report.folder
    assert run.report.umask == 0o027
    assert run.stdout == b"said before exec\nstub vllm\n"
    assert run.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), id="no words at all"),
        pytest.param((b"serve", b"", b" ", b"a b", b"two\nlines", b"--x=$HOME;'\"\\"), id="nothing is quoted, split or expanded"),
        pytest.param((b"serve", "modèle".encode(), b"\xff\xfe\x80", b"\xed\xb3\xbf"), id="bytes that are no text"),
        pytest.param((b"serve", b"--", b"--guard-margin", b"1"), id="whatever it is told to run"),
    ],
)
def test_every_word_arrives_byte_by_byte(launcher: Launcher, words: tuple[bytes, ...]) -> None:
    """The argv is the caller's; launch changes nothing in it."""
    assert (os.fsencode(launcher.stub), *words) == launcher.run(words).report.argv


@pytest.mark.parametrize(
    ("given", "removed"),
    [
        pytest.param({}, {}, id="C locale by default, where Python sets LC_CTYPE"),
        pytest.param({b"LC_ALL": b"C"}, {}, id="LC_ALL=C"),
        pytest.param({b"LC_CTYPE": b"C"}, {}, id="LC_CTYPE=C, which Python replaces"),
        pytest.param({b"LC_CTYPE": b"C.UTF-8", b"LANG": b"C"}, {}, id="LC_CTYPE of the user's own"),
        pytest.param({b"A": b"", b"B": b"\xff=\xfe", b"VLLM_PORT": b"1", b"vllm_guard_x": b"1"}, {}, id="empty, not text, vLLM's own"),
        pytest.param({b"Z": b"1"}, {b"VLLM_GUARD_MARGIN": b"1", b"VLLM_GUARD_PORT_80_TCP": b"x", b"VLLM_GUARD_": b""}, id="the guard's, known or not"),
    ],
)
def test_the_environment_is_as_it_was_without_the_guards_variables(launcher: Launcher, given: dict[bytes, bytes], removed: dict[bytes, bytes]) -> None:
    """Same names, same bytes, same order, less VLLM_GUARD_*."""
    run = launcher.run(environ={**removed, **given})

    expected = {b"PATH": os.environb[b"PATH"], b"STUB_REPORT": os.fsencode(launcher.folder), **given}
    assert tuple(name + b"=" + value for name, value in expected.items()) == run.report.environ


def test_no_descriptor_of_ours_goes_along(launcher: Launcher) -> None:
    """Files that the guard holds are closed, standard streams stay."""
    run = launcher.run(before="held = [open('/dev/null'), os.pipe()]")

    assert frozenset({0, 1, 2}) == run.report.descriptors


def test_an_inherited_descriptor_stays(launcher: Launcher) -> None:
    """Socket activation passes descriptors from 3 on."""
    read_end, write_end = os.pipe()
    try:
        run = launcher.run(inherited=(read_end,))
    finally:
        os.close(read_end)
        os.close(write_end)

    assert frozenset({0, 1, 2, read_end}) == run.report.descriptors


def test_signals_are_as_before_python(launcher: Launcher) -> None:
    """SIGPIPE and SIGXFSZ, which Python ignores, have their default action again, and none is blocked."""
    run = launcher.run()

    assert frozenset() == run.report.ignored
    assert frozenset() == run.report.blocked


def test_an_interrupt_that_was_ignored_stays_ignored(launcher: Launcher) -> None:
    """A shell's background job ignores SIGINT; so does vLLM there without the guard."""
    run = launcher.run(wrapper=("sh", "-c", 'trap "" INT; exec "$@"', "sh"))

    assert frozenset({signal.SIGINT}) == run.report.ignored


@pytest.mark.parametrize("status", [0, 1, 2, 75, 130, 255])
def test_the_exit_status_is_vllms(launcher: Launcher, status: int) -> None:
    """After exec nobody stands in between."""
    assert status == launcher.run(environ={b"STUB_EXIT": str(status).encode()}).returncode


@pytest.mark.parametrize("name", ["TERM", "INT", "KILL", "PIPE"])
@pytest.mark.parametrize(
    "before", [pytest.param("", id="plain"), pytest.param("os.getpid = lambda: 1; launch.handle_signals_as_pid_1()", id="after handling as PID 1")]
)
def test_death_by_signal_is_vllms(launcher: Launcher, name: str, before: str) -> None:
    """The supervisor sees the signal itself: no handler of ours is left."""
    run = launcher.run(environ={b"STUB_SIGNAL": name.encode()}, before=before)

    assert -signal.Signals[f"SIG{name}"] == run.returncode


def test_a_bare_name_is_looked_up_on_the_path(launcher: Launcher) -> None:
    """As a shell would, for `run -- vllm …`; the name itself stays what was typed."""
    run = launcher.run(program="vllm", environ={b"PATH": os.fsencode(launcher.stub.parent) + b":" + os.environb[b"PATH"]})

    assert run.stdout.endswith(b"stub vllm\n")


@pytest.mark.parametrize(
    ("wrapper", "before"),
    [
        pytest.param(("sh", "-c", 'exec "$@" >&-', "sh"), "", id="closed"),
        pytest.param((), "r, w = os.pipe(); os.close(r); os.dup2(w, 1)", id="a pipe that nobody reads"),
    ],
)
def test_a_stdout_that_cannot_be_written_does_not_keep_vllm_from_starting(launcher: Launcher, wrapper: tuple[str, ...], before: str) -> None:
    """The text is lost, the launch is not."""
    run = launcher.run(wrapper=wrapper, before=before)

    assert run.pid == run.report.pid


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("pid_1", [True, False])
def test_a_signal_ends_the_check(*, number: signal.Signals, status: int, pid_1: bool) -> None:
    """As PID 1 by an exit status of its own, elsewhere by the signal."""
    patch = "os.getpid = lambda: 1" if pid_1 else ""
    code = f"import os, time\nfrom vllm_guard import launch\n{patch}\nlaunch.handle_signals_as_pid_1()\nprint(flush=True)\ntime.sleep(30)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        returncode = process.wait(timeout=30)

    assert (status if pid_1 else -number) == returncode


def _script(folder: Path, first_line: str, mode: int = 0o755) -> str:
    file = folder / "program"
    file.write_text(f"{first_line}\nexit 0\n")
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize(
    ("first_line", "mode", "expected"),
    [
        pytest.param("#!/bin/sh", 0o644, "Permission denied", id="not executable"),
        pytest.param("exit 0", 0o755, "neither a program for this machine nor a script", id="no #! line"),
        pytest.param("#!/nowhere/python -u", 0o755, "its interpreter '/nowhere/python' is missing", id="interpreter is gone"),
    ],
)
def test_a_program_that_cannot_run_is_126(tmp_path: Path, first_line: str, mode: int, expected: str) -> None:
    """It is there, and the message says what is wrong with it."""
    with pytest.raises(LaunchError) as caught:
        launch([_script(tmp_path, first_line, mode)], {})

    assert caught.value.exit_code == 126
    assert expected in caught.value.message


def test_a_folder_is_126(tmp_path: Path) -> None:
    """A folder is found and cannot be run."""
    with pytest.raises(LaunchError) as caught:
        launch([str(tmp_path)], {})

    assert caught.value.exit_code == 126


def test_a_bare_name_whose_interpreter_is_gone_is_126(tmp_path: Path) -> None:
    """The kernel says "no such file" of the script; the message names the file and its interpreter."""
    script = _script(tmp_path, "#!/nowhere/python")

    with pytest.raises(LaunchError, match=rf"'{script}': its interpreter '/nowhere/python' is missing"):
        launch(["program"], {"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("program", "path"),
    [
        pytest.param("/nowhere/vllm", "/usr/bin", id="a path that is not there"),
        pytest.param("/dev/null/vllm", "/usr/bin", id="a path through a file"),
        pytest.param("no-such-vllm", "/usr/bin:/nowhere", id="a name that is not on PATH"),
        pytest.param("no-such-vllm", "/usr/bin:/dev/null", id="a PATH that ends in a file"),
        pytest.param("no-such-vllm", "", id="an empty PATH"),
    ],
)
def test_a_program_that_is_not_there_is_127(program: str, path: str) -> None:
    """The fix is the full path."""
    with pytest.raises(LaunchError) as caught:
        launch([program], {"PATH": path})

    assert caught.value.exit_code == 127
    assert "full path" in caught.value.fix


def test_after_a_failed_launch_signals_are_pythons_again() -> None:
    """What is said then must not die of a closed pipe."""
    numbers = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]

    with pytest.raises(LaunchError):
        launch(["/nowhere/vllm"], {})

    assert before == [signal.getsignal(number) for number in numbers]


def test_without_proc_the_locale_stays_as_it_is() -> None:
    """What was there at the start is not known then."""
    environ = {"LC_CTYPE": "C.UTF-8", "VLLM_GUARD_MODE": "guard"}

    assert child_environment(environ, None) == {"LC_CTYPE": "C.UTF-8"}
