"""`vllm-guard gpus`: who holds the memory of which card."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Final

from vllm_guard import speak
from vllm_guard.cli.call import Call, print_line
from vllm_guard.cli.claiming import with_claims
from vllm_guard.errors import MeasureError, UsageError
from vllm_guard.facts import Facts, UnreadableGpu
from vllm_guard.host.reading import read_facts
from vllm_guard.host.visible import all_devices
from vllm_guard.render.gpus import gpus_document, gpus_lines
from vllm_guard.settings import Loaded, Settings
from vllm_guard.subject import find_vllm
from vllm_guard.units import ExitCode

_INTERVAL_SECONDS: Final = 1.0
_CLEAR: Final = "\x1b[H\x1b[J"


def gpus(call: Call, loaded: Loaded, words: Sequence[str]) -> int:
    """The cards with their holders on stdout, once or refreshed every second. Raises MeasureError when there is nothing to show."""
    unknown = [word for word in words if word != "--watch"]
    if unknown:
        msg = f"gpus does not know {unknown[0]!r}"
        raise UsageError(msg, "vllm-guard gpus [--watch] [--guard-json]")
    settings = loaded.settings
    speak.say_warnings(loaded.warnings, settings.log_format)
    device = find_vllm(settings.vllm, settings.vllm_version, invoked=call.invoked, environ=call.environ).device
    if "--watch" in words:
        return _watch(call, settings, device)
    facts = _read(call, settings, device)
    devices = all_devices(facts)
    if settings.as_json:
        print_line(json.dumps(gpus_document(facts, devices), indent=2))
        return ExitCode.OK
    speak.say_warnings((card.warning for card in facts.gpus if isinstance(card, UnreadableGpu)), settings.log_format)
    for line in gpus_lines(facts, devices):
        print_line(line)
    return ExitCode.OK


def _watch(call: Call, settings: Settings, device: str) -> int:
    if not sys.stdout.isatty():
        msg = "gpus --watch redraws a terminal, and stdout is none"
        raise UsageError(msg, "vllm-guard gpus, or --guard-json for machines")
    while True:
        facts = _read(call, settings, device)
        print_line(_CLEAR + "\n".join([f"{facts.taken_at}   every {_INTERVAL_SECONDS:g} s, interrupt to end", *gpus_lines(facts, all_devices(facts))]))
        time.sleep(_INTERVAL_SECONDS)


def _read(call: Call, settings: Settings, device: str) -> Facts:
    """The cards; host memory where vLLM is the CPU build and there are none."""
    facts = read_facts(None, "cuda", call.environ)
    if facts.nvml_fault is None:
        return with_claims(facts, settings, call.environ)
    if device == "cpu":
        return with_claims(read_facts(None, "cpu", call.environ), settings, call.environ)
    raise MeasureError(facts.nvml_fault.reason, facts.nvml_fault.message, facts.nvml_fault.fix)
