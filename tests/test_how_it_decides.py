"""docs/how-it-decides.md: its equations are the code's, and every number of its example is worked out anew from the snapshot that it shows."""

from __future__ import annotations

import re
from typing import Any

import pytest
from doc_pages import blocks, read_page
from doc_scenes import POOL_OF_16_MIB, TURING
from guard_process import Ended, Host

from vllm_guard import settle
from vllm_guard.plan import budget
from vllm_guard.units import MIB, floor4, requested_bytes

PAGE = "docs/how-it-decides.md"
EQUATION = "usable      = free - claimed - start ove"
BY_HAND = "usable      = 10106.0 free - 0.0 claimed"

Json = dict[str, Any]


def check(host: Host, *words: str) -> Ended:
    """The page's check, on the page's snapshot."""
    for name, text in TURING.items():
        (host.folder / name).parent.mkdir(exist_ok=True)
        (host.folder / name).write_text(text)
    start = ("check", "./Qwen2.5-0.5B-Instruct", "--guard-snapshot=card.json", "--guard-start-overhead=0", "--guard-json")
    return host.run(*start, *words, cwd=host.folder)


@pytest.fixture(name="decided")
def _decided(host: Host) -> Json:
    """The document of the page's first command."""
    return check(host).document


def mib(size_bytes: int) -> str:
    """In MiB with one decimal."""
    return f"{size_bytes / MIB:.1f}"


def test_the_equation_is_the_one_that_is_reckoned_with(decided: Json) -> None:
    """Its terms, added and subtracted as they stand there, give the budget of the document."""
    device = decided["devices"][0]
    terms = re.findall(r"([-=]) ([a-z ]+?)(?= -|\n)", blocks(PAGE)[EQUATION].text.partition("utilization")[0])
    usable = sum(device[f"{name.replace(' ', '_')}_bytes"] * (1 if sign == "=" else -1) for sign, name in terms)

    assert ["free", "claimed", "start overhead", "outside budget", "margin"] == [name for _, name in terms]
    assert device["gpu_memory_utilization"] == floor4(usable, device["nvml_total_bytes"])
    assert "utilization = usable / total" in blocks(PAGE)[EQUATION].text


def test_the_example_by_hand_is_what_the_program_says(decided: Json) -> None:
    """Line by line, from the document."""
    (device,), demand, fits = decided["devices"], decided["demand"], decided["fits"]
    free, total, fraction = device["free_bytes"], device["nvml_total_bytes"], device["gpu_memory_utilization"]
    terms = {name: device[f"{name.replace(' ', '_')}_bytes"] for name in ("free", "claimed", "start overhead", "outside budget", "margin")}
    usable, given = 2 * free - sum(terms.values()), requested_bytes(total, fraction)
    weights, activations, graphs = (demand[name]["likely"] for name in ("weights", "activation", "cuda_graphs"))
    pool, sequence = given - weights - activations - graphs, demand["kv_one_sequence"]["likely"]
    tokens, each = decided["settings"]["max_model_len"]["value"], demand["kv_bytes_per_token"]["likely"]
    lines = (
        f"usable      = {' - '.join(f'{mib(size)} {name}' for name, size in terms.items())} = {mib(usable)}",
        f"utilization = {mib(usable)} / {mib(total)} = {usable / total:.5f}, rounded down {floor4(usable, total)}",
        f"budget      = {mib(total)} x {fraction} = {mib(given)}, which is within the {mib(usable)}",
        f"pool        = {mib(given)} - {mib(weights)} weights - {mib(activations)} activations - {mib(graphs)} CUDA graphs = {mib(pool)}",
        f"sequence    = {tokens} tokens x {each} bytes = {mib(sequence)}, and the pool holds {pool / sequence:.2f} of them",
    )

    assert "".join(f"{line}\n" for line in lines) == blocks(PAGE)[BY_HAND].text
    assert (fraction, pool, sequence) == (floor4(usable, total), fits["kv_pool_bytes"]["likely"], tokens * each)


def test_the_report_is_told_as_it_was(decided: Json) -> None:
    """The default that was refused there, and the longest length that vLLM named: both are the guard's too."""
    page, settings = " ".join(read_page(PAGE).split()), decided["settings"]["gpu_memory_utilization"]
    device = decided["devices"][0]

    assert "9.87 of 11.0 GiB free when vLLM 0.32.0 looked" in page
    assert (9.87, 11.0) == (round(device["free_bytes"] / 1024**3, 2), device["nvml_total_bytes"] / 1024**3)
    assert f"default of {decided['changes'][0]['from']}, which needs {requested_bytes(device['nvml_total_bytes'], 0.92) / 1024**3:.2f} GiB" in page
    assert "guard" == settings["source"]
    assert "vLLM put the longest that would fit at 1344" in page


@pytest.mark.parametrize(("tokens", "code", "fixes"), [(512, 0, []), (2048, 75, ["--max-model-len 1344"])])
def test_the_two_runs_with_a_small_cache_are_called_as_they_went(host: Host, tokens: int, code: int, fixes: list[str]) -> None:
    """One started, of the other vLLM named the longest length that would fit."""
    ended = check(host, *POOL_OF_16_MIB.split(), "--max-model-len", str(tokens))

    assert (code, fixes) == (ended.code, ended.document["fixes"][:1])


def test_the_overheads_are_those_of_the_code() -> None:
    """Row by row."""
    kinds = {"one rank": budget._ALONE, "several ranks": budget._WITH_COLLECTIVES, "the CPU build": budget._CPU_WORKER}  # noqa: SLF001 - the constants
    rows = [f"| {name} | {each.low // MIB} MiB | {each.likely // MIB} MiB | {each.high // MIB} MiB |" for name, each in kinds.items()]

    assert "\n".join(rows) in read_page(PAGE)


def test_the_times_of_settling_are_those_of_the_code() -> None:
    """How often, how alike, how long."""
    times = f"every {settle._INTERVAL_SECONDS} s until three readings agree within {settle._STEADY_BYTES // MIB} MiB, for at most {settle.AUTO_SECONDS:g} s"  # noqa: SLF001 - as above

    assert times in " ".join(read_page(PAGE).split())
    assert 3 == settle.STEADY_SAMPLES
    assert f"under {settle._MUCH_LESS_FRACTION:.0%}".replace("%", " %") in read_page(PAGE)  # noqa: SLF001 - as above
