"""`vllm-guard run -- CMD ...`: becomes another launcher, or says why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from vllm_guard import speak
from vllm_guard.bypass import COMMAND_FIX, around_guard, launch_command
from vllm_guard.cli.call import Call
from vllm_guard.cli.check import report
from vllm_guard.cli.serve import start
from vllm_guard.command.launcher import NO_ENGINE, split_launcher
from vllm_guard.errors import LaunchError, UsageError
from vllm_guard.flags import END_OF_FLAGS
from vllm_guard.launch import require_program
from vllm_guard.settings import Loaded
from vllm_guard.subject import find_launched, read_subject

_USAGE: Final = "vllm-guard run [--guard-... options] -- CMD ..."


def run(call: Call, loaded: Loaded, words: Sequence[str]) -> int:
    """Becomes the command behind the `--`, or returns why not. A command that starts no engine here is executed at once."""
    settings = loaded.settings
    command = around_guard(_command(words), call.argv, call.invoked, call.environ)
    _require_program(command[0], call.environ)
    launcher = split_launcher(command)
    vllm = find_launched(launcher, settings.vllm_version, call.environ)
    if settings.dry_run:
        return report(call, loaded, launcher, vllm)
    if settings.mode == "off":
        launch_command(command, call.environ)
    if launcher.entry == NO_ENGINE:
        speak.say_warnings((*loaded.warnings, *launcher.warnings), settings.log_format)
        launch_command(command, call.environ)
    return start(call, loaded, read_subject(launcher, vllm, call.environ, asks_hub=loaded.asks_hub))


def _command(words: Sequence[str]) -> Sequence[str]:
    if words[:1] == [END_OF_FLAGS] and len(words) > 1:
        return words[1:]
    if not words or words[0] == END_OF_FLAGS:
        msg = "run has no command behind its --"
    elif END_OF_FLAGS in words:
        msg = f"run does not know {words[0]!r}"
    else:
        msg = f"run has no -- before its command, {words[0]!r}"
    raise UsageError(msg, _USAGE)


def _require_program(program: str, environ: Mapping[str, str]) -> None:
    try:
        require_program(program, environ)
    except LaunchError as error:
        raise LaunchError(error.exit_code, error.message, COMMAND_FIX) from error
