"""Events for machines."""

from __future__ import annotations

import io
import json

import pytest

from vllm_guard.log import LogFormat, configure


class Terminal(io.StringIO):
    """A stream that people look at."""

    def isatty(self) -> bool:
        """True."""
        return True


@pytest.mark.parametrize(
    ("log_format", "stream", "expected"),
    [
        pytest.param("auto", Terminal(), False, id="a terminal gets text"),
        pytest.param("auto", io.StringIO(), True, id="anything else gets events"),
        pytest.param("json", Terminal(), True, id="events on a terminal when asked for"),
        pytest.param("console", io.StringIO(), False, id="text elsewhere when asked for"),
    ],
)
def test_who_reads_decides_the_format(log_format: LogFormat, stream: io.StringIO, *, expected: bool) -> None:
    """People get text, machines events."""
    assert expected == (configure(log_format, stream) is not None)


def test_an_event_is_one_line_of_json() -> None:
    """Whatever its keys hold: line ends, bytes that are no text, values that JSON does not know."""
    stream = io.StringIO()
    emit = configure("json", stream)
    assert emit is not None

    emit("launch_refused", level="error", reason="gpu_busy", free_bytes=1, argv=["a\nb", "\udcff"], odd={1})

    line, rest = stream.getvalue().split("\n", 1)
    event = json.loads(line)
    assert rest == ""
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "launch_refused", "level": "error", "reason": "gpu_busy", "free_bytes": 1, "argv": ["a\nb", "\udcff"], "odd": "{1}"}


def test_a_stream_that_is_gone_is_no_error() -> None:
    """The launch matters more."""
    stream = io.StringIO()
    emit = configure("json", stream)
    assert emit is not None
    stream.close()

    emit("launch")
