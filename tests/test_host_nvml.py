"""The cards through the real pynvml, on a stand-in driver that plays what drivers do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pynvml
import pytest
from standin_driver import SCENARIO_VARIABLE, Card, Fault, Listed, build_driver, loaded_driver, write_scenario

from vllm_guard.errors import MeasureError
from vllm_guard.facts import Gpu, UnreadableGpu
from vllm_guard.host import card as card_module
from vllm_guard.host.memory import HostMemory
from vllm_guard.host.nvml import read_gpus
from vllm_guard.host.nvml_errors import ERRORS, INSUFFICIENT_SIZE, SENSELESS, CallFailedError
from vllm_guard.units import MIB

NOBODY = 4_100_000  # above the pid_max of any common host, so nobody has it

# Every code that the facts about drivers name, with a word that its message must hold.
CODES = {
    1: "not initialized",
    3: "not supported",
    4: "no permission",
    7: "did not fit",
    9: "kernel module",
    12: "libnvidia-ml.so.1",
    13: "too old",
    15: "lost",
    16: "reset",
    18: "different versions",
    23: "resources",
    25: "version of the call",
    27: "not ready",
    28: "no NVIDIA GPU",
    999: "daemon-reload",
    17: "NVML error 17 (The operating system has blocked the request.)",
    29: "NVML error 29 (stand-in error 29)",
}


@pytest.fixture(scope="session", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session", name="old_folder")
def _old_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("old_driver"), old=True)


@pytest.fixture(name="scenario")
def _scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "scenario"
    monkeypatch.setenv(SCENARIO_VARIABLE, str(path))
    return path


@pytest.fixture(name="driver")
def _driver(folder: Path, scenario: Path) -> Iterator[Path]:
    with loaded_driver(folder):
        yield scenario


def read_one(scenario: Path, card: Card) -> Gpu:
    """The card as read, which must be readable."""
    write_scenario(scenario, [card])
    (gpu,) = read_gpus()
    assert isinstance(gpu, Gpu)
    return gpu


def read_refused(scenario: Path, card: Card) -> UnreadableGpu:
    """The card as read, which must be unreadable."""
    write_scenario(scenario, [card])
    (gpu,) = read_gpus()
    assert isinstance(gpu, UnreadableGpu)
    return gpu


def held(gpu: Gpu) -> list[tuple[int, str, int | None]]:
    """What the driver said of each process."""
    return [(process.pid, process.kind, process.used_bytes and process.used_bytes // MIB) for process in gpu.processes]


def test_an_idle_card_is_read_to_the_byte(driver: Path) -> None:
    """Total, free, the driver's reserve, name, uuid and capability are the driver's own."""
    expected = Gpu(
        nvml_index=0,
        uuid="GPU-00000000-0000-4000-8000-000000000000",
        name="NVIDIA H100 80GB HBM3",
        nvml_total_bytes=81559 * MIB,
        free_bytes=81080 * MIB,
        driver_reserved_bytes=479 * MIB,
        compute_capability=(9, 0),
    )
    assert expected == read_one(driver, Card())


def test_different_cards_keep_their_order_and_their_own_processes(driver: Path) -> None:
    """Cards come in NVML's order, each with who is listed on it, the largest first."""
    busy = Card(processes=(Listed(NOBODY, 1000), Listed(NOBODY + 1, 30000)))
    small = Card(name="Tesla T4", total_mib=15360, reserved_mib=451, free_mib=9000, capability=(7, 5))
    write_scenario(driver, [busy, small])
    first, second = read_gpus()
    assert isinstance(first, Gpu)
    assert isinstance(second, Gpu)
    assert ["NVIDIA H100 80GB HBM3", "Tesla T4"] == [first.name, second.name]
    assert [50080 * MIB, 9000 * MIB] == [first.free_bytes, second.free_bytes]
    assert [[(NOBODY + 1, "compute", 30000), (NOBODY, "compute", 1000)], []] == [held(first), held(second)]


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        pytest.param([Listed(NOBODY, 300, "cg")], [(NOBODY, "compute", 300)], id="compute and graphics: compute, counted once"),
        pytest.param([Listed(NOBODY, 300, "g")], [(NOBODY, "graphics", 300)], id="graphics only"),
        pytest.param([Listed(NOBODY, 300, "mc")], [(NOBODY, "mps", 300)], id="an MPS client that is in the compute list too"),
        pytest.param([Listed(NOBODY, 300, "c"), Listed(NOBODY, 400, "g")], [(NOBODY, "compute", 400)], id="two figures: the larger"),
        pytest.param([Listed(NOBODY, None, "c"), Listed(NOBODY, 400, "g")], [(NOBODY, "compute", 400)], id="N/A and a figure: the figure"),
        pytest.param([Listed(NOBODY, None)], [(NOBODY, "compute", None)], id="N/A is unknown and not zero"),
        pytest.param([Listed(NOBODY, 0)], [(NOBODY, "compute", 0)], id="zero is zero"),
    ],
)
def test_a_pid_is_listed_once(driver: Path, listed: Sequence[Listed], expected: list[tuple[int, str, int | None]]) -> None:
    """The three lists become one: the strongest kind, the largest figure, never a sum."""
    assert expected == held(read_one(driver, Card(processes=tuple(listed))))


def test_a_process_of_this_host_is_described(driver: Path) -> None:
    """Name and age come from /proc, for each pid of any card."""
    (process,) = read_one(driver, Card(processes=(Listed(os.getpid(), 300),))).processes
    assert process.name != "unknown"
    assert process.age_seconds is not None


def test_scrambled_records_are_no_process_list(driver: Path) -> None:
    """Drivers 535.43 to .98 write 32 bytes where 24 are read: nobody is accused from garbage."""
    gpu = read_one(driver, Card(scrambled=True, processes=(Listed(NOBODY, 300), Listed(NOBODY + 1, 400))))
    assert ((), "process list unreadable with this driver") == (gpu.processes, gpu.processes_unreadable)
    assert gpu.free_bytes == (81559 - 479 - 700) * MIB


def test_more_memory_than_the_card_has_is_no_process_list(driver: Path) -> None:
    """A figure above the card's total cannot be."""
    gpu = read_one(driver, Card(free_mib=5, processes=(Listed(NOBODY, 81560),)))
    assert ((), "process list unreadable with this driver") == (gpu.processes, gpu.processes_unreadable)


@pytest.mark.parametrize(
    ("faults", "expected", "unreadable"),
    [
        pytest.param([Fault("*Running*_v3", 13)], [NOBODY], None, id="without v3 the v2 calls are used"),
        pytest.param([Fault("*Compute*_v3", ((0, 7),), after_calls=0)], [], "did not fit", id="a list that never fits"),
        pytest.param([Fault("*ComputeRunning*", 13)], [], "too old", id="no version of the compute list"),
        pytest.param([Fault("*Graphics*", 3), Fault("*MPS*", 13)], [NOBODY], None, id="no graphics and no MPS list"),
        pytest.param([Fault("*ComputeRunning*", 4)], [], "no permission", id="a compute list that is closed"),
    ],
)
def test_process_lists_fail_without_the_card(driver: Path, faults: Sequence[Fault], expected: list[int], unreadable: str | None) -> None:
    """Memory stays readable, and why nobody is listed is said."""
    gpu = read_one(driver, Card(processes=(Listed(NOBODY, 300),), faults=tuple(faults)))
    assert expected == [process.pid for process in gpu.processes]
    assert (unreadable or "") in (gpu.processes_unreadable or "")
    assert (unreadable is None) == (gpu.processes_unreadable is None)
    assert gpu.free_bytes == 80780 * MIB


def test_a_list_that_grew_while_it_was_read_is_read_again() -> None:
    """Between its two calls the binding may meet more processes than it made room for."""
    calls = []

    def grown_once(function: str, *args: object) -> list[object]:
        calls.append((function, *args))
        if len(calls) == 1:
            raise CallFailedError(function, INSUFFICIENT_SIZE)
        return []

    assert [] == card_module._read_list(grown_once, "Compute", "handle")  # noqa: SLF001 - a race that no scenario can time
    assert [("nvmlDeviceGetComputeRunningProcesses_v3", "handle")] * 2 == calls


def test_an_old_driver_is_read_with_the_older_calls(old_folder: Path, scenario: Path) -> None:
    """Without memory v2 the driver's reserve is unknown; total and free are the same figures."""
    with loaded_driver(old_folder):
        gpu = read_one(scenario, Card(processes=(Listed(NOBODY, 300),)))
    assert (81559 * MIB, 80780 * MIB, None) == (gpu.nvml_total_bytes, gpu.free_bytes, gpu.driver_reserved_bytes)
    assert [(NOBODY, "compute", 300)] == held(gpu)


@pytest.mark.parametrize("code", [3, 13, 25], ids=["not supported", "not known", "another version"])
def test_memory_without_the_newer_call_is_read_with_the_older(driver: Path, code: int) -> None:
    """Only the driver's reserve is unknown then."""
    gpu = read_one(driver, Card(faults=(Fault("nvmlDeviceGetMemoryInfo_v2", code),)))
    assert (81559 * MIB, 81080 * MIB, None, False) == (gpu.nvml_total_bytes, gpu.free_bytes, gpu.driver_reserved_bytes, gpu.unified)


@pytest.mark.parametrize("open_parent", [True, False], ids=["a parent that may be read", "a parent closed to this container"])
def test_mig_devices_stand_in_place_of_their_card(driver: Path, *, open_parent: bool) -> None:
    """Each slice has its own memory, uuid and processes and knows its parent; an empty slot is passed over."""
    piece = Card(name="NVIDIA A100-SXM4-80GB MIG 3g.40gb", total_mib=40448, reserved_mib=64, processes=(Listed(NOBODY, None),))
    closed = () if open_parent else (Fault("nvmlDeviceGetMemoryInfo*", 4), Fault("*Running*", 4))
    parent = Card(name="NVIDIA A100-SXM4-80GB", total_mib=81920, capability=(8, 0), faults=closed, slices=(None, piece, replace(piece, total_mib=20000)))
    write_scenario(driver, [parent])
    first, second = read_gpus()
    assert isinstance(first, Gpu)
    assert isinstance(second, Gpu)
    assert [0, 0] == [first.nvml_index, second.nvml_index]
    assert ["MIG-00000001-0000-5000-8000-000000000000", "MIG-00000002-0000-5000-8000-000000000000"] == [first.uuid, second.uuid]
    assert "NVIDIA A100-SXM4-80GB MIG 3g.40gb" == first.name
    assert [40448 * MIB, 20000 * MIB] == [first.nvml_total_bytes, second.nvml_total_bytes]
    assert ("GPU-00000000-0000-4000-8000-000000000000", 81920 * MIB if open_parent else None) == (first.mig_parent_uuid, first.mig_parent_total_bytes)
    assert ((8, 0), [(NOBODY, "compute", None)]) == (first.compute_capability, held(first))


@pytest.mark.parametrize(
    "card",
    [
        pytest.param(Card(slices=()), id="none was made"),
        pytest.param(Card(slices=(Card(),), faults=(Fault("nvmlDeviceGetMigDeviceHandleByIndex", 4),)), id="all belong to other containers"),
    ],
)
def test_mig_mode_without_a_device_is_unreadable(driver: Path, card: Card) -> None:
    """A card that is cut and has no piece can serve nobody, and says so."""
    gpu = read_refused(driver, card)
    assert "cannot read memory of GPU 0: MIG mode is on and no MIG device is visible" == gpu.message


def test_one_broken_mig_device_leaves_the_others(driver: Path) -> None:
    """Each slice is read for itself."""
    broken = Card(name="broken", faults=(Fault("nvmlDeviceGetMemoryInfo*", 999),))
    write_scenario(driver, [Card(slices=(broken, Card(total_mib=20000)))])
    first, second = read_gpus()
    assert isinstance(first, UnreadableGpu)
    assert isinstance(second, Gpu)
    assert ("MIG-00000000-0000-5000-8000-000000000000", "broken") == (first.uuid, first.name)


@pytest.mark.parametrize("name", ["NVIDIA GB10", "NVIDIA Thor", "Orin (nvgpu)", "NVIDIA Tegra X1"])
def test_a_unified_board_counts_host_memory(driver: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Where the GPU has no memory of its own, vLLM reads the host's, and so does the guard."""
    monkeypatch.setattr(card_module, "read_host_memory", lambda: HostMemory(1000, 600))
    gpu = read_one(driver, Card(name=name, faults=(Fault("nvmlDeviceGetMemoryInfo*", 3),)))
    assert (True, 1000, 600, None) == (gpu.unified, gpu.nvml_total_bytes, gpu.free_bytes, gpu.driver_reserved_bytes)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        pytest.param("NVIDIA B300", (3, 3), id="a board that is not known to be unified"),
        pytest.param("NVIDIA GB102", (3, 3), id="a name that only begins like one"),
        pytest.param("NVIDIA GB10", (999, 999), id="a unified board with another error"),
        pytest.param("NVIDIA GB10", (3, 999), id="a unified board with another error of the older call"),
    ],
)
def test_no_other_card_counts_host_memory(driver: Path, name: str, codes: tuple[int, int]) -> None:
    """Host memory is never taken for a card's by guess."""
    newer, older = codes
    faults = (Fault("nvmlDeviceGetMemoryInfo_v2", newer), Fault("nvmlDeviceGetMemoryInfo", older))
    gpu = read_refused(driver, Card(name=name, faults=faults))
    assert gpu.message.startswith("cannot read memory of GPU 0: nvmlDeviceGetMemoryInfo: ")


@pytest.mark.parametrize(("code", "words"), CODES.items())
def test_each_error_of_init_has_its_own_words(driver: Path, code: int, words: str) -> None:
    """When NVML does not start there is no verdict, one line that says why, and a fix."""
    write_scenario(driver, [Card()], init_error=code)
    with pytest.raises(MeasureError) as caught:
        read_gpus()
    assert caught.value.message.startswith("cannot read GPU memory: nvmlInit: ")
    assert words in caught.value.message
    assert ("no_gpu" if code == 28 else "driver") == caught.value.reason
    assert caught.value.fix


@pytest.mark.parametrize(("code", "words"), CODES.items())
def test_each_error_of_a_card_stays_with_that_card(driver: Path, code: int, words: str) -> None:
    """The other card is read; the broken one carries index, uuid, name, what is wrong, and a fix."""
    write_scenario(driver, [Card(), Card(name="broken", faults=(Fault("nvmlDeviceGetMemoryInfo*", code),))])
    good, broken = read_gpus()
    assert isinstance(good, Gpu)
    assert isinstance(broken, UnreadableGpu)
    assert (1, "GPU-00000001-0000-4000-8000-000000000000", "broken") == (broken.nvml_index, broken.uuid, broken.name)
    assert broken.message.startswith("cannot read memory of GPU 1: nvmlDeviceGetMemoryInfo: ")
    assert words in broken.message
    assert broken.fix


def test_the_words_are_one_line_and_differ() -> None:
    """No two codes are told alike, and none breaks the line."""
    whats = [text.what for text in ERRORS.values()]
    assert len(set(whats)) == len(whats)
    assert not any("\n" in text.what + text.fix for text in ERRORS.values())
    assert set(ERRORS) <= {*CODES, SENSELESS}


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex*", "nvmlDeviceGetUUID"])
def test_a_card_without_handle_or_uuid_is_unreadable(driver: Path, function: str) -> None:
    """Without an identity nothing is known of a card but its index."""
    gpu = read_refused(driver, Card(faults=(Fault(function, 15),)))
    assert (0, None) == (gpu.nvml_index, gpu.uuid)
    assert "the GPU is lost" in gpu.message


def test_a_name_and_a_capability_may_be_missing(driver: Path) -> None:
    """What no decision about memory needs is optional."""
    gpu = read_one(driver, Card(capability=None, faults=(Fault("nvmlDeviceGetName", 999), Fault("nvmlDeviceGetMigMode", 999))))
    assert ("unknown", None) == (gpu.name, gpu.compute_capability)


@pytest.mark.parametrize("card", [Card(total_mib=0, reserved_mib=0), Card(total_mib=1000, free_mib=1001)], ids=["total is 0", "free is above total"])
def test_figures_that_cannot_be_are_unreadable(driver: Path, card: Card) -> None:
    """A driver's nonsense is not a measurement."""
    assert "makes no sense" in read_refused(driver, card).message


def test_no_card_is_no_measurement(driver: Path) -> None:
    """A driver without cards gives no verdict."""
    write_scenario(driver, [])
    with pytest.raises(MeasureError, match="the driver lists no GPU") as caught:
        read_gpus()
    assert "no_gpu" == caught.value.reason


def test_a_card_can_be_lost_between_two_readings(driver: Path) -> None:
    """What was read before says nothing about now."""
    write_scenario(driver, [Card(faults=(Fault("nvmlDeviceGetMemoryInfo_v2", 15, after_calls=1),))])
    assert [Gpu, UnreadableGpu] == [type(read_gpus()[0]) for _ in range(2)]


def test_memory_of_a_server_that_ends_comes_back_over_time(driver: Path) -> None:
    """Free memory follows the scenario's clock, and a listed process goes when its time is over."""
    card = Card(free_mib=((0, 1000), (50, 70000)), processes=(Listed(NOBODY, 9000, until_seconds=50),))
    write_scenario(driver, [card], epoch_seconds=time.time())
    (before,) = read_gpus()
    write_scenario(driver, [card], epoch_seconds=time.time() - 51)
    (after,) = read_gpus()
    assert isinstance(before, Gpu)
    assert isinstance(after, Gpu)
    assert [(1000 * MIB, 1), (70000 * MIB, 0)] == [(gpu.free_bytes, len(gpu.processes)) for gpu in (before, after)]


def test_sixteen_cards_with_five_hundred_processes(driver: Path) -> None:
    """A full host is read whole."""
    cards = [Card(processes=tuple(Listed(NOBODY + index * 32 + number, number) for number in range(32))) for index in range(16)]
    write_scenario(driver, cards)
    gpus = [gpu for gpu in read_gpus() if isinstance(gpu, Gpu)]
    assert [32] * 16 == [len(gpu.processes) for gpu in gpus]


@pytest.mark.parametrize("init_error", [None, 9], ids=["after a reading", "after a failed start"])
def test_the_session_is_closed(driver: Path, init_error: int | None) -> None:
    """NVML is left before the guard becomes vLLM, so that no descriptor of the driver stays open."""
    write_scenario(driver, [Card(faults=(Fault("nvmlDeviceGetUUID", 999),))], init_error=init_error)
    if init_error is None:
        read_gpus()
    else:
        with pytest.raises(MeasureError):
            read_gpus()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_an_unloadable_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without a driver, and a container without the utility capability, look like this."""

    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", refuse)
    with pytest.raises(MeasureError, match=r"nvmlInit: libnvidia-ml\.so\.1 is missing"):
        read_gpus()


def test_a_missing_binding_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-ml-py there is no verdict, and the fix names the distribution."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MeasureError, match="the Python module pynvml is missing") as caught:
        read_gpus()
    assert "pip install nvidia-ml-py" == caught.value.fix


def test_another_module_of_that_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old pynvml shadows NVIDIA's module: the message names who owns it."""
    monkeypatch.setitem(sys.modules, "pynvml", ModuleType("pynvml"))
    with pytest.raises(MeasureError, match=r"the module pynvml comes from nvidia-ml-py \S+ and lacks nvmlMemory_v2"):
        read_gpus()


def test_a_program_started_with_the_library_path_sees_the_same_cards(folder: Path, scenario: Path) -> None:
    """The way in for whole-program tests: LD_LIBRARY_PATH and the scenario's variable."""
    write_scenario(scenario, [Card(), Card(faults=(Fault("nvmlDeviceGetMemoryInfo*", 15),))])
    code = "import json, vllm_guard.host.nvml as n; print(json.dumps([type(g).__name__ for g in n.read_gpus()]))"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ["Gpu", "UnreadableGpu"] == json.loads(done.stdout)


def test_no_compiler_is_an_error_and_not_a_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests never pass by not running."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="needs a C compiler"):
        build_driver(tmp_path / "driver")


@pytest.mark.parametrize(("before", "after"), [(60_000, 50_000), (50_000, 60_000)], ids=["it grows", "it shrinks"])
def test_a_process_that_changes_between_the_calls_never_makes_more_free_than_there_was(before: int, after: int) -> None:
    """Free and listed are not read at one moment: the least that was free around the list counts."""
    free = iter([before, after])
    answers: dict[str, Callable[[], object]] = {
        "nvmlDeviceGetMemoryInfo": lambda: SimpleNamespace(total=80_000, free=next(free), reserved=0),
        "nvmlDeviceGetComputeRunningProcesses_v3": lambda: [SimpleNamespace(pid=NOBODY, usedGpuMemory=25_000)],
        "nvmlDeviceGetUUID": lambda: "GPU-0",
        "nvmlDeviceGetName": lambda: "card",
        "nvmlDeviceGetCudaComputeCapability": lambda: (9, 0),
    }
    (read,) = card_module.read_card(lambda function, *_: answers.get(function, list)(), 0)

    assert isinstance(read, Gpu)
    assert (50_000, [25_000]) == (read.free_bytes, [process.used_bytes for process in read.processes])
