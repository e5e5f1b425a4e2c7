"""The shipped command as a process: on the stand-in driver and the stub vLLM, with an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from standin_driver import SCENARIO_VARIABLE, Card, Fault, Listed, Series, build_driver, write_scenario
from stub_vllm import Report, read_report, write_stub

GUARD = Path(sysconfig.get_path("scripts")) / "vllm-guard"
MODEL = "org/model"
UNTOUCHED = (b"serve", MODEL.encode())
NEIGHBOUR = os.getpid()  # a process that is there, is no vLLM and does not end
BUSY = Card(processes=(Listed(NEIGHBOUR, 50_000),))
BUSY_ARGV = (*UNTOUCHED, b"--gpu-memory-utilization", b"0.3606")
CLAIM = 64  # the descriptor that keeps a claim
FULL = Card(free_mib=300, processes=(Listed(NEIGHBOUR, 80_000),))
# Refusals on a shared card wait a second to see whether somebody leaves, and `check` asks a model hub; tests of something else do not.
AT_ONCE = {"VLLM_GUARD_SETTLE": "0", "VLLM_GUARD_REMOTE_METADATA": "off"}


@dataclass(frozen=True, slots=True)
class Ended:
    """One run of the guard: what came out of it, and what reached the stub (None when that was not started)."""

    pid: int
    code: int
    stdout: bytes
    stderr: str
    seconds: float
    report: Report | None
    folder: Path

    @property
    def lines(self) -> list[str]:
        """The lines on stderr."""
        return self.stderr.splitlines()

    @property
    def reached(self) -> tuple[bytes, ...]:
        """The stub's argv behind its own path."""
        assert self.report is not None, self.stderr
        return self.report.argv[1:]

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on stdout."""
        document = json.loads(self.stdout)
        assert isinstance(document, dict)
        return document


class Host:
    """A folder that is a whole host: cards, an installed vLLM, a home. Everything in it may be changed between runs."""

    def __init__(self, folder: Path, driver: Path, *, version: str | None = "0.32.0") -> None:
        self.folder = folder
        self.driver = driver
        self.stub = self.install(version)
        self.claims = folder / "claims"
        self.environ: dict[str, str | None] = {"VLLM_GUARD_CONFIG": "", "VLLM_GUARD_CLAIMS_DIR": str(self.claims), **AT_ONCE}
        self.scenario = folder / "scenario"
        (folder / "home").mkdir()
        self.cards(Card())

    def install(self, version: str | None) -> Path:
        """A stub vLLM whose package metadata says this release; none without one. Its path."""
        site = self.folder / "lib" / "python3.11" / "site-packages"
        for name in ("bin", "lib/python3.11/site-packages"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for old in site.glob("vllm-*/METADATA"):
            old.unlink()
            old.parent.rmdir()
        if version is not None:
            info = site / f"vllm-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        return write_stub(self.folder / "bin")

    def cards(self, *cards: Card, init_error: Series | None = None, faults: Sequence[Fault] = (), epoch_seconds: float | None = None) -> None:
        """What the driver shows from the next NVML call on."""
        write_scenario(self.scenario, cards, init_error, faults, epoch_seconds)

    def environment(self, environ: Mapping[str, str | None]) -> dict[str, str]:
        """What a guard of this host gets; a variable that is None is left out."""
        base: dict[str, str | None] = {
            "PATH": f"{self.folder / 'bin'}:{os.defpath}",
            "HOME": str(self.folder / "home"),
            "LD_LIBRARY_PATH": str(self.driver),
            SCENARIO_VARIABLE: str(self.scenario),
            "STUB_REPORT": str(self.folder / "report"),
        }
        return {name: value for name, value in {**base, **self.environ, **environ}.items() if value is not None}

    def run(
        self,
        *words: str | bytes,
        environ: Mapping[str, str | None] | None = None,
        wrapper: Sequence[str] = (),
        cwd: Path | None = None,
        inherited: Sequence[int] = (),
        timeout_seconds: float = 20,
    ) -> Ended:
        """The guard with these words, to its end or the stub's. `wrapper` starts it."""
        report = self.folder / "report"
        report.mkdir(exist_ok=True)
        for file in report.iterdir():
            file.unlink()
        began = time.monotonic()
        with subprocess.Popen(
            [*wrapper, str(GUARD), *words],
            env=self.environment(environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            pass_fds=inherited,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        seconds, said = time.monotonic() - began, stderr.decode("utf-8", "backslashreplace")
        reached = read_report(report) if (report / "environ").exists() else None
        return Ended(process.pid, process.returncode, stdout, said, seconds, reached, self.folder)

    def serve(self, *words: str | bytes, **options: Any) -> Ended:
        """`vllm-guard serve org/model WORDS`."""
        return self.run("serve", MODEL, *words, **options)

    def check(self, *words: str | bytes, **options: Any) -> Ended:
        """`vllm-guard check org/model WORDS`."""
        return self.run("check", MODEL, *words, **options)


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a table: words behind vllm-guard, `environ` over the host's own, the cards of its host. {folder} in words and values is the host's."""

    words: Sequence[str]
    environ: Mapping[str, str | None] = field(default_factory=dict)
    cards: Sequence[Card] = (Card(),)
    init_error: int | None = None
    version: str | None = "0.32.0"
    files: Mapping[str, str] = field(default_factory=dict)
    wrapper: Sequence[str] = ()

    def played_on(self, host: Host) -> Ended:
        """How it ended."""
        for name, text in self.files.items():
            (host.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (host.folder / name).write_text(text)
        host.cards(*self.cards, init_error=self.init_error)
        words = [os.fsencode(word.replace("{folder}", str(host.folder))) for word in self.words]
        environ = {name: value and value.replace("{folder}", str(host.folder)) for name, value in self.environ.items()}
        return host.run(*words, environ=environ, wrapper=self.wrapper)


def rows(table: Mapping[str, Sequence[object]]) -> list[Any]:
    """A table for pytest.mark.parametrize; its keys read as sentences."""
    return [pytest.param(*row, id=name) for name, row in table.items()]


class ReadAhead:
    """Plays the calls of the tests to come while a test looks at its own: a guard takes 0.2 s of one processor to start."""

    TESTS: Final = 64

    def __init__(self, pool: ThreadPoolExecutor, new_host: Callable[[Call], Host]) -> None:
        self._pool = pool
        self._new_host = new_host
        self._played: dict[str, Future[Ended]] = {}

    def ended(self, items: Sequence[pytest.Item], item: pytest.Item) -> Ended:
        """How the call of this test ended."""
        here = items.index(item)
        for coming in items[here : here + self.TESTS]:
            call = coming.callspec.params.get("call") if isinstance(coming, pytest.Function) and hasattr(coming, "callspec") else None
            if isinstance(call, Call) and coming.nodeid not in self._played:
                self._played[coming.nodeid] = self._pool.submit(call.played_on, self._new_host(call))
        return self._played[item.nodeid].result()


@pytest.fixture(scope="session", name="read_ahead")
def _read_ahead(tmp_path_factory: pytest.TempPathFactory, driver_folder: Path) -> Iterator[ReadAhead]:
    pool = ThreadPoolExecutor((os.cpu_count() or 1) + 1)
    yield ReadAhead(pool, lambda call: Host(tmp_path_factory.mktemp("host"), driver_folder, version=call.version))
    pool.shutdown(cancel_futures=True)


@pytest.fixture(name="ended")
def _ended(request: pytest.FixtureRequest, read_ahead: ReadAhead, call: Call) -> Ended:  # noqa: ARG001 - the parameter `call` of the test
    """How the call of a test that is parametrized with one ended."""
    return read_ahead.ended(request.session.items, request.node)


@pytest.fixture(scope="session", name="driver_folder")
def _driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(name="host")
def _host(tmp_path: Path, driver_folder: Path) -> Host:
    """A host with one idle H100 and vLLM 0.32.0."""
    return Host(tmp_path, driver_folder)
