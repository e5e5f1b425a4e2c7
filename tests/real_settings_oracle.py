"""The real vLLM's resolved settings behind a pipe: JSON objects in, one JSON object a line out. Starts no engine and uses no network.

Runs under the interpreter of an installed vLLM, so it may not import the guard. In comes `{"argv": [words after serve], "usage": ..., "card": ...}`; `card`
is null, or the `[bytes in all, name]` of the card that the batch defaults are to see. Out comes first `{"version": ...}`, then for each line either
`{"max_model_len": ..., "max_num_batched_tokens": ..., "max_num_seqs": ...}` as the engine would get them, or `{"rejected": reason}`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import logging
import os
import sys
import types
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any
from unittest import mock

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

from real_parser_oracle import build  # vLLM reads the environment when it is imported

SETTINGS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")


class StandIn(types.ModuleType):
    """A part of torchvision whose every name is an empty class. Multimodal models import it; to resolve settings none of it is used."""

    def __getattr__(self, name: str) -> type:
        """The empty class of this name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torchvision, which the CPU build of these tests leaves out."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:  # noqa: ARG002  # of the interface
        """A spec for torchvision and all below it."""
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] == "torchvision" else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty module."""
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


@contextlib.contextmanager
def seen_card(engine: Any, card: list[Any] | None) -> Iterator[None]:
    """The batch defaults of a CUDA card, in get_batch_defaults only: everything else stays as on the CPU."""
    if card is None:
        yield
        return
    total_bytes, name = card
    platform = types.SimpleNamespace(get_device_total_memory=lambda: total_bytes, get_device_name=lambda: name, is_tpu=lambda: False, is_cpu=lambda: False)
    own = engine.EngineArgs.get_batch_defaults

    def of_card(world_size: int) -> Any:
        with mock.patch.object(engine, "current_platform", platform):
            return own(world_size)

    with mock.patch.object(engine.EngineArgs, "get_batch_defaults", staticmethod(of_card)):
        yield


def resolve(root: ArgumentParser, engine: Any, line: dict[str, Any]) -> dict[str, Any]:
    """What this command line comes to. With a card the arguments as resolved, because later the CPU platform changes some of them."""
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence), seen_card(engine, line["card"]):
        try:
            namespace = root.parse_args(["serve", *line["argv"]])
            namespace.model = namespace.model_tag or namespace.model
            arguments = engine.AsyncEngineArgs.from_cli_args(namespace)
            usage = importlib.import_module("vllm.usage.usage_lib").UsageContext[line["usage"]]
            config = arguments.create_engine_config(usage_context=usage)
        except SystemExit as stop:
            return {"rejected": "help" if stop.code == 0 else silence.getvalue()[-2000:]}
        except Exception as error:  # noqa: BLE001  # whatever stops the real one is its answer
            return {"rejected": f"{type(error).__name__}: {error}"[:2000]}
    batch = config.scheduler_config if line["card"] is None else arguments
    return dict(zip(SETTINGS, (config.model_config.max_model_len, batch.max_num_batched_tokens, batch.max_num_seqs), strict=True))


def main() -> None:
    """Answer until the input ends."""
    root, _ = build()
    logging.disable(logging.CRITICAL)
    sys.meta_path.append(StandInFinder())  # after what was imported without it
    # It looks at each architecture in a process of its own, lest CUDA be initialized: ten seconds each. Here is none.
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda look: look()  # noqa: SLF001  # see above
    engine = importlib.import_module("vllm.engine.arg_utils")
    print(json.dumps({"version": importlib.import_module("vllm").__version__}), flush=True)  # noqa: T201  # the answer
    for line in sys.stdin:
        print(json.dumps(resolve(root, engine, json.loads(line))), flush=True)  # noqa: T201  # the answer


if __name__ == "__main__":
    main()
