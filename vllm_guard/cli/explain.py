"""`vllm-guard explain`: why a start failed, from its log."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from vllm_guard import speak
from vllm_guard.cli.call import Call, print_line
from vllm_guard.errors import UsageError
from vllm_guard.explain.diagnose import diagnose
from vllm_guard.explain.signatures import read_signatures
from vllm_guard.render.explain import explain_document, explain_lines
from vllm_guard.settings import Loaded
from vllm_guard.units import MIB

_USAGE: Final = "vllm-guard explain [FILE|-] [--guard-json]"
_CHUNK_BYTES: Final = MIB
_QUIET_SECONDS: Final = 2.0
_FOUND, _NOT_FOUND = 0, 1


def explain(call: Call, loaded: Loaded, words: Sequence[str]) -> int:
    """0 and the cause on stdout, or 1 where the log has none. Raises UsageError for a file that cannot be read, and where none is named and nothing piped."""
    if len(words) > 1 or (words and words[0].startswith("-") and words[0] != "-"):
        msg = f"explain does not know {words[-1]!r}"
        raise UsageError(msg, _USAGE)
    speak.say_warnings(loaded.warnings, loaded.settings.log_format)
    name = words[0] if words else "-"
    if name == "-" and (sys.stdin is None or (not words and sys.stdin.isatty())):
        msg = "explain reads a file, or what is piped into it"
        raise UsageError(msg, _USAGE)
    try:
        if name == "-":
            found = diagnose(_chunks(sys.stdin.buffer, call.began), read_signatures())
        else:
            with Path(name).open("rb") as file:
                found = diagnose(_chunks(file, call.began), read_signatures())
    except (OSError, ValueError) as error:
        msg = f"the log {name!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise UsageError(msg, _USAGE) from error
    if loaded.settings.as_json:
        print_line(json.dumps(explain_document(found), indent=2))
    else:
        for line in explain_lines(found):
            print_line(line)
    return _NOT_FOUND if found.cause is None else _FOUND


def _chunks(file: BinaryIO, began: float) -> Iterator[bytes]:
    """The file in pieces; on a terminal a line says how far it is when that takes long."""
    read_bytes, said = 0, began
    while chunk := file.read(_CHUNK_BYTES):
        read_bytes += len(chunk)
        if time.perf_counter() - said > _QUIET_SECONDS and sys.stderr.isatty():
            said = time.perf_counter()
            speak.say([f"vllm-guard: explain: {read_bytes // MIB} MiB read"])
        yield chunk
