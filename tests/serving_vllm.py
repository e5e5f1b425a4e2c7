"""A stand-in for vLLM that serves: an API server with an engine in a process of its own, which live and die as vLLM 0.32.0 was seen to (exit 0 included)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

# STUB_LOG: prints this file and fails, as a start that failed. STUB_EXIT: ends with this code at once.
# STUB_DEAF: TERM ends none of the two, as in the middle of a start.
SCRIPT: Final = r"""
import http.server, json, os, signal, sys, threading, time

words = sys.argv[1:]
if "STUB_LOG" in os.environ:
    sys.stderr.buffer.write(open(os.environ["STUB_LOG"], "rb").read())
    sys.exit(1)
if "STUB_EXIT" in os.environ:
    sys.exit(int(os.environ["STUB_EXIT"]))
deaf = "STUB_DEAF" in os.environ
found = os.listdir("/dev/shm")
open("/dev/shm/psm_stub", "w").close()

engine = os.fork()
if engine == 0:
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(600)


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        about = {"pid": os.getpid(), "engine": engine, "words": words, "environ": dict(os.environ), "uid": os.getuid(), "shared_memory": found}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(about).encode())

    def log_message(self, *words):
        pass


def terminate(number, frame):
    try:
        os.kill(engine, signal.SIGKILL)
        os.waitpid(engine, 0)
    except OSError:  # TERM was for the engine too
        pass
    os._exit(0)


signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else terminate)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.waitpid(engine, 0)
print("EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.", flush=True)
os._exit(0)
"""


def write_serving_stub(folder: Path) -> Path:
    """An executable `vllm` that serves on `--port`, its own description as JSON on every path."""
    stub = folder / "vllm"
    stub.write_text(f"#!{sys.executable} -SE{SCRIPT}")
    stub.chmod(0o755)
    return stub
