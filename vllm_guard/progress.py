"""How a wait is told: one live line on a terminal, a line or an event now and then elsewhere, and word to the service manager at every moment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from typing_extensions import assert_never

from vllm_guard import speak
from vllm_guard.log import Emit, LogFormat, configure
from vllm_guard.notify import notify
from vllm_guard.render.text import PREFIX
from vllm_guard.render.waiting import largest_holder, missing_of, missing_text
from vllm_guard.wait import InVain, Over, Progress, Unsteady, Waiting

_FIRST_SECONDS: Final = (2.0, 10.0, 30.0)
_EACH_SECONDS: Final = 60.0
# Word comes every second; a guard that hangs is ended by the manager after this long.
_EXTEND_USEC: Final = 60_000_000
# The last word: from here on the start is vLLM's, which sends none. A start timeout that ends later stays (systemd, service_extend_timeout).
_LAST_EXTEND_USEC: Final = 600_000_000
_IN_VAIN: Final = "no memory that others free could mend this: it is not waited for"
_CLEAR_LINE: Final = "\r\x1b[K"
_COLUMNS: Final = 80


def next_line_seconds(waited_seconds: float) -> float:
    """When the next line is due: after 2, 10 and 30 s, then each minute."""
    return next((due for due in _FIRST_SECONDS if due > waited_seconds), (waited_seconds // _EACH_SECONDS + 1) * _EACH_SECONDS)


class Teller:
    """Says what it is told on stderr, and to the service manager behind `notify_socket`."""

    def __init__(self, log_format: LogFormat, notify_socket: str | None) -> None:
        self._log_format = log_format
        self._notify_socket = notify_socket
        self._due_seconds = _FIRST_SECONDS[0]
        self._live = False

    def __call__(self, progress: Progress) -> None:
        """Says it, if it is time to."""
        match progress:
            case Waiting():
                text = missing_text(progress.decision, progress.goal, fits=progress.fits)
                self._notify(f"STATUS=waiting, {progress.left_seconds:.0f} s left: {text}", f"EXTEND_TIMEOUT_USEC={_EXTEND_USEC}")
                self._say_waiting(progress, text)
            case Over(waited_seconds):
                self._clear()
                self._notify(f"STATUS=waited {waited_seconds:.0f} s for GPU memory", f"EXTEND_TIMEOUT_USEC={_LAST_EXTEND_USEC}")
            case InVain():
                self._clear()
                self._say_or_emit(_IN_VAIN, lambda emit: emit("not_waiting", message=_IN_VAIN))
            case Unsteady(text):
                self._say(text)
            case _:
                assert_never(progress)

    def _say_waiting(self, waiting: Waiting, text: str) -> None:
        line = f"waiting, {waiting.left_seconds:.0f} s left: {text}"
        if self._is_live():
            self._draw(f"{PREFIX}{line}")
        elif waiting.waited_seconds >= self._due_seconds:
            self._due_seconds = next_line_seconds(waiting.waited_seconds)
            waited, left = round(waiting.waited_seconds, 1), round(waiting.left_seconds, 1)
            self._say_or_emit(line, lambda emit: emit("waiting", message=text, waited_seconds=waited, left_seconds=left, missing=_figures(waiting)))

    def _is_live(self) -> bool:
        return self._log_format != "json" and sys.stderr.isatty()

    def _draw(self, line: str) -> None:
        self._live = True
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
            speak.write(_CLEAR_LINE + line[: columns - 1])

    def _clear(self) -> None:
        if self._live:
            self._live = False
            speak.write(_CLEAR_LINE)

    def _say_or_emit(self, text: str, event: Callable[[Emit], None]) -> None:
        emit = configure(self._log_format, sys.stderr)
        if emit is None:
            self._say(text)
        else:
            event(emit)

    def _say(self, text: str) -> None:
        speak.say([f"{PREFIX}{text}"])

    def _notify(self, *assignments: str) -> None:
        if self._notify_socket:
            notify(self._notify_socket, *assignments)


def _figures(waiting: Waiting) -> dict[str, object] | None:
    """What is missing, for machines."""
    missing = None if waiting.fits else missing_of(waiting.decision, waiting.goal)
    if missing is None:
        return None
    device = missing.plan.device
    holder = largest_holder(device)
    return {
        "device": {"kind": device.kind, "ordinal": device.ordinal, "uuid": device.uuid},
        "have_bytes": missing.have_bytes,
        "need_bytes": missing.need_bytes,
        "holder": None if holder is None else {"pid": holder.pid, "name": holder.name, "used_bytes": holder.used_bytes},
    }
