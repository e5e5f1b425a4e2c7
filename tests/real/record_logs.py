"""Records `tests/explain/logs/NAME.log` from the real vLLM, without what is this machine's: cd tests && python -m real.record_logs [NAME...]"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from real.failures import FAILURES, Failure, write_models
from real.fake_memory import in_fake_memory, write_meminfo
from real.install import VENV
from real.server import free_port, started

LOGS: Final = Path(__file__).parent.parent / "explain" / "logs"


def record(name: str, failure: Failure, folder: Path, models: Path) -> str:
    """Runs it, writes its log, and says how it went."""
    began, port, home = time.monotonic(), free_port(), folder / "home"
    home.mkdir(exist_ok=True)
    write_meminfo(folder / "meminfo", total_mib=failure.total_mib, free_mib=failure.free_mib)
    model = str(models / failure.model) if "/" not in failure.model else failure.model
    fixed = ["--enforce-eager", "--host", "127.0.0.1", "--port", str(port)]
    command = [str(VENV / "bin" / "vllm"), "serve", model, *fixed, *failure.options]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with socket.socket() as other:
        if name == "port_in_use":
            other.bind(("127.0.0.1", port))
            other.listen()
        run = in_fake_memory(folder / "meminfo", command)
        with started(run, port=port, environment={**environment, **failure.environment}, log=folder / name) as server:
            if failure.then is None:
                server.wait_until_ended()
            else:
                failure.then(server)
            code = server.process.poll()
            text = server.text()
    (LOGS / f"{name}.log").write_text(scrub(text, folder, models), encoding="utf-8")
    return f"{name}: exit {code}, {len(text)} bytes, {time.monotonic() - began:.0f} s"


def scrub(text: str, folder: Path, models: Path) -> str:
    """The log as it would be on a machine with vLLM in /opt/vllm and models in /models."""
    python = (VENV / "bin" / "python").resolve().parent.parent
    for path, stand_in in ((models, "/models"), (folder / "home", "/home/vllm"), (VENV.resolve(), "/opt/vllm"), (VENV, "/opt/vllm"), (python, "/usr")):
        text = text.replace(str(path), stand_in)
    text = re.sub(r"(?:^.*\] Route: .*\n)+", "[...]\n", text, flags=re.MULTILINE)  # 35 lines that say nothing about a start
    return re.sub(r"(?<=mq_connect_ip=)[\d.]+", "192.0.2.1", text)


def main() -> None:
    """All of them, or those that are named, one after the other."""
    LOGS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, and what it starts would too
    with tempfile.TemporaryDirectory(prefix="vg-") as folder:
        models = Path(folder, "models")
        write_models(models)
        for name in sys.argv[1:] or FAILURES:
            sys.stdout.write(record(name, FAILURES[name], Path(folder), models) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
