"""The real `vllm serve` parser behind a pipe: one JSON list a line in (the words after serve), one JSON object a line out. Starts no engine.

Runs under the interpreter of an installed vLLM, so it may not import the guard. The first line out is `{"version": ..., "defaults": ...}`, then comes
for each command line either `{"set": {dest: value}}` with what differs from the defaults, or `{"rejected": reason}`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import io
import json
import logging
import os
import sys
from argparse import ArgumentParser
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def build() -> tuple[ArgumentParser, ArgumentParser]:
    """The root parser as vLLM's own main builds it, and its serve part."""
    serve = importlib.import_module("vllm.entrypoints.cli.serve")
    try:
        utils = importlib.import_module("vllm.utils.argparse_utils")
    except ModuleNotFoundError:  # 0.10.2 and older
        utils = importlib.import_module("vllm.utils")
    root = utils.FlexibleArgumentParser(prog="vllm")
    commands = root.add_subparsers(required=False, dest="subparser")
    return root, next(command.subparser_init(commands) for command in serve.cmd_init())


def plain(value: Any) -> Any:
    """JSON of a value: a config object by its fields, an enum by its number or name."""
    if isinstance(value, enum.Enum) and not isinstance(value, int):
        return value.name
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name, None)) for field in dataclasses.fields(value)}
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def answer(root: ArgumentParser, defaults: dict[str, Any], argv: list[str]) -> dict[str, Any]:
    """What the parser makes of one command line."""
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        try:
            namespace = vars(root.parse_args(["serve", *argv]))
        except SystemExit as stop:
            return {"rejected": "help" if stop.code == 0 else silence.getvalue()[-2000:]}
        except Exception as error:  # noqa: BLE001  # a traceback of vLLM's is an answer too
            return {"rejected": repr(error)[:2000]}
    same = {dest for dest, value in namespace.items() if dest in defaults and repr(defaults[dest]) == repr(value)}
    return {"set": {dest: plain(value) for dest, value in namespace.items() if dest not in same and dest not in ("subparser", "dispatch_function")}}


def main() -> None:
    """Answer until the input ends."""
    root, serve = build()
    logging.disable(logging.CRITICAL)
    defaults = vars(serve.parse_known_args([])[0])
    print(json.dumps({"version": importlib.import_module("vllm").__version__, "defaults": plain(defaults)}), flush=True)  # noqa: T201  # the answer
    for line in sys.stdin:
        print(json.dumps(answer(root, defaults, json.loads(line))), flush=True)  # noqa: T201  # the answer


if __name__ == "__main__":
    main()
