"""Events for machines: one JSON object a line on stderr. The only importer of structlog."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final, Literal, Protocol, TextIO

LogFormat = Literal["auto", "json", "console"]
Level = Literal["info", "warning", "error"]
_CONSOLE: Final = "console"


class Emit(Protocol):
    """Writes one event, such as `launch_refused`, with its keys."""

    def __call__(self, event: str, /, *, level: Level = "info", **keys: object) -> None:
        """Nothing comes back; a stream that cannot be written is not an error."""


def configure(log_format: LogFormat, stream: TextIO) -> Emit | None:
    """What writes JSON events to this stream, or None on a console, where text says the same to people.

    `auto` is a console when the stream is a terminal.
    """
    if log_format == _CONSOLE or (log_format == "auto" and stream.isatty()):
        return None
    # structlog.dev imports rich, which vLLM brings, for tracebacks in colour: 40 ms. A module that is None counts as missing.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    import structlog  # noqa: PLC0415 - 15 ms that a console does not need

    logger = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True), structlog.processors.JSONRenderer()],
    )

    def emit(event: str, /, *, level: Level = "info", **keys: object) -> None:
        with suppress(OSError, ValueError):  # a closed pipe, a closed file
            getattr(logger, level)(event, **keys)

    return emit
