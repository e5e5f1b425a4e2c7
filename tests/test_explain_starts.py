"""Several starts in one log, several processes in one start, and logs of any size: which start is explained, and what that costs."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterable

import pytest

from vllm_guard.explain.diagnose import Diagnosis, diagnose
from vllm_guard.explain.signatures import read_signatures

SIGNATURES = read_signatures()
MIB = 1 << 20

BEGIN = "(APIServer pid=7) INFO 08-20 18:04:01 [api_server.py:1] vLLM API server version 0.32.0"
READY = "INFO:     Application startup complete."
NO_BLOCKS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
TOO_LONG = (
    "ValueError: To serve at least one request with the model's max seq len (65536), (4.0 GiB KV cache is needed, which is larger than the available KV "
    "cache memory (1.2 GiB). Based on the available memory, the estimated maximum model length is 9824. Try increasing"
)
FREE = "ValueError: Free memory on device cuda:0 (3.5/79.11 GiB) on startup is less than desired GPU memory utilization (0.92, 72.78 GiB). Decrease"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.00 GiB is free."
TRACEBACK = "Traceback (most recent call last):"
LAST = "RuntimeError: Engine core initialization failed. See root cause above."


def explained(lines: Iterable[str]) -> Diagnosis:
    """The diagnosis of a log of these lines."""
    return diagnose(["\n".join(lines).encode()], SIGNATURES)


def failed(message: str, begin: str = BEGIN) -> list[str]:
    """A start that failed."""
    return [begin, TRACEBACK, message, LAST]


UNIT = "Aug 20 18:04:22 host1 systemd[1]: vllm.service: "
LOOPS = {
    "a container that restarts": BEGIN,
    "the banner of new releases": "       █     █     █▄   ▄█       ▄▄ ▄█ █     █ █ ▀▄▀ █  version 0.32.0",
    "a unit that restarts, and logs no more than warnings": f"{UNIT}Scheduled restart job, restart counter is at 3.",
    "a loop in a shell": "+ vllm serve org/model --gpu-memory-utilization 0.9",
    "a terminal": "$ CUDA_VISIBLE_DEVICES=0 vllm serve org/model",
    "a terminal with the guard": "$ vllm-guard serve org/model",
}


@pytest.mark.parametrize("begin", LOOPS.values(), ids=LOOPS)
def test_the_last_start_is_explained_and_the_others_are_named(begin: str) -> None:
    """By cause and line, in their order."""
    found = explained([*failed(NO_BLOCKS, begin), *failed(TOO_LONG, begin), *failed(FREE, begin)])

    assert ("gate_free_memory", 11) == (found.cause, found.line)
    assert [("gate_cache_blocks", 3), ("gate_one_sequence", 7)] == [(also.cause, also.line) for also in found.earlier]


CUT_OFF = {
    "after its first line": [BEGIN],
    "while it loads": [BEGIN, "INFO 08-20 18:04:01 [model.py:1] Resolved architecture: LlamaForCausalLM", "Loading safetensors checkpoint shards:  25% 1/4"],
}


@pytest.mark.parametrize("rest", CUT_OFF.values(), ids=CUT_OFF)
def test_a_last_start_that_is_cut_off_gives_the_one_before(rest: list[str]) -> None:
    """As the log of a container that is restarting right now ends; that start is not named twice."""
    found = explained([*failed(NO_BLOCKS), *failed(FREE), *rest])

    assert ("gate_free_memory", 7, ["gate_cache_blocks"]) == (found.cause, found.line, [also.cause for also in found.earlier])


def test_a_last_start_that_became_ready_has_no_cause() -> None:
    """The ones before are named."""
    found = explained([*failed(NO_BLOCKS), *failed(FREE), BEGIN, READY])

    assert (None, True, ["gate_cache_blocks", "gate_free_memory"]) == (found.cause, found.ready, [also.cause for also in found.earlier])


def test_a_server_that_ran_out_of_memory_later_is_explained_after_its_restart_was_cut_off() -> None:
    """It was ready, and it is what ended."""
    found = explained([BEGIN, READY, TRACEBACK, OOM, BEGIN])

    assert ("oom_at_runtime", 4) == (found.cause, found.line)


def test_a_last_start_with_an_exception_that_nobody_knows_is_not_taken_for_the_one_before() -> None:
    """It failed for another reason, which is shown."""
    found = explained([*failed(FREE), *failed("acme.SpecialError: flux capacitor")])

    assert (None, (7, "acme.SpecialError: flux capacitor")) == (found.cause, found.unknown)


def rank(name: str, lines: Iterable[str]) -> list[str]:
    """The lines of one process."""
    return [f"({name} pid={100 + sum(map(ord, name))}) ERROR 08-20 18:04:22 [multiproc_executor.py:1] {line}" for line in lines]


def interleaved(*processes: list[str]) -> list[str]:
    """A line of each in turn."""
    return [line for together in zip(*processes, strict=True) for line in together]


FRAME = '  File "/usr/lib/vllm/worker.py", line 1, in {}'
RANKS = {
    "eight tensor parallel ranks": [rank(f"Worker_TP{each}", [TRACEBACK, FRAME.format("load_model"), OOM]) for each in range(8)],
    "two engines": [rank(f"EngineCore_DP{each}", [TRACEBACK, FRAME.format("load_model"), OOM]) for each in range(2)],
    "eight ranks of the first engine": [rank(f"VllmWorker rank={each}", [TRACEBACK, FRAME.format("load_model"), OOM]) for each in range(8)],
    "ranks of Ray": [
        [f"\x1b[36m(RayWorkerWrapper pid={each}, ip=10.0.0.{each})\x1b[0m {line}" for line in (TRACEBACK, FRAME.format("load_model"), OOM)] for each in (1, 2)
    ],
}


@pytest.mark.parametrize("processes", RANKS.values(), ids=RANKS)
def test_interleaved_processes_are_one_start(processes: list[list[str]]) -> None:
    """The frames of each belong to its own message: one that stands at another place does not decide."""
    other = rank("Other", [TRACEBACK, FRAME.format("capture_model"), "    return fn()"])
    found = explained([BEGIN, *interleaved(other, *processes), LAST])

    assert ("oom_at_load", "load", "certain", ()) == (found.cause, found.stage, found.confidence, found.earlier)
    assert found.line == 1 + 2 * (len(processes) + 1) + 2


def test_two_api_servers_are_one_start() -> None:
    """Each says the version of the release."""
    servers = [f"(ApiServer_{each} pid={each}) INFO 08-20 18:04:01 [api_server.py:1] vLLM API server version 0.11.2" for each in range(2)]
    found = explained([servers[0], TRACEBACK, FREE, servers[1], LAST])

    assert ("gate_free_memory", 3, ()) == (found.cause, found.line, found.earlier)


def test_a_log_that_is_cut_anywhere_is_read() -> None:
    """Of one whose message is still in it the cause is the same."""
    log = "\n".join(["x" * 300, *failed(FREE), "y" * 300]).encode()
    message = log.index(b"ValueError"), log.index(b"Decrease")
    causes = {(start, end): diagnose([log[start:end]], SIGNATURES).cause for start in range(0, len(log), 23) for end in range(start, len(log), 29)}

    assert {"gate_free_memory"} == {cause for (start, end), cause in causes.items() if start <= message[0] and end >= message[1]}
    assert set(causes.values()) <= {None, "gate_free_memory", "log_incomplete"}


def test_a_line_keeps_its_number_behind_progress_bars() -> None:
    """Carriage returns begin no line; what is glued to the last one is read."""
    bar = "".join(f"Loading safetensors checkpoint shards: {each:3}% Completed | {each}/100\r" for each in range(1000))
    found = explained([BEGIN, bar, bar + FREE, LAST])

    assert ("gate_free_memory", 3, 3.5) == (found.cause, found.line, found.numbers["free_gib"])


LONG = {
    "a message behind ten million bytes without an end": ("z" * 10_000_000 + "\n" + FREE, 3),
    "a message before ten million bytes": (FREE + " " + "z" * 10_000_000, 2),
    "a message behind ten million bytes of a progress bar": ("Loading weights: 1%\r" * 500_000 + FREE, 2),
    "JSON of ten million bytes": ('{"log": "' + FREE + " " + "z" * 10_000_000 + '"}', 2),
    "deep JSON": ('{"log":' * 100_000 + "\n" + FREE, 3),
}


@pytest.mark.parametrize(("text", "line"), LONG.values(), ids=LONG)
def test_lines_of_any_length_are_read(text: str, line: int) -> None:
    """Of each only the beginning counts."""
    found = diagnose((f"{BEGIN}\n{text}\n{LAST}".encode()[at : at + MIB] for at in range(0, len(text) + 1000, MIB)), SIGNATURES)

    assert ("gate_free_memory", line) == (found.cause, found.line)


def test_memory_is_bounded() -> None:
    """A log of 120 MiB: a server that works, ten thousand starts that failed, lines without an end. One pass: the chunks come once."""
    script = """
        import resource, sys
        from vllm_guard.explain.diagnose import diagnose
        from vllm_guard.explain.signatures import read_signatures
        ok = b'INFO:     10.0.0.1:53422 - "POST /v1/chat/completions HTTP/1.1" 200 OK\\n'
        start = {begin!r}.encode() + b"\\n" + {free!r}.encode() + b"\\n"
        noise = b"".join(b"(Worker_%d pid=%d) ERROR error %d\\n" % (i, i, i) for i in range(2000))
        def chunks():
            for _ in range(50):
                yield ok * ((1 << 20) // len(ok))
            for _ in range(70):
                yield b"x" * (1 << 20)
            yield b"\\n"
            for _ in range(100):
                yield start * 100
            yield noise
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = diagnose(chunks(), read_signatures())
        print(found.cause, len(found.earlier), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script).format(begin=BEGIN, free=FREE)], capture_output=True, text=True, check=True)
    cause, earlier, grown_mib = done.stdout.split()

    assert ("gate_free_memory", 1000) == (cause, int(earlier))
    assert int(grown_mib) < 40


def test_ordinary_lines_cost_little() -> None:
    """At least 10 MB of a working server's lines a second of processor time, also on a slow machine."""
    ok = b'INFO:     10.0.0.1:53422 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' * 14_000
    began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    diagnose((ok for _ in range(30)), SIGNATURES)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - began < 30 * len(ok) / 10e6
