"""The files of systemd/ and docs/systemd.md agree with the guard, and with each other."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Final

import pytest
from doc_pages import ROOT, read_page, section

from vllm_guard.claims.folder import places, why_untrusted
from vllm_guard.settings import TABLE
from vllm_guard.units import ExitCode

FOLDER: Final = ROOT / "systemd"
UNIT: Final = FOLDER / "vllm-guard@.service"
DROP_IN: Final = FOLDER / "vllm.service.d" / "vllm-guard.conf"
EXAMPLE: Final = FOLDER / "instance.env"
TMPFILES: Final = FOLDER / "vllm-guard.conf"
PAGE: Final = read_page("docs/systemd.md")
SETTINGS: Final = {f"VLLM_GUARD_{row.name.upper()}" for row in TABLE}


def lines(file: Path) -> list[str]:
    """The lines of a file of systemd."""
    return file.read_text(encoding="utf-8").splitlines()


def values(file: Path, name: str) -> list[str]:
    """Each value that a directive gets."""
    return [line.partition("=")[2] for line in lines(file) if line.partition("=")[0] == name]


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table of a section, without its head."""
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in section(page, heading).splitlines() if line.startswith("| ")][1:]


def codes(cell: str) -> set[int]:
    """The exit codes that a cell names."""
    return set(map(int, re.findall(r"\d+", cell)))


NOT_RETRIED: Final = {code for row in rows("README.md", "Exit codes") if row[-1] == "not retry" for code in codes(row[0])}


@pytest.mark.parametrize("file", [UNIT, DROP_IN], ids=["unit", "drop-in"])
def test_the_codes_that_no_start_can_mend_are_those_of_the_readme(file: Path) -> None:
    """Where the table says: not retry."""
    assert {ExitCode.USAGE, ExitCode.REFUSED_FOR_GOOD, ExitCode.CANNOT_RUN, ExitCode.NOT_FOUND} == NOT_RETRIED
    assert [NOT_RETRIED] == [codes(value) for value in values(file, "RestartPreventExitStatus")]
    assert ["always"] == values(file, "Restart")
    assert ["0"] == values(file, "StartLimitIntervalSec")


def test_the_page_tells_of_each_code_what_the_unit_does() -> None:
    """And of each code with which `serve` can end; 203 is systemd's own."""
    table = rows("docs/systemd.md", "What each exit code does")
    (delay,) = values(UNIT, "RestartSec")
    down = {code for cells in table if cells[2] == "stays down" for code in codes(cells[0])}
    again = {code for cells in table if cells[2] == f"started again after {delay} s" for code in codes(cells[0])}

    assert (NOT_RETRIED, {ExitCode.OK, ExitCode.UNMEASURED, ExitCode.REFUSED_FOR_NOW, 203}) == (down, again)


def test_a_failed_start_is_explained_by_the_line_of_the_page_about_explain() -> None:
    """One truth: tests/test_explain_journal.py runs that one."""
    explain = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")

    assert re.findall(r"^ExecStopPost=(.+)$", explain, re.MULTILINE) == values(UNIT, "ExecStopPost")


@pytest.mark.parametrize("file", [UNIT, DROP_IN, EXAMPLE, TMPFILES], ids=lambda file: file.name)
def test_each_line_has_its_reason_above_it(file: Path) -> None:
    """A comment of its own."""
    before = ""
    for line in lines(file):
        if line and not line.startswith(("#", "[")):
            assert before.startswith("#"), line
        before = line


@pytest.mark.parametrize("file", [UNIT, DROP_IN], ids=["unit", "drop-in"])
def test_nothing_hides_the_cards_or_their_users(file: Path) -> None:
    """Each would, and a namespace of users hides the group of a device."""
    names = {line.partition("=")[0] for line in lines(file)}
    hiding = {"PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock", "ProtectProc", "ProcSubset", "PrivatePIDs", "PrivateUsers"}

    assert set() == names & (hiding | {"MemoryDenyWriteExecute", "SystemCallFilter", "RootDirectory", "RuntimeDirectory"})


def test_what_would_hide_the_cards_is_named_in_the_unit() -> None:
    """For whoever hardens it further."""
    left_out = UNIT.read_text(encoding="utf-8").partition("# Left out on purpose.")[2]

    assert {"PrivateDevices", "DeviceAllow", "ProtectClock", "ProtectProc", "MemoryDenyWriteExecute"} <= set(re.findall(r"\w+", left_out))


def test_the_folder_of_the_claims_is_the_one_that_guards_trust() -> None:
    """Root's first choice, with the mode that it would make, trusted by everybody; and units may write there."""
    (entry,) = [line.split() for line in lines(TMPFILES) if not line.startswith("#")]
    kind, path, mode, user, group, age = entry
    first = places(None, {}, user=0)[0]
    status = os.stat_result((stat.S_IFDIR | int(mode, 8), 1, 1, 2, 0, 0, 0, 0, 0, 0))

    assert ("d", first.path, first.mode, "root", "root", "-") == (kind, path, int(mode, 8), user, group, age)
    assert [None, None] == [why_untrusted(status, user_id, named=False) for user_id in (0, 1000)]
    assert [[f"-{path}"]] * 2 == [values(file, "ReadWritePaths") for file in (UNIT, DROP_IN)]


def test_the_example_gives_the_unit_what_it_uses() -> None:
    """The two names of its command, and settings that the guard has; no name that vLLM would take for one of its own."""
    names = re.findall(r"^#?([A-Z_]+)=", EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE)
    (command,) = values(UNIT, "ExecStart")

    assert re.findall(r"\$\{?([A-Z]+)", command) == names[:2]
    assert {name for name in names if name.startswith("VLLM_")} <= SETTINGS | {"VLLM_API_KEY"}
    assert set(re.findall(r"\bVLLM_GUARD_[A-Z_]+", PAGE + UNIT.read_text(encoding="utf-8"))) <= SETTINGS


def test_another_environment_is_one_command_away(tmp_path: Path) -> None:
    """That of the page leaves no path of the shipped one."""
    written = re.search(r"`(sed -i [^`]+)`", PAGE)
    assert written is not None
    copied = shutil.copy(UNIT, tmp_path)
    subprocess.run(written[1].replace("/etc/systemd/system", str(tmp_path)).split(), check=True)

    text = Path(copied).read_text(encoding="utf-8")
    assert (False, 3) == ("/opt/vllm" in text, len([line for line in text.splitlines() if line and line[0] != "#" and "/path/to/venv/bin" in line]))
