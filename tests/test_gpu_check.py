"""`make gpu-check` on the stand-in driver and a made-up torch: it runs through, and what it reckons is what the scenario holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from standin_driver import SCENARIO_VARIABLE, Card, Fault, Listed, write_scenario

SCRIPT = Path(__file__).parent.parent / "bench" / "gpu_check.py"
MIB = 1 << 20
TOTAL_MIB, RESERVED_MIB = 24_564, 449
CONTEXT_MIB, HANDLES_MIB = 500, 8

# Each process of it is a file with the MiB that it holds; the "machine" below turns the files into what NVML shows.
FAKE_TORCH = f"""
import os, pathlib, sys, time, types
__version__ = "2.99.0+fake"
_mine = pathlib.Path(os.environ["FAKE_HOLDERS"]) / str(os.getpid())
_shown = pathlib.Path(os.environ["FAKE_SHOWN"])
_state = {{"context": 0, "tensors": 0, "handles": 0}}
uint8 = float16 = None
version = types.SimpleNamespace(cuda=os.environ.get("FAKE_CUDA") or None)

def _show():
    if not _state["context"]:
        _state["context"] = {CONTEXT_MIB}
    text = str(sum(_state.values()))
    draft = _mine.with_name("." + _mine.name)
    draft.write_text(text)
    draft.replace(_mine)
    until = time.monotonic() + 5
    while f"{{os.getpid()}} {{text}}\\n" not in _shown.read_text() and time.monotonic() < until:
        time.sleep(0.001)

def _mem_get_info():
    if os.environ.get("FAKE_BROKEN"):
        raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version\\nmore")
    _show()
    held = sum(int(line.split()[1]) for line in _shown.read_text().splitlines())
    total = {TOTAL_MIB - RESERVED_MIB}
    return (total - held) << 20, total << 20

def empty(size, dtype, device):
    _state["tensors"] += size >> 20
    _show()
    return object()

def ones(shape, dtype, device):
    return object()

def mm(left, right):
    _state["handles"] += {HANDLES_MIB}
    _show()

cuda = types.SimpleNamespace(
    mem_get_info=_mem_get_info,
    memory_reserved=lambda: _state["tensors"] << 20,
    synchronize=lambda: None,
    empty_cache=lambda: None,
    get_device_properties=lambda index: types.SimpleNamespace(total_memory={TOTAL_MIB - RESERVED_MIB} << 20, name="made up", is_integrated=False),
)
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(preferred_blas_library=lambda name: None))
"""


class Rented:
    """A machine with one card, whose NVML shows what the fake torch processes hold for as long as they live."""

    def __init__(self, folder: Path, driver: Path, card: Card, init_error: int | None) -> None:
        self.folder = folder
        self.driver = driver
        self.card = card
        self.init_error = init_error
        self.shown = folder / "shown"
        self.shown.write_text("")
        (folder / "holders").mkdir()
        (folder / "torch").mkdir()
        (folder / "torch" / "__init__.py").write_text(FAKE_TORCH)
        self._over = threading.Event()
        self.show({})

    def show(self, held: Mapping[int, int]) -> None:
        """What NVML lists from its next call on."""
        listed = tuple(Listed(pid, mib) for pid, mib in held.items())
        write_scenario(self.folder / "scenario", [replace(self.card, processes=listed)], self.init_error)
        draft = self.folder / "shown.draft"
        draft.write_text("".join(f"{pid} {mib}\n" for pid, mib in held.items()))
        draft.replace(self.shown)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within, the card follows its processes."""
        thread = threading.Thread(target=self._follow)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _follow(self) -> None:
        last: dict[int, int] = {}
        while not self._over.wait(0.002):
            files = [path for path in (self.folder / "holders").iterdir() if not path.name.startswith(".")]
            held = {int(path.name): int(path.read_text()) for path in files if Path("/proc", path.name).exists()}
            if held != last:
                self.show(held)
                last = held

    def check(self, **environ: str) -> subprocess.CompletedProcess[str]:
        """The script's run, with its JSON in the folder."""
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH="{self.folder}:$PYTHONPATH" exec "{sys.executable}" -S "$@"\n')
        python.chmod(0o755)
        made_up = {"FAKE_HOLDERS": str(self.folder / "holders"), "FAKE_SHOWN": str(self.shown), "FAKE_CUDA": "13.0"}
        loaded = {"LD_LIBRARY_PATH": str(self.driver), SCENARIO_VARIABLE: str(self.folder / "scenario")}
        words = [sys.executable, str(SCRIPT), "--torch-python", str(python), "--json", str(self.folder / "out" / "figures.json")]
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=60, env={**os.environ, **made_up, **loaded, **environ})


@dataclass(frozen=True)
class Ended:
    """How a run ended; `steps` is its JSON by the steps' names, empty when none was written."""

    code: int
    stdout: str
    stderr: str
    steps: Mapping[str, Any]


CARD = Card(total_mib=TOTAL_MIB, reserved_mib=RESERVED_MIB)
NO_LIBRARY = 12
RUNS: Mapping[str, tuple[Card, int | None, Mapping[str, str]]] = {
    "whole": (CARD, None, {}),
    "torch that cannot use the card": (replace(CARD, faults=(Fault("nvmlDeviceGetMemoryInfo_v2", 13),)), None, {"FAKE_BROKEN": "1"}),
    "a torch for CPUs": (CARD, None, {"FAKE_CUDA": ""}),
    "no torch": (CARD, None, {"FAKE_TORCH": "none"}),
    "no driver": (CARD, NO_LIBRARY, {}),
}


def _played(folder: Path, driver: Path, card: Card, init_error: int | None, environ: Mapping[str, str]) -> Ended:
    rented = Rented(folder, driver, card, init_error)
    if "FAKE_TORCH" in environ:
        shutil.rmtree(folder / "torch")
    with rented.running():
        done = rented.check(**environ)
    figures = folder / "out" / "figures.json"
    steps = json.loads(figures.read_text())["steps"] if figures.exists() else []
    return Ended(done.returncode, done.stdout, done.stderr, {step["name"]: step for step in steps})


@pytest.fixture(scope="module", name="played")
def _all_played(tmp_path_factory: pytest.TempPathFactory, driver_folder: Path) -> dict[str, Ended]:
    """All runs, at the same time: most of each is waiting."""
    with ThreadPoolExecutor(len(RUNS)) as pool:
        futures = {name: pool.submit(_played, tmp_path_factory.mktemp("rented"), driver_folder, *row) for name, row in RUNS.items()}
        return {name: future.result() for name, future in futures.items()}


@pytest.fixture(name="steps")
def _steps(played: dict[str, Ended]) -> Mapping[str, Any]:
    """The JSON of the run on a healthy machine."""
    whole = played["whole"]
    assert 0 == whole.code, whole.stderr
    return whole.steps


def test_every_step_runs_through(steps: Mapping[str, Any]) -> None:
    """No step of a healthy machine ends in an error."""
    assert dict.fromkeys(("card", "context", "sharing", "exec", "fraction", "release")) == {name: step["error"] for name, step in steps.items()}


def test_the_table_has_every_figure(played: dict[str, Ended], steps: Mapping[str, Any]) -> None:
    """What is in the JSON is on the screen, unknown figures with their reason."""
    printed = {line.split()[0] for line in played["whole"].stdout.splitlines() if line[:2] == "  " != line[2:4]}

    assert {name for step in steps.values() for name in (*step["figures"], *step["unknown"])} == printed


def test_only_what_this_driver_lacks_is_unknown(steps: Mapping[str, Any]) -> None:
    """The stand-in has no persistence and no compute mode; new pid namespaces may be forbidden where the tests run."""
    unknown = {name for step in steps.values() for name in step["unknown"] if "pid_namespace" not in name or name == "pid_namespace_initial"}

    assert {"persistence_mode", "compute_mode"} == unknown


@pytest.mark.parametrize(
    ("step", "name", "expected"),
    [
        pytest.param("card", "v2_reserved_bytes", RESERVED_MIB * MIB, id="reserved as NVML says"),
        pytest.param("card", "guard_reserved_bytes", RESERVED_MIB * MIB, id="reserved as the guard reads it"),
        pytest.param("card", "v1_used_bytes", RESERVED_MIB * MIB, id="v1 counts the reserved part as used"),
        pytest.param("card", "v2_used_counts_reserved", False, id="v2 does not"),
        pytest.param("context", "first_look_cost_bytes", CONTEXT_MIB * MIB, id="a context costs what NVML lost at the first look"),
        pytest.param("context", "first_tensor_cost_bytes", 0, id="four bytes cost nothing here"),
        pytest.param("context", "cublas_cost_bytes", HANDLES_MIB * MIB, id="a cuBLAS handle"),
        pytest.param("context", "cublaslt_cost_bytes", HANDLES_MIB * MIB, id="a cuBLASLt handle"),
        pytest.param("context", "start_cost_bytes", (CONTEXT_MIB + 2 * HANDLES_MIB) * MIB, id="all of it before a vLLM would measure"),
        pytest.param("context", "cuda_total_below_nvml_total_bytes", RESERVED_MIB * MIB, id="CUDA's total is smaller than NVML's"),
        pytest.param("context", "cuda_total_below_nvml_total_minus_reserved_bytes", 0, id="by exactly the reserved part"),
        pytest.param("sharing", "unaccounted_bytes", 0, id="the lists explain all that is held"),
        pytest.param("fraction", "vllm_would_start", True, id="vLLM would start with the guard's fraction"),
        pytest.param("fraction", "start_overhead_bytes", (CONTEXT_MIB + 2 * HANDLES_MIB) * MIB, id="the start overhead of a bare torch"),
    ],
)
def test_a_figure_is_what_the_scenario_holds(steps: Mapping[str, Any], step: str, name: str, expected: object) -> None:
    """Nothing is hard-coded, and nothing is the wrong way round."""
    assert expected == steps[step]["figures"][name]


def test_two_holders_see_each_other(steps: Mapping[str, Any]) -> None:
    """What the first takes is missing to the second, in NVML, and in nobody's list but its own."""
    figures = steps["sharing"]["figures"]
    listed = {entry["who"]: entry["used_bytes"] for entry in figures["compute_listed"]}

    assert figures["nvml_free_fell_with_first_bytes"] == figures["second_saw_free_fall_with_first_bytes"] > 0
    assert {"first holder", "second holder"} == set(listed)
    assert figures["compute_listed"] == figures["compute_listed_from_holder"]
    assert figures["second_holds_bytes"] + CONTEXT_MIB * MIB == listed["second holder"]


def test_a_users_value_that_works_is_kept_and_one_that_cannot_is_lowered(steps: Mapping[str, Any]) -> None:
    """The judgement stands beside what vLLM's inequality says."""
    figures = steps["fraction"]["figures"]
    largest, above, everything = figures["user_values"]

    assert (True, "keeps (uncertain)", False) == (largest["vllm_starts"], largest["guard"], largest["wrong"])
    assert not above["vllm_starts"]
    assert (False, f"lowers to {figures['guard_fraction']}", False) == (everything["vllm_starts"], everything["guard"], everything["wrong"])


def test_the_killed_holders_memory_comes_back(steps: Mapping[str, Any]) -> None:
    """All that the process held and its context."""
    figures = steps["release"]["figures"]

    assert figures["killed_held_bytes"] + CONTEXT_MIB * MIB == figures["came_back_bytes"]
    assert figures["most_free_after_seconds"] <= figures["steady_after_seconds"]


def test_torch_that_cannot_use_the_card_costs_only_its_own_figures(played: dict[str, Ended]) -> None:
    """Each failure is written down with its reason, the next step goes on, and the end says what to do."""
    ended = played["torch that cannot use the card"]
    card, context, exec_step = (ended.steps[name] for name in ("card", "context", "exec"))

    assert 69 == ended.code
    assert "install a torch that this driver supports" in ended.stderr.splitlines()[-1]
    assert "CUDA driver version is insufficient" in context["unknown"]["first_look_cost_bytes"]
    assert TOTAL_MIB * MIB == card["figures"]["v1_total_bytes"]
    assert "nvmlDeviceGetMemoryInfo" in card["unknown"]["v2_reserved_bytes"]
    assert [] == exec_step["figures"]["behind_the_guard"]


@pytest.mark.parametrize(
    ("name", "says", "fix"),
    [
        pytest.param("a torch for CPUs", "is built without CUDA", "TORCH_PYTHON=", id="a torch for CPUs"),
        pytest.param("no torch", "ModuleNotFoundError: No module named 'torch'", "TORCH_PYTHON=", id="no torch"),
        pytest.param("no driver", "no GPU to measure: cannot read GPU memory", "install the NVIDIA driver", id="no driver"),
    ],
)
def test_a_machine_that_lacks_something_gets_one_line(played: dict[str, Ended], name: str, says: str, fix: str) -> None:
    """Exit 69: which, and what to do."""
    ended = played[name]
    last = ended.stderr.splitlines()[-1]

    assert (69, "") == (ended.code, ended.stdout)
    assert says in last
    assert fix in last
