"""The drop-in of docs/explain.md under a real systemd: a failed start is explained in its own journal, one that ended well or was refused is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from guard_process import GUARD
from other_worlds import booted_systemd, wait_for

import vllm_guard

pytestmark = pytest.mark.slow

ROOT: Final = Path(vllm_guard.__file__).parent.parent
LOG: Final = Path(__file__).parent / "explain" / "logs" / "gate1_default.log"
DROP_IN: Final = re.search(r"```ini\n(.*?)```", (ROOT / "docs" / "explain.md").read_text(encoding="utf-8"), re.DOTALL)


def write_unit(inside: list[str], name: str, exit_code: int) -> None:
    """A unit that prints the log of a start that failed and ends, and the drop-in with the guard's own path."""
    assert DROP_IN is not None
    unit = f"[Service]\nExecStart=/bin/sh -c 'cat {LOG}; exit {exit_code}'\n"
    for path, text in ((name, unit), (f"{name}.d/explain.conf", DROP_IN[1].replace("/opt/vllm/bin/vllm-guard", str(GUARD)))):
        write = 'mkdir -p "${0%/*}" && cat > "$0"'
        subprocess.run([*inside, "sh", "-c", write, f"/run/systemd/system/{path}"], input=text, text=True, check=True)


def journal_after_end(inside: list[str], name: str) -> str:
    """All that the unit wrote, once it is over with what runs after it."""
    state = [*inside, "systemctl", "show", "--property=ActiveState", "--value", name]
    wait_for(lambda: subprocess.run(state, check=True, capture_output=True, text=True).stdout.strip() in {"inactive", "failed"}, seconds=60)
    subprocess.run([*inside, "journalctl", "--sync"], check=True)
    return subprocess.run([*inside, "journalctl", "--output=cat", f"--unit={name}"], check=True, capture_output=True, text=True).stdout


def test_a_failed_start_is_explained_in_the_journal() -> None:
    """With the cause, the line's numbers and the fix, behind vLLM's own lines; the result of the unit stays that of its program."""
    folders = {Path(sys.prefix), Path(sys.base_prefix), ROOT} - {Path("/usr")}
    with booted_systemd(*folders) as inside:
        write_unit(inside, "failed.service", 1)
        write_unit(inside, "well.service", 0)
        write_unit(inside, "refused.service", 75)
        write_unit(inside, "not_there.service", 127)
        subprocess.run([*inside, "systemctl", "start", "failed.service", "well.service", "refused.service", "not_there.service"], check=True)
        failed, *others = (journal_after_end(inside, f"{name}.service") for name in ("failed", "well", "refused", "not_there"))
        result = subprocess.run([*inside, "systemctl", "show", "--property=Result", "failed.service"], check=True, capture_output=True, text=True).stdout

    assert "vllm-guard: explain: not enough memory was free when vLLM started (gate_free_memory, certain)" in failed
    assert "6.0 of 8.0 GiB were free, 7.36 GiB were asked for: short by 1.36 GiB" in failed
    assert re.search(r"^  fix: --gpu-memory-utilization 0\.7\d", failed, re.MULTILINE)
    assert "Result=exit-code\n" == result
    assert all("on startup is less than desired CPU memory utilization" in other for other in others)
    assert all("vllm-guard" not in other for other in others)
