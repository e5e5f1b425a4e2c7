"""The programs that the check starts, each with a time limit for every answer, and all of them gone at its end."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpu_steps.sheet import NotTakenError

BENCH: Final = Path(__file__).resolve().parent.parent
GUARD_RELEASE: Final = "0.33.0"  # the vLLM whose inequality is checked: it makes its cuBLAS handles before it measures
_SECONDS_FOR_ONE_PROGRAM: Final = 15
_READER: Final = "NVML reader"


class Child:
    """A program of `answers.py`: asked a line, answers a line."""

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.name = name
        self.pid = 0  # what the program itself says: the command may be a wrapper
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read when the program has ended
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=BENCH, env=dict(environ), text=True, bufsize=1
            )
        except OSError as error:
            msg = f"cannot run {command[0]!r}: {error.strerror}"
            raise NotTakenError(msg) from error
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, seconds: float, *words: object) -> Any:
        """The answer; raises NotTakenError with the program's reason, or that it ended, or was silent for so long."""
        with suppress(OSError):
            assert self.process.stdin is not None  # noqa: S101 - a pipe was asked for
            self.process.stdin.write(json.dumps(words) + "\n")
        try:
            line = self._lines.get(timeout=max(seconds, 0.1))
        except queue.Empty as error:
            self.process.kill()  # a late answer would be taken for the next one
            msg = f"{self.name}: no answer to {words[0]} within {seconds:.0f} s"
            raise NotTakenError(msg) from error
        if not line:
            self._lines.put("")
            msg = f"{self.name}: ended ({self._last_error() or f'status {self.process.poll()}'})"
            raise NotTakenError(msg)
        answer = json.loads(line)
        if "error" in answer:
            msg = f"{self.name}: {answer['error']}"
            raise NotTakenError(msg)
        return answer["answer"]

    def end(self) -> None:
        """Closes its input, which ends it; by force after a while."""
        with suppress(OSError):
            assert self.process.stdin is not None  # noqa: S101 - as above
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)

    def _read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - as above
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""


@dataclass
class Machine:
    """The card under test and the processes around it. `until` is the monotonic time by which the running step must be over."""

    uuid: str
    environ: Mapping[str, str]
    torch_python: str
    until: float = 0.0
    children: list[Child] = field(default_factory=list)
    holders: dict[str, Child] = field(default_factory=dict)

    def start_reader(self, name: str, *wrapper: str) -> Child:
        """A program that reads NVML, behind these words."""
        return self._start(name, [*wrapper, sys.executable, "-m", "gpu_steps.nvml_reader", self.uuid])

    def start_holder(self, name: str) -> Child:
        """A program with torch; it has no context until it is asked for memory."""
        import pynvml  # noqa: PLC0415 - only its place is needed

        child = self._start(name, [self.torch_python, "-m", "gpu_steps.torch_holder", self.uuid, str(pynvml.__file__)])
        self.holders[name] = child
        return child

    def _start(self, name: str, command: Sequence[str]) -> Child:
        child = Child(name, command, self.environ)
        self.children.append(child)
        return child

    @property
    def left_seconds(self) -> float:
        """How long this step may still take."""
        return self.until - time.monotonic()

    def ask(self, child: Child, *words: object) -> Any:
        """The child's answer within what is left of the step."""
        return child.ask(self.left_seconds, *words)

    def greet(self, name: str) -> Child:
        """The holder of this name with torch imported, started anew when an earlier step lost it."""
        child = self.holders[name]
        if child.process.poll() is not None:
            child = self.start_holder(name)
        child.pid = self.ask(child, "hello")["pid"]
        return child

    def free_bytes(self) -> int:
        """NVML's free memory, read beside all holders."""
        return int(self.ask(self.reader, "free"))

    @property
    def reader(self) -> Child:
        """The program that reads NVML in this namespace, started anew when the last one had to be ended."""
        readers = [child for child in self.children if child.name == _READER and child.process.poll() is None]
        return readers[0] if readers else self.start_reader(_READER)

    def run(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
        """stdout of a program that ends by itself; raises NotTakenError with the last line of its stderr."""
        limit = max(min(self.left_seconds, _SECONDS_FOR_ONE_PROGRAM), 0.1)
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=limit, cwd=BENCH, env=dict(environ or self.environ), stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            msg = f"{Path(command[0]).name}: {error}"
            raise NotTakenError(msg) from error
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            msg = f"{Path(command[0]).name}: {lines[-1][:200]}"
            raise NotTakenError(msg)
        return done.stdout

    def end(self) -> None:
        """Nothing that was started stays."""
        for child in self.children:
            child.process.kill()
        for child in self.children:
            child.end()


def guard_environment(environ: Mapping[str, str], uuid: str | None) -> dict[str, str]:
    """The caller's environment, with nothing in it that decides what the guard or CUDA does, and the card under test as the only one."""
    kept = {
        name: value for name, value in environ.items() if not name.startswith("VLLM_") and name not in {"PYTHONSAFEPATH", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}
    }
    card = {} if uuid is None else {"CUDA_VISIBLE_DEVICES": uuid}
    return {**kept, "VLLM_GUARD_CONFIG": "", "PYTHONDONTWRITEBYTECODE": "1", **card}
