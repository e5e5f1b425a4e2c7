"""`vllm-guard gpus`, cards meant to be exclusive, and cards out of balance."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time

import pytest
from builders import change, cpu_facts, facts, gpu, judge, launched, process, refused
from guard_process import GUARD, NEIGHBOUR, Host
from standin_driver import Card, Fault, Listed
from test_claims import hold, record
from test_cli_check import BOOLEAN, PROCESS, TEXT, WHOLE, each, keys, one_of, or_null

from vllm_guard.plan.policy import Policy
from vllm_guard.render.text import evidence_lines, verdict_line

CONSOLE = {"VLLM_GUARD_LOG_FORMAT": "console"}
DEVICE = keys(
    kind=one_of("cuda", "cpu"),
    ordinal=WHOLE,
    nvml_index=or_null(WHOLE),
    uuid=or_null(TEXT),
    name=TEXT,
    nvml_total_bytes=WHOLE,
    driver_reserved_bytes=or_null(WHOLE),
    free_bytes=WHOLE,
    claimed_bytes=WHOLE,
    unaccounted_bytes=lambda value: isinstance(value, int),
    processes=each(PROCESS),
)
CLAIM = keys(uuid=TEXT, promised_bytes=WHOLE, used_bytes=WHOLE, pid=WHOLE, user=or_null(TEXT), ended=BOOLEAN)
GPUS = keys(schema_version=one_of(1), devices=each(DEVICE), claims=each(CLAIM))
TWO = (Card(free_mib=30_000, processes=(Listed(NEIGHBOUR, 50_000),)), Card())


def test_the_table_shows_every_card_with_a_bar_and_its_holders(host: Host) -> None:
    """On stdout, one equation a card that adds up."""
    host.cards(*TWO)
    ended = host.run("gpus", environ=CONSOLE)
    lines = ended.stdout.decode().splitlines()

    assert (0, "") == (ended.code, ended.stderr)
    assert lines[0].startswith("GPU 0  NVIDIA H100 80GB HBM3  GPU-")
    assert lines[1].strip().startswith("[#")
    assert lines[2].strip().startswith(f"pid {NEIGHBOUR}  50000 MiB")
    assert next(line for line in lines[3:] if line[0] != " ").startswith("GPU 1  ")  # in a container a note about hidden processes stands between


def test_the_document_has_the_keys_of_the_contract(host: Host) -> None:
    """Devices without the budget keys."""
    host.cards(*TWO)
    kept = hold(host.claims, record())
    document = host.run("gpus", "--guard-json", environ=CONSOLE).document
    os.close(kept)

    assert GPUS(document)
    assert all("margin_bytes" not in device and "budget_bytes" not in device for device in document["devices"])
    assert [(4711, 50_000 << 20)] == [(claim["pid"], claim["promised_bytes"]) for claim in document["claims"]]
    assert [1, 0] == [len(device["processes"]) for device in document["devices"]]


def test_a_lost_card_is_a_warning_and_the_others_are_shown(host: Host) -> None:
    """What can be seen is shown."""
    host.cards(Card(faults=(Fault("nvmlDeviceGetMemoryInfo*", 15),)), Card())
    ended = host.run("gpus", environ=CONSOLE)

    assert ended.code == 0
    assert ended.lines[0].startswith("vllm-guard: warning: ")
    assert ended.stdout.startswith(b"GPU 1  ")


def test_without_a_driver_there_is_nothing_to_show(host: Host) -> None:
    """69, as anywhere."""
    host.cards(Card(), init_error=9)

    assert host.run("gpus", environ=CONSOLE).code == 69


def test_with_the_cpu_build_host_memory_is_shown(host: Host) -> None:
    """A machine without cards has memory too."""
    host.install("0.32.0+cpu")
    host.cards(Card(), init_error=12)
    ended = host.run("gpus", environ=CONSOLE)

    assert ended.code == 0
    assert ended.stdout.startswith(b"NUMA node 0   total ")


@pytest.mark.parametrize("words", [("--wach",), ("--watch",)], ids=["an unknown word", "no terminal"])
def test_words_that_cannot_be_honoured_are_64(host: Host, words: tuple[str, ...]) -> None:
    """`--watch` redraws a terminal."""
    assert host.run("gpus", *words).code == 64


def test_watch_redraws_until_it_is_interrupted(host: Host) -> None:
    """One refreshing view: what changes on the card changes on the screen."""
    host.cards(Card(free_mib=70_000))
    leader, follower = pty.openpty()
    with subprocess.Popen([str(GUARD), "gpus", "--watch"], env=host.environment({}), stdout=follower, stderr=follower) as watch:
        os.close(follower)
        try:
            assert "free 70000 " in _screen(leader, "free 70000 ")
            host.cards(Card(free_mib=60_000))
            assert "\x1b[H\x1b[J" in _screen(leader, "free 60000 ")
            watch.send_signal(signal.SIGINT)

            assert watch.wait(5) == -signal.SIGINT
        finally:
            watch.kill()
    os.close(leader)


def _screen(leader: int, awaited: str) -> str:
    """What was drawn until this text was there."""
    drawn, deadline = "", time.monotonic() + 10
    while awaited not in drawn and time.monotonic() < deadline:
        if select.select([leader], [], [], 0.2)[0]:
            drawn += os.read(leader, 65_536).decode()
    return drawn


class TestExclusiveCards:
    """competitors=refuse."""

    POLICY = Policy(competitors="refuse")

    def test_a_process_that_computes_refuses(self) -> None:
        """However much is free, and whatever was asked for."""
        refusal = refused(judge(facts(gpu(free_mib=79_000, processes=[process(5, 100), process(6, 1900)])), policy=self.POLICY))

        assert (refusal.reason, refusal.exit_code) == ("competitors", 75)
        assert verdict_line(refusal) == (
            "vllm-guard: refused: GPU 0 is not exclusive as competitors=refuse wants it: pid 6 (1900 MiB) and 1 more on it, "
            "79000 of 81008 MiB free (short by 2008 MiB)"
        )

    def test_graphics_and_those_who_have_ended_do_not_compute(self) -> None:
        """A desktop is no competitor."""
        world = facts(gpu(processes=[process(5, 100, exiting=True)]))

        assert change(judge(world, policy=self.POLICY)) is None

    def test_unknown_amounts_count_too(self) -> None:
        """Somebody is there, even where the driver does not say how much he holds."""
        assert "an unknown amount" in verdict_line(judge(facts(gpu(processes=[process(5, None)])), policy=self.POLICY))

    def test_a_card_that_is_not_chosen_may_be_shared(self) -> None:
        """Only the command's own cards matter."""
        world = facts(gpu(0), gpu(1, processes=[process(5)]), environment={"CUDA_VISIBLE_DEVICES": "0"})

        launched(judge(world, policy=self.POLICY))

    def test_host_memory_is_never_exclusive(self) -> None:
        """The CPU build shares its machine."""
        launched(judge(cpu_facts(total_mib=8192, free_mib=6144), policy=self.POLICY))

    def test_the_setting_reaches_the_decision(self, host: Host) -> None:
        """Through the shipped command."""
        host.cards(*TWO)

        assert host.serve(environ={**CONSOLE, "VLLM_GUARD_COMPETITORS": "refuse"}).code == 75


def test_the_card_that_decides_for_all_is_named_with_what_is_left_unused() -> None:
    """One fraction for all ranks: the fullest card decides."""
    decision = judge(facts(gpu(0, free_mib=70_000), gpu(1, free_mib=60_000)), "-tp", "2")

    assert "  GPU 1 decides for all 2: it can give 57696 MiB, GPU 0 67696 MiB (10000 MiB more)" in evidence_lines(decision)


def test_cards_in_balance_are_not_talked_about() -> None:
    """Nothing to do there."""
    decision = judge(facts(gpu(0, free_mib=60_000), gpu(1, free_mib=60_030)), "-tp", "2")

    assert not any("decides for all" in line for line in evidence_lines(decision))
