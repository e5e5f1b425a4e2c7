"""The loop of a program that gpu_check starts: a JSON line with a command comes in, a JSON line with the answer goes out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

# What torch, ctypes and a stubborn driver raise: each becomes an answer that says so, and the program stays.
_EXPECTED = (RuntimeError, AssertionError, AttributeError, ImportError, OSError, ValueError, TypeError, LookupError)


def answer_lines(commands: Mapping[str, Callable[..., Any]]) -> None:
    """Answers until the asker goes away. stdout of everything else goes to stderr, so that no library's print is taken for an answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        word, *arguments = json.loads(line)
        try:
            answer = {"answer": commands[word](*arguments)}
        except _EXPECTED as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
