"""The README says what the code does: tables and printed output are compared, not trusted."""

from __future__ import annotations

import re

from builders import facts, gpu, judge, launched, process
from doc_pages import blocks, section

from vllm_guard.help import help_text
from vllm_guard.render.waiting import missing_text
from vllm_guard.settings import TABLE
from vllm_guard.units import ExitCode


def table_of_settings() -> str:
    """The table as the code has it."""
    rows = [f"| `{row.name}` | `{row.default}` | {row.meaning} |" for row in TABLE]
    return "\n".join(("| name | default | meaning |", "|---|---|---|", *rows)) + "\n"


def test_the_table_of_settings_is_that_of_the_code() -> None:
    """Name, default and meaning; what it should be is printed, to be pasted."""
    table = section("README.md", "Settings").rstrip("\n").rpartition("\n\n")[2] + "\n"

    assert table_of_settings() == table, f"replace the table under Settings in README.md with this one:\n\n{table_of_settings()}"


def test_every_exit_code_is_in_the_table() -> None:
    """The published codes, and no others."""
    codes = re.findall(r"^\| ([\d, ]+) \|", section("README.md", "Exit codes"), re.MULTILINE)
    shown = [int(number) for row in codes for number in row.split(",")]

    assert sorted(int(code) for code in ExitCode) == sorted(shown)
    assert all(str(int(code)) in help_text() for code in ExitCode if code not in {ExitCode.INTERRUPTED, ExitCode.TERMINATED})


def test_the_line_of_a_wait_is_the_one_that_is_printed() -> None:
    """After ten seconds of 120, while somebody trains on the card."""
    holder = process(48213, 50_000, name="python train.py", command="python train.py")
    card = gpu(free_mib=31_080, reserved_mib=479, processes=[holder])
    text = missing_text(judge(facts(card)), launched(judge(facts(gpu(free_mib=81_080, reserved_mib=479)))), fits=False)

    assert f"vllm-guard: waiting, 110 s left: {text}" in [block.text.rstrip("\n") for block in blocks("README.md").values()]
