"""The pages of the documentation are true: every command in them is run, everything that they say is printed was, every link and every name leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from doc_pages import ROOT, Block, assert_printed, blocks, pages, prose, read_page
from doc_scenes import COVERED, ELSEWHERE, NotRun, PartOf, ReadBy, Scene
from guard_process import GUARD, Host

from vllm_guard.cli import COMMANDS
from vllm_guard.flags import SETTINGS
from vllm_guard.host.pid_namespace import pid_namespace_initial

Played = Mapping[tuple[str, str], Future[list[tuple[str, int]]]]

READ = [page for page in pages() if page not in ELSEWHERE]
BLOCKS = {(page, name): block for page in READ for name, block in blocks(page).items()}
RUN = {key: scene for key, scene in COVERED.items() if isinstance(scene, Scene) and key in BLOCKS}
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
LINKS = [(page, link) for page in pages() for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" not in link]


def furnished(scene: Scene, folder: Path, driver: Path) -> Host:
    """The host of a scene, with the guard beside vLLM, as it is installed, and its files in the folder `work`."""
    host = Host(folder, driver)
    host.cards(*scene.cards, init_error=scene.init_error)
    (folder / "bin" / "vllm-guard").symlink_to(GUARD)
    for name, script in scene.programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "work").mkdir()
    for name, text in scene.files.items():
        (folder / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "work" / name).write_text(text, encoding="utf-8")
    return host


def play(block: Block, scene: Scene, folder: Path, driver: Path) -> list[tuple[str, int]]:
    """What each command of the block printed on both streams, and how it ended, one behind the other on one host."""
    host = furnished(scene, folder, driver)
    environ = host.environment({"VLLM_GUARD_LOG_FORMAT": "console", "STUB_REPORT": None, **({} if scene.driver else {"LD_LIBRARY_PATH": None})})
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ended = []
    for step in block.steps:
        run = subprocess.run(["bash", "-c", step.command], env=environ, cwd=folder / "work", **streams, text=True, timeout=60, check=False)
        ended.append((run.stdout, run.returncode))
    return ended


def as_on_a_host(printed: str, shown: Sequence[str]) -> str:
    """Without what the guard says of a live card where the tests run in a container, unless that is what the page shows."""
    note = "processes outside this container cannot be named"
    if pid_namespace_initial() or any(note in line for line in shown):
        return printed
    return "".join(line for line in printed.splitlines(keepends=True) if note not in line)


@pytest.fixture(scope="session", name="played")
def _played(tmp_path_factory: pytest.TempPathFactory, driver_folder: Path) -> Iterator[Played]:
    """All scenes, a few at a time."""
    pool = ThreadPoolExecutor((os.cpu_count() or 1) + 1)
    yield {key: pool.submit(play, BLOCKS[key], scene, tmp_path_factory.mktemp("page"), driver_folder) for key, scene in RUN.items()}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("key", RUN, ids=" ".join)
def test_what_a_page_shows_is_what_happens(key: tuple[str, str], played: Played) -> None:
    """Every command ends as its page says, with these words."""
    for step, (printed, status) in zip(BLOCKS[key].steps, played[key].result(), strict=True):
        assert step.status == status, printed
        if step.shown is not None:
            assert_printed(step.shown, as_on_a_host(printed, step.shown))


@pytest.mark.parametrize("key", [key for key, cover in COVERED.items() if isinstance(cover, PartOf) and key in BLOCKS], ids=" ".join)
def test_what_a_page_shows_of_something_longer_was_printed(key: tuple[str, str], host: Host) -> None:
    """Word for word."""
    cover = COVERED[key]
    assert isinstance(cover, PartOf)
    program, *words = cover.command.split()

    assert program == "vllm-guard"
    assert BLOCKS[key].text in host.run(*words, wrapper=["sh", "-c", 'exec "$0" "$@" 2>&1']).stdout.decode()


def test_every_block_is_covered_and_nothing_else_is() -> None:
    """A block without a row in doc_scenes.py is a mistake; so are a row of a block that is gone, and a fence that is none to the parser."""
    assert set() == BLOCKS.keys() - COVERED.keys()
    assert set() == COVERED.keys() - BLOCKS.keys()
    assert 2 * len(BLOCKS) == sum(read_page(page).count("```") for page in READ)


@pytest.mark.parametrize("key", [key for key, cover in COVERED.items() if isinstance(cover, ReadBy)], ids=" ".join)
def test_the_other_test_reads_the_page(key: tuple[str, str]) -> None:
    """It is there and names it."""
    cover = COVERED[key]
    assert isinstance(cover, ReadBy)

    assert key[0].rpartition("/")[2] in (ROOT / "tests" / cover.test).read_text()


@pytest.mark.parametrize("page", [page for page in ELSEWHERE if (ROOT / page).exists()])
def test_a_page_with_tests_of_its_own_has_them(page: str) -> None:
    """They are there and name it."""
    assert page.rpartition("/")[2] in (ROOT / "tests" / ELSEWHERE[page]).read_text()


def test_what_is_not_run_has_a_reason_and_is_there() -> None:
    """The target of make, or the test."""
    words = [word for key, cover in COVERED.items() if isinstance(cover, NotRun) for step in BLOCKS[key].steps for word in step.command.split()]

    assert all(cover.because for cover in COVERED.values() if isinstance(cover, NotRun))
    assert all(behind in TARGETS for word, behind in pairwise(words) if word == "make")
    assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))


@pytest.mark.parametrize(("page", "link"), LINKS, ids=[f"{page} to {link}" for page, link in LINKS])
def test_every_link_leads_somewhere(page: str, link: str) -> None:
    """To a file of the project, and a heading in it."""
    path, _, anchor = link.partition("#")
    target = (ROOT / page).parent / path if path else ROOT / page

    assert target.exists()
    if anchor:
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", pages())
def test_every_name_in_a_page_is_one(page: str) -> None:
    """Commands and settings of the guard, targets of make, tests."""
    text = read_page(page)
    flags = {name.replace("-", "_") for name in re.findall(r"--guard-([a-z-]*[a-z])", text)}
    variables = {name.lower() for name in re.findall(r"VLLM_GUARD_([A-Z_]*[A-Z])", text)}
    commands = set(re.findall(r"`vllm-guard ([a-z]+)", text))
    targets = set(re.findall(r"`make ([a-z-]+)", text))

    assert flags - set(SETTINGS) <= {"help", "version", "name"}
    assert {name for name in variables if "service" not in name} - set(SETTINGS) <= {"config", "name", "margn"}  # the last one shows what a wrong name does
    assert commands <= set(COMMANDS)
    assert targets <= set(TARGETS)
    assert [] == [path for path in re.findall(r"`((?:tests|vllm_guard|bench|docs)/[\w./-]*\w)`", text) if not (ROOT / path).exists()]
