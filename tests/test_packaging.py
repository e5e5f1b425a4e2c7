"""The packages that `python -m build` makes, as CONTRIBUTING.md says: everything that a user needs is in them, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path
from typing import Final

import pytest
from doc_pages import ROOT, blocks
from other_worlds import copy_checkout

from vllm_guard import __version__

DATA: Final = {"py.typed", "command/options.tsv", "demo/shared_cards.json", "explain/signatures.yaml"}
ABOUT: Final = f"vllm_guard-{__version__}.dist-info"


def modules() -> set[str]:
    """Every module of the package, as it lies in the checkout, and its data."""
    package = ROOT / "vllm_guard"
    return {f"vllm_guard/{path.relative_to(package)}" for path in package.rglob("*.py")} | {f"vllm_guard/{name}" for name in DATA}


def test_the_package_has_no_file_of_another_kind() -> None:
    """A data file that is new is put into pyproject.toml and here, or it would be missing where the package is installed."""
    package = ROOT / "vllm_guard"
    found = {f"vllm_guard/{path.relative_to(package)}" for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}

    assert modules() == found


def test_the_version_stands_in_one_place() -> None:
    """The build reads it from the package; the changelog begins with what is not released yet, or with it."""
    project = (ROOT / "pyproject.toml").read_text()
    newest = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]

    assert 'dynamic = ["version"]' in project
    assert 'version = { attr = "vllm_guard.__version__" }' in project
    assert newest == "Unreleased" or newest.startswith(f"{__version__} - "), newest


@pytest.fixture(scope="module", name="dist")
def _dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command of the page leaves in a copy of the checkout."""
    (step,) = blocks("CONTRIBUTING.md")[".venv/bin/python -m build"].steps
    program, *words = step.command.split()
    checkout = tmp_path_factory.mktemp("checkout") / "vllm-guard"
    copy_checkout(checkout)
    assert ".venv/bin/python" == program
    subprocess.run([sys.executable, *words], cwd=checkout, check=True, capture_output=True, timeout=300)
    return checkout / "dist"


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_licence(dist: Path) -> None:
    """Every module, the data files, the marker of types; no test, no page."""
    about = {f"{ABOUT}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE")}
    with zipfile.ZipFile(dist / f"vllm_guard-{__version__}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
        about_it, _, readme = wheel.read(f"{ABOUT}/METADATA").decode().partition("\n\n")
        metadata = message_from_string(about_it)
        entries = wheel.read(f"{ABOUT}/entry_points.txt").decode()

    assert sorted(modules() | about) == sorted(names)
    assert (__version__, ">=3.10", "Apache-2.0") == (metadata["Version"], metadata["Requires-Python"], metadata["License-Expression"])
    assert (ROOT / "README.md").read_text() == readme
    assert "[console_scripts]\nvllm-guard = vllm_guard.__main__:run\n" == entries


@pytest.mark.slow
def test_the_source_package_holds_what_the_wheel_is_built_from_the_pages_and_the_units(dist: Path) -> None:
    """No test, and nothing of the checkout that is not of the project."""
    pages = {str(path.relative_to(ROOT)) for folder in ("docs", "systemd") for path in (ROOT / folder).rglob("*") if path.is_file()}
    pages |= {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Dockerfile", ".dockerignore"}
    about = {"PKG-INFO", "LICENSE", "MANIFEST.in", "pyproject.toml", "setup.cfg"}
    parts = ("PKG-INFO", "SOURCES.txt", "dependency_links.txt", "entry_points.txt", "requires.txt", "top_level.txt")
    egg = {f"vllm_guard.egg-info/{name}" for name in parts}
    with tarfile.open(dist / f"vllm_guard-{__version__}.tar.gz") as source:
        names = {member.name.partition("/")[2] for member in source.getmembers() if member.isfile()}

    assert sorted(modules() | pages | about | egg) == sorted(names)
