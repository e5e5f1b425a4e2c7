"""The shipped command on drivers of every kind: what each does to a launch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from guard_process import BUSY, BUSY_ARGV, MODEL, NEIGHBOUR, UNTOUCHED, Call, Ended, Host, rows
from standin_driver import Card, Fault, Listed, build_driver
from test_cli_serve import CONSOLE

H100 = Card()
T4 = Card(name="Tesla T4", total_mib=15_360, reserved_mib=450, capability=(7, 5))
LOST = Fault("*MemoryInfo*", 15)
SETTLING = {"VLLM_GUARD_SETTLE": "auto"}


def fraction(words: Sequence[bytes]) -> float | None:
    """The utilization that was appended."""
    return float(words[-1]) if b"--gpu-memory-utilization" in words else None


FIRST_CARD = {"CUDA_VISIBLE_DEVICES": "GPU-00000000-0000-4000-8000-000000000000"}
SECOND_CARD = {"CUDA_VISIBLE_DEVICES": "1"}
SLICE = Card(name="MIG 1g.10gb", total_mib=9_728, reserved_mib=0, free_mib=5_000)
SERVE = ("serve", MODEL)

# What a driver shows, and the fraction that is appended to argv.
SHOWN: Mapping[str, tuple[Call, float | None]] = {
    "memory that nobody is listed for": (Call(SERVE, cards=[replace(H100, free_mib=31_080)]), 0.3606),
    "a process whose memory is not told": (Call(SERVE, cards=[replace(H100, free_mib=31_080, processes=(Listed(NEIGHBOUR, None),))]), 0.3606),
    "a driver that scrambles its lists": (Call(SERVE, cards=[replace(BUSY, scrambled=True)]), 0.3606),
    "lists that this user may not see": (Call(SERVE, cards=[replace(BUSY, faults=(Fault("*RunningProcesses*", 4),))]), 0.3606),
    "the idle card of two": (Call(SERVE, SECOND_CARD, [BUSY, H100]), None),
    "the worst of two cards": (Call((*SERVE, "-tp", "2"), cards=[H100, BUSY]), 0.3528),
    "a card by its UUID": (Call(SERVE, FIRST_CARD, [H100, BUSY]), None),
    "a lost card that was not chosen": (Call(SERVE, SECOND_CARD, [replace(BUSY, faults=(LOST,)), H100]), None),
    "a MIG slice": (Call(SERVE, cards=[Card(slices=(SLICE, None))]), 0.4281),
}


@pytest.mark.parametrize(("call", "expected"), rows(SHOWN))
def test_what_a_driver_shows_decides(ended: Ended, call: Call, expected: float | None) -> None:
    """Argv is as given where vLLM's own default fits, and has a fraction that fits where it does not."""
    appended = () if expected is None else (b"--gpu-memory-utilization", str(expected).encode())

    assert (0, (*map(os.fsencode, call.words), *appended)) == (ended.code, ended.reached)


def test_an_old_driver_is_read_by_its_old_calls(host: Host, tmp_path: Path) -> None:
    """Without process lists v3 and memory v2: what the driver keeps is not told, so the choice is the same and a given value is kept while in doubt."""
    host.driver = build_driver(tmp_path / "old", old=True)
    host.cards(BUSY)

    assert BUSY_ARGV == host.serve().reached


INIT_ERRORS = {
    1: "nvmlInit: NVML was not initialized",
    4: "nvmlInit: no permission",
    9: "nvmlInit: the nvidia kernel module is not loaded",
    12: "nvmlInit: libnvidia-ml.so.1 is missing or cannot be loaded",
    17: "nvmlInit: NVML error 17",
    18: "nvmlInit: driver and library are of different versions (upgraded, not reloaded)",
    28: "nvmlInit: no NVIDIA GPU found",
    999: "nvmlInit: unknown driver error",
}


@pytest.mark.parametrize(("call", "line"), [(Call(SERVE, CONSOLE, init_error=code), line) for code, line in INIT_ERRORS.items()], ids=map(str, INIT_ERRORS))
def test_each_error_of_the_driver_has_its_own_line(ended: Ended, line: str) -> None:
    """69, no verdict, and a fix that belongs to the error."""
    assert (69, None) == (ended.code, ended.report)
    assert ended.lines[0].startswith(f"vllm-guard: error: cannot read GPU memory: {line}"), ended.lines[0]
    assert ["  no verdict; vllm was not started", "  exit 69: repair the host, then start again"] == [ended.lines[1], ended.lines[-1]]
    assert ended.lines[2].startswith("  fix: ")


def test_a_host_without_the_library(host: Host) -> None:
    """The most frequent mistake: a container without --gpus."""
    ended = host.serve(environ={**CONSOLE, "LD_LIBRARY_PATH": None})

    assert (69, "vllm-guard: error: cannot read GPU memory: nvmlInit: libnvidia-ml.so.1 is missing or cannot be loaded") == (ended.code, ended.lines[0])
    assert "--gpus all" in ended.lines[2]


@pytest.mark.parametrize(
    ("faults", "line"),
    [
        pytest.param((LOST,), "cannot read memory of GPU 0: nvmlDeviceGetMemoryInfo: the GPU is lost (fallen off the bus)", id="from the start"),
        pytest.param((Fault("*", 15, after_calls=2),), "cannot read memory of GPU 0: ", id="between two calls"),
        pytest.param((Fault("*MemoryInfo*", 16),), "cannot read memory of GPU 0: nvmlDeviceGetMemoryInfo: the GPU needs a reset", id="needs a reset"),
    ],
)
def test_a_chosen_card_that_is_lost(host: Host, faults: tuple[Fault, ...], line: str) -> None:
    """69: vLLM would hang or die on it."""
    host.cards(replace(H100, faults=faults), H100)
    chosen = host.serve(environ=CONSOLE)
    other = host.serve(environ={**CONSOLE, "CUDA_VISIBLE_DEVICES": "1"})

    assert (69, True) == (chosen.code, chosen.lines[0].startswith(f"vllm-guard: error: {line}"))
    assert (0, UNTOUCHED) == (other.code, other.reached)
    assert any(text.startswith("vllm-guard: warning: cannot read memory of GPU 0: ") and "does not need that GPU" in text for text in other.lines[1:])


def test_different_cards_in_an_order_that_is_not_known(host: Host) -> None:
    """CUDA orders by speed: the worst card that may be meant decides, and the variable that ends the doubt is named."""
    host.cards(replace(T4, free_mib=8_000), H100)
    doubt = host.serve(environ={**CONSOLE, "CUDA_VISIBLE_DEVICES": "1"})
    certain = host.serve(environ={**CONSOLE, "CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})

    assert (0.4591, None) == (fraction(doubt.reached), fraction(certain.reached))
    assert any("set CUDA_DEVICE_ORDER=PCI_BUS_ID" in line for line in doubt.lines[1:])


TEARDOWN = Card(
    free_mib=tuple((0.4 * step, min(81_080, 2_000 + 14_000 * step)) for step in range(7)), processes=(Listed(NEIGHBOUR, 60_000, until_seconds=2.2),)
)
RESTLESS = Card(free_mib=tuple((0.3 * step, 20_000 + 5_000 * (step % 2)) for step in range(16)))
STUCK = replace(BUSY, free_mib=300)


@pytest.mark.parametrize("call", [Call(SERVE, {**CONSOLE, **SETTLING}, [TEARDOWN])], ids=[""])
def test_a_teardown_is_waited_for(ended: Ended) -> None:
    """The memory that a server gives back over seconds is used, not what was free in the middle of it; after 2 s a line says why it takes so long."""
    assert UNTOUCHED == ended.reached
    assert ended.lines[0].startswith("vllm-guard: free memory is changing (")
    assert ended.lines[0].endswith(" MiB free now), waiting up to 15 s until it is steady")
    assert "vllm-guard: launch: --gpu-memory-utilization 0.92 unchanged (vLLM's default fits): GPU 0 has 81080 of 81559 MiB free" == ended.lines[1]


@pytest.mark.parametrize("call", [Call(SERVE, {**CONSOLE, **SETTLING}, [STUCK])], ids=[""])
def test_a_card_that_stays_full_is_refused_after_a_second(ended: Ended) -> None:
    """Three samples that agree; the time is not waited out, and a short wait says nothing."""
    assert (75, True) == (ended.code, 1 <= ended.seconds < 6)
    assert ended.lines[0].startswith("vllm-guard: refused: ")


@pytest.mark.parametrize("call", [Call(SERVE, {**CONSOLE, "VLLM_GUARD_SETTLE": "1"}, [RESTLESS])], ids=[""])
def test_memory_that_never_rests_is_taken_as_it_is_in_the_end(ended: Ended) -> None:
    """The setting bounds the wait."""
    assert (0, True) == (ended.code, ended.lines[0].startswith("vllm-guard: launch: --gpu-memory-utilization 0.92 to 0."))
    assert ended.seconds >= 1


def test_a_check_waits_for_nothing(host: Host) -> None:
    """One reading, also of a full card."""
    host.cards(STUCK, faults=[Fault("nvmlInitWithFlags", 999, after_calls=1)])

    assert 75 == host.check(environ=SETTLING).code


@pytest.mark.parametrize("card", [H100, Card(processes=(Listed(NEIGHBOUR, 8_000),))], ids=["idle", "a quiet neighbour"])
def test_a_launch_that_fits_on_a_quiet_card_waits_for_nothing(host: Host, card: Card) -> None:
    """One reading, and the last one under the lock of the card: a further one would find the driver broken."""
    host.cards(card, faults=[Fault("nvmlInitWithFlags", 999, after_calls=2)])
    ended = host.serve(environ=SETTLING)

    assert (0, b"stub vllm\n") == (ended.code, ended.stdout)
