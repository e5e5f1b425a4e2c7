"""Stands in for vLLM in the demo: says what reached it, and ends."""

from __future__ import annotations

import os
import shlex
import sys

if __name__ == "__main__":
    sys.stdout.write(f"(stand-in for vLLM, pid {os.getpid()}) started as: vllm {shlex.join(sys.argv[1:])}\n")
