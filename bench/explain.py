"""How fast `explain` reads a large log, as a ratio to `grep -c` with the same words; and how much memory it takes.

`make bench-explain`, or python bench/explain.py [--gib N]. The log is that of a server which worked for weeks and then failed at a restart: access lines,
its periodic statistics, a failed start. CPU time is user + system of the finished process; both read the file once before, so that it is in memory.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from vllm_guard.explain.tokens import READY_TOKENS

_AIM: Final = 0.25
_START: Final = """\
(APIServer pid=1) INFO 04-22 21:14:27 [utils.py:299]  version 0.19.1
(APIServer pid=1) INFO 04-22 21:14:27 [api_server.py:1839] vLLM API server version 0.19.1
(EngineCore pid=80) INFO 04-22 21:14:40 [core.py:105] Initializing a V1 LLM engine (v0.19.1) with config: model='m'
"""
_READY: Final = "(APIServer pid=1) INFO:     Application startup complete.\n"
_FAILED: Final = """\
(EngineCore pid=80) ERROR 04-22 21:15:19 [core.py:1108] Traceback (most recent call last):
(EngineCore pid=80) ERROR 04-22 21:15:19 [core.py:1108] ValueError: Free memory on device cuda:0 (3.22/4.0 GiB) on startup is less than desired GPU memory \
utilization (0.9, 3.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def _served(size_bytes: int) -> Iterator[bytes]:
    """Lines of a server at work, as many as fill this."""
    access = "".join(f'(APIServer pid=1) INFO:     127.0.0.1:{30_000 + number} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' for number in range(50))
    statistics = (
        "(APIServer pid=1) INFO 04-22 21:20:15 [loggers.py:257] Engine 000: Avg prompt throughput: 1234.5 tokens/s, Avg generation throughput: 321.0 tokens/s,"
        " Running: 12 reqs, Waiting: 0 reqs, GPU KV cache usage: 31.4%, Prefix cache hit rate: 22.1%\n"
    )
    block = (access + statistics).encode() * 100
    for _ in range(size_bytes // len(block) + 1):
        yield block


def _cost(command: Sequence[str]) -> tuple[float, float]:
    """CPU seconds and peak MiB of a command. Its output is read: grep would stop at the first match of an output that goes nowhere."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss / 1024


def main() -> None:
    """The ratio; exit status 1 below the aim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    size_bytes = int(parser.parse_args().gib * (1 << 30))
    grep = shutil.which("grep") or "grep"
    guard = str(Path(sysconfig.get_path("scripts")) / "vllm-guard")
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "vllm.log"
        with log.open("wb") as file:
            file.write((_START + _READY).encode())
            file.writelines(_served(size_bytes))
            file.write((_START + _FAILED).encode())
        words = [option for token in READY_TOKENS for option in ("-e", token.decode())]
        grepped = min(_cost([grep, "-c", "-F", *words, str(log)]) for _ in range(3))
        explained = min(_cost([guard, "explain", str(log)]) for _ in range(3))
        said = subprocess.run([guard, "explain", log], check=False, capture_output=True, text=True).stdout
    ratio = grepped[0] / explained[0]
    sys.stdout.write(f"{said.splitlines()[0]}\n")
    sys.stdout.write(f"grep -c {grepped[0]:.2f} s, explain {explained[0]:.2f} s: {ratio:.2f} of its speed (aim {_AIM:g})\n")
    sys.stdout.write(f"peak memory {explained[1]:.0f} MiB\n")
    sys.exit(ratio < _AIM)


if __name__ == "__main__":
    main()
