"""What stands around a line of vLLM's output: its own loggers by release, launchers, containers, journals, and the encodings of files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from start_messages import RELEASES

Lines = list[str]
Style = Callable[[Iterable[str]], Lines]
_TIMES: Final = "2026-08-20T18:04:22.123456789Z"


def by_release(lines: Iterable[str], release: str) -> Lines:
    """As the process of an engine of this release prints them at level ERROR."""
    at = RELEASES.index(release)
    if at < RELEASES.index("0.8.5.post1"):
        return [f"ERROR 08-20 18:04:22 engine.py:366] {line}" for line in lines]
    if at < RELEASES.index("0.10.2"):
        return [f"(VllmWorker rank=0 pid=123) ERROR 08-20 18:04:22 [core.py:396] {line}" for line in lines]
    if at < RELEASES.index("0.32.0"):
        return [f"\x1b[1;36m(EngineCore_DP0 pid=123)\x1b[0;0m ERROR 08-20 18:04:22 [core.py:700] {line}" for line in lines]
    return [f"(EngineCore pid=123) ERROR 08-20 18:04:22 [core.py:700] {line}" for line in lines]


def raw_by_release(lines: Iterable[str], release: str) -> Lines:
    """As the interpreter prints a traceback in an engine of this release: only 0.10.2 to 0.30 put something in front of it."""
    if RELEASES.index("0.10.2") <= RELEASES.index(release) < RELEASES.index("0.32.0"):
        return [f"\x1b[1;36m(EngineCore_DP0 pid=123)\x1b[0;0m {line}" for line in lines]
    return list(lines)


def _before(prefix: str) -> Style:
    return lambda lines: [prefix + line for line in lines]


def _as_json(entry: Callable[[str], Mapping[str, object]]) -> Style:
    return lambda lines: [json.dumps(entry(line)) for line in lines]


def _in_one_json(entry: Callable[[str], Mapping[str, object]]) -> Style:
    return lambda lines: [json.dumps(entry("\n".join(lines)))]


STYLES: Final[Mapping[str, Style]] = {
    "nothing": list,
    "docker logs --timestamps": _before(f"{_TIMES} "),
    "docker compose": _before("vllm-1  | "),
    "docker compose of old": _before("vllm_1           | "),
    "docker compose with a container's name and timestamps": _before(f"vllm  | {_TIMES} "),
    "kubernetes (CRI)": _before("2026-08-20T18:04:22.123456789Z stderr F "),
    "kubernetes (CRI) elsewhere": _before("2026-08-20T18:04:22.123456789+02:00 stdout F "),
    "kubectl --prefix": _before("[pod/vllm-7d9f8b6c5-x2x4z/vllm] "),
    "kubectl --prefix --timestamps": _before(f"[pod/vllm-0/vllm] {_TIMES} "),
    "stern": _before("vllm-7d9f8b6c5-x2x4z vllm "),
    "stern of a stateful set": _before("vllm-0 server "),
    "journal, short": _before("Aug 20 18:04:22 host1 vllm[4711]: "),
    "journal, short-precise": _before("Aug 20 18:04:22.123456 host1 vllm[4711]: "),
    "journal, short-iso": _before("2026-08-20T18:04:22+0200 host1 vllm[4711]: "),
    "journal, short-iso-precise": _before("2026-08-20T18:04:22.123456+02:00 host1.example.org vllm[4711]: "),
    "journal, short-full": _before("Thu 2026-08-20 18:04:22 CEST host1 vllm[4711]: "),
    "journal, with-unit": _before("Thu 2026-08-20 18:04:22 CEST host1 vllm@qwen.service[4711]: "),
    "journal, short-unix": _before("1787241862.123456 host1 vllm[4711]: "),
    "journal, short-monotonic": _before("[  123.456789] host1 vllm[4711]: "),
    "journal, export": _before("MESSAGE="),
    "journal, verbose": _before("    MESSAGE="),
    "journal, json": _as_json(lambda line: {"_HOSTNAME": "host1", "_PID": "4711", "PRIORITY": "6", "MESSAGE": line}),
    "journal, json, bytes": lambda lines: [json.dumps({"_PID": "4711", "MESSAGE": list(line.encode())}, separators=(",", ":")) for line in lines],
    "docker's json-file": _as_json(lambda line: {"log": f"{line}\n", "stream": "stderr", "time": _TIMES}),
    "a cloud's textPayload": _as_json(lambda line: {"insertId": "1", "severity": "INFO", "textPayload": f"{line}\n", "timestamp": _TIMES}),
    "a cloud's jsonPayload": _as_json(lambda line: {"jsonPayload": {"message": line, "pid": 1}, "severity": "DEFAULT"}),
    "a collector that calls everything INFO": _as_json(lambda line: {"level": "info", "ts": 1.5, "msg": line, "kubernetes": {"pod": "vllm-0"}}),
    "structlog": _as_json(lambda line: {"event": line, "level": "error", "timestamp": _TIMES, "logger": "vllm"}),
    "python-json-logger": _as_json(lambda line: {"asctime": "2026-08-20 18:04:22,123", "levelname": "ERROR", "name": "vllm", "message": line}),
    "python-json-logger in docker's json-file": _as_json(
        lambda line: {"log": json.dumps({"levelname": "ERROR", "message": line}) + "\n", "stream": "stderr", "time": _TIMES}
    ),
    "one record of JSON": _in_one_json(lambda text: {"levelname": "ERROR", "message": "EngineCore died", "exc_info": text}),
    "one record of JSON behind a time": lambda lines: [f"{_TIMES} stderr F {line}" for line in _in_one_json(lambda text: {"message": text})(lines)],
    "OpenTelemetry": _as_json(lambda line: {"timeUnixNano": "1", "severityText": "ERROR", "body": {"stringValue": line}}),
    "VLLM_LOGGING_PREFIX": _before("[tenant 7: blue] "),
    "Ray": _before("(RayWorkerWrapper pid=67451, ip=10.0.0.1) "),
    "Ray with colours": _before("\x1b[36m(RayWorkerWrapper pid=67451, ip=10.0.0.1)\x1b[0m "),
    "torch's ranks": _before("[rank0]: "),
    "torchrun": _before("[default0]:"),
    "mpirun": _before("[1,0]<stderr>:"),
    "fastchat": _before("2026-08-20 18:04:22 | ERROR | stderr | "),
    "loguru": _before("2026-08-20 18:04:22.123 | ERROR    | app.engine:start:42 - "),
    "Python's logging": _before("2026-08-20 18:04:22,123 - vllm.engine - ERROR - "),
    "GitHub Actions": _before("2026-08-20T18:04:22.1234567Z "),
    "GitHub Actions, gh run view": _before("test\tRun server\t2026-08-20T18:04:22.1234567Z "),
    "a web console's numbers": _before("  12 "),
    "a quotation": _before("> "),
}


def _utf16(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode("utf-16")


ENCODINGS: Final[Mapping[str, Callable[[str], bytes]]] = {
    "UTF-8": str.encode,
    "UTF-8 with its mark": lambda text: text.encode("utf-8-sig"),
    "lines that end as on Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "UTF-16 as PowerShell writes it": _utf16,
    "UTF-16, big-endian": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "UTF-16 without its mark": lambda text: text.encode("utf-16-le"),
    "bytes of Latin-1": lambda text: "\n".join(f"{line} \xfcber" for line in text.splitlines()).encode("latin-1"),
    "NULs of a file cut by logrotate": lambda text: b"\0" * 100_000 + text.encode(),
    "NULs between": lambda text: text.replace(" ", " \0").encode(),
    "terminals' ends of lines": lambda text: text.replace("\n", "\r\r\n").encode(),
    "a progress bar glued to each line": lambda text: "".join(
        f"Loading shards:   0% 0/4\rLoading shards:  50% 2/4\r{line}\n" for line in text.splitlines()
    ).encode(),
}
