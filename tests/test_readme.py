"""The README says what the code does: tables and printed output are compared, not trusted."""

from __future__ import annotations

import re
from pathlib import Path

from vllm_guard.help import help_text
from vllm_guard.settings import TABLE
from vllm_guard.units import ExitCode

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table of a section, without its head."""
    section = README.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in section.splitlines() if line.startswith("| ")][1:]


def test_every_setting_is_in_the_table_as_the_code_has_it() -> None:
    """Name, default and meaning."""
    assert [[f"`{row.name}`", f"`{row.default}`", row.meaning] for row in TABLE] == rows("## Settings")


def test_every_exit_code_is_in_the_table() -> None:
    """The published codes, and no others."""
    shown = [int(number) for row in rows("## Exit codes") for number in re.findall(r"\d+", row[0])]

    assert sorted(int(code) for code in ExitCode) == sorted(shown)
    assert all(str(int(code)) in help_text() for code in ExitCode if code not in {ExitCode.INTERRUPTED, ExitCode.TERMINATED})


def test_the_refusal_on_the_first_screen_was_printed_by_the_demo() -> None:
    """Word for word."""
    printed = (ROOT / "tests" / "golden" / "demo.txt").read_text()
    shown = README.partition("$ CUDA_VISIBLE_DEVICES=1")[2].partition("```")[0]

    assert "$ CUDA_VISIBLE_DEVICES=1" + shown.rstrip("\n") in printed


def test_the_estimate_was_printed_by_the_command() -> None:
    """But for where the model lies."""
    printed = (ROOT / "tests" / "golden" / "estimate.txt").read_text()
    shown = README.partition("$ vllm-guard estimate ./Llama")[2].partition("```")[0].splitlines()[1:]

    assert "\n".join(shown).replace("./Llama-3.1-8B-Instruct", "/host/llama") in printed
