"""What each command of the guard imports: every library costs each start its time, and a heavy one would cost it most of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from guard_process import BUSY, MODEL, Call, Ended, Host, rows
from standin_driver import Card

ACCOUNT = (sys.executable, "-v")  # unlike -X importtime, it leaves out what was tried in vain
SETTINGS = frozenset(
    ("annotated_types", "dotenv", "pydantic", "pydantic_core", "pydantic_settings", "typing_extensions", "typing_inspection"),
)
CARDS = SETTINGS | {"pynvml", "psutil"}
CONSOLE = {"VLLM_GUARD_LOG_FORMAT": "console"}


def imported(stderr: str) -> frozenset[str]:
    """The modules of an account of imports."""
    return frozenset(line.split("'")[1] for line in stderr.splitlines() if line.startswith("import '"))


def foreign(stderr: str) -> frozenset[str]:
    """The packages that neither are Python's own nor ours, nor come with every Python of this environment."""
    bare = subprocess.run([*ACCOUNT, "-c", "pass"], check=True, capture_output=True, text=True).stderr
    packages = {name.partition(".")[0] for name in imported(stderr) - imported(bare)}
    return frozenset(name for name in packages - sys.stdlib_module_names - {"vllm_guard"} if not name.startswith("_sysconfigdata"))


def accounted(*words: str, card: Card = BUSY, environ: Mapping[str, str | None] = CONSOLE, version: str = "0.32.0", **files: str) -> Call:
    """A run that lists its imports."""
    return Call(words, environ, [card], version=version, files=files, wrapper=ACCOUNT)


IMPORTS: Mapping[str, tuple[Call, frozenset[str]]] = {
    "serve": (accounted("serve", MODEL), CARDS),
    "serve as a service, whose warnings are events": (accounted("serve", MODEL, environ={}), CARDS | {"structlog"}),
    "serve with a configuration file of vLLM": (accounted("serve", MODEL, "--config", "{folder}/c", c="seed: 1"), CARDS | {"yaml"}),
    "serve on an idle card": (accounted("serve", MODEL, card=Card()), SETTINGS | {"pynvml"}),
    "serve of a build for another device": (accounted("serve", MODEL, version="0.32.0+rocm"), SETTINGS),
    "serve with mode=off": (accounted("serve", MODEL, environ={"VLLM_GUARD_MODE": "off"}), frozenset()),
    "check": (accounted("check", MODEL), CARDS),
    "explain": (accounted("explain", "{folder}/log", log="ValueError: No available memory for the cache blocks."), SETTINGS | {"yaml"}),
}


@pytest.mark.parametrize(("call", "expected"), rows(IMPORTS))
def test_a_command_imports_its_libraries_and_no_others(ended: Ended, expected: frozenset[str]) -> None:
    """Above all neither torch nor vllm. A library that joins this list is measured first: `make bench`."""
    assert 0 == ended.code, ended.stderr
    assert expected == foreign(ended.stderr)


def test_a_settings_file_brings_its_parser_and_nothing_else_does(host: Host, tmp_path: Path) -> None:
    """Neither TOML's nor the search for the nearest name, which only a wrong one needs."""
    (tmp_path / "settings").write_text("")
    parsers = {"tomllib", "tomli", "difflib"}

    without = imported(host.run("check", MODEL, wrapper=ACCOUNT).stderr)
    with_file = imported(host.run("check", MODEL, wrapper=ACCOUNT, environ={"VLLM_GUARD_CONFIG": str(tmp_path / "settings")}).stderr)

    assert (0, 1) == (len(parsers & without), len(parsers & with_file))


def test_what_stands_beside_vllm_is_not_drawn_in(host: Host, tmp_path: Path) -> None:
    """Rich, which structlog would import, and plugins of pydantic, which it would seek and run."""
    info = tmp_path / "plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pydantic]\nplugin = drawn_in:plugin\n")
    (tmp_path / "drawn_in.py").write_text("plugin = None\n")
    (tmp_path / "rich.py").write_text("")

    ended = host.serve(wrapper=ACCOUNT, environ={"PYTHONPATH": str(tmp_path)})

    assert frozenset() == foreign(ended.stderr) & {"rich", "drawn_in"}


@pytest.mark.parametrize("given", [None, "", "some_plugin"])
def test_vllm_gets_its_plugins_as_they_were(host: Host, given: str | None) -> None:
    """The guard keeps pydantic's plugins out of its own process only."""
    ended = host.serve(environ={"PYDANTIC_DISABLE_PLUGINS": given})

    expected = [] if given is None else [os.fsencode(f"PYDANTIC_DISABLE_PLUGINS={given}")]

    assert ended.report is not None
    assert expected == [entry for entry in ended.report.environ if entry.startswith(b"PYDANTIC_")]
