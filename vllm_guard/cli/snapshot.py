"""`vllm-guard snapshot`: the facts of this host as a file."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Sequence

from vllm_guard import speak
from vllm_guard.cli.call import Call, print_line
from vllm_guard.cli.claiming import with_claims
from vllm_guard.errors import UsageError
from vllm_guard.facts import Warn
from vllm_guard.host.reading import read_facts
from vllm_guard.host.snapshot import facts_document
from vllm_guard.settings import Loaded
from vllm_guard.subject import find_vllm
from vllm_guard.units import ExitCode


def snapshot(call: Call, loaded: Loaded, argv: Sequence[str]) -> int:
    """The facts of this host as a document on stdout."""
    unknown = [word for word in argv if word != "--with-commands"]
    if unknown:
        msg = f"snapshot does not know {unknown[0]!r}"
        raise UsageError(msg, "vllm-guard snapshot [--with-commands]")
    settings = loaded.settings
    speak.say_warnings(loaded.warnings, settings.log_format)
    vllm = find_vllm(settings.vllm, settings.vllm_version, invoked=call.invoked, environ=call.environ)
    facts = with_claims(read_facts(vllm.version, vllm.device, call.environ), settings, call.environ)
    if facts.nvml_fault is not None:
        speak.say_warnings((Warn("not_measured", facts.nvml_fault.message),), settings.log_format)
    print_line(json.dumps(facts_document(facts, _own_user(), with_commands="--with-commands" in argv), indent=2))
    return ExitCode.OK


def _own_user() -> str | None:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None
