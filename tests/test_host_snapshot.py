"""What a snapshot says of processes, and what is believed of one that is read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from builders import cpu_facts, facts, gpu, process

from vllm_guard.facts import Facts, Gpu, GpuProcess
from vllm_guard.host.snapshot import facts_document, parse_facts

WORKER = process(
    51,
    700,
    user="svc",
    command="VLLM::Worker_TP0",
    container="docker 3f1c9a2e77d0",
    unit="vllm@qwen.service",
    vllm=True,
    orphan=True,
    server="pid 50 vllm serve Qwen/Qwen3-8B",
    end_command="kill 51",
)


def documented(world: Facts, **options: bool) -> Any:
    """The document as it is written and read again, for a user named me."""
    return json.loads(json.dumps(facts_document(world, "me", with_commands=options.get("with_commands", False))))


def held(processes: tuple[GpuProcess, ...]) -> Facts:
    """These processes on a card and in host memory."""
    world = facts(gpu(processes=processes))
    return replace(world, host=replace(world.host, processes=processes, processes_unreadable="hidden"))


def test_everything_comes_back() -> None:
    """Who holds what, on cards and in host memory."""
    world = held((WORKER,))

    assert world == parse_facts(documented(world, with_commands=True), {})
    assert (cpu := cpu_facts(total_mib=8192, free_mib=100)) == parse_facts(documented(cpu), {})


def test_of_others_only_numbers_are_written() -> None:
    """No user name and no command line, not of their servers either; one's own are there."""
    document = documented(held((WORKER, replace(WORKER, user="me"))))
    for theirs, own in (document["gpus"][0]["processes"], document["host"]["processes"]):
        assert (None, None, "pid 50", "kill 51") == tuple(theirs[key] for key in ("user", "command", "server", "end_command"))
        assert ("me", "pid 50 vllm serve Qwen/Qwen3-8B") == (own["user"], own["server"])


@pytest.mark.parametrize("command", ["kill -9 51", "kill 51; reboot", "kill 0", "kill 1", "kill -1", "kill 51\n", "", "reboot"])
def test_no_other_command_is_believed(command: str) -> None:
    """A snapshot is anybody's data, and somebody may type what it says."""
    document = documented(held((replace(WORKER, end_command=command),)), with_commands=True)
    (card,) = parse_facts(document, {}).gpus
    assert isinstance(card, Gpu)

    assert [None] == [each.end_command for each in card.processes]


def test_texts_of_a_snapshot_are_masked_and_printable() -> None:
    """As a live reading would have them."""
    evil = "pid 1 --api-key=sesame\x1b[31m\n"
    document = documented(held((replace(WORKER, server=evil, unit=evil, container=evil),)), with_commands=True)
    (known,) = parse_facts(document, {}).host.processes

    for text in (known.server, known.unit, known.container):
        assert text is not None
        assert text.isprintable()
        assert "sesame" not in text
