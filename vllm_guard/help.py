"""`vllm-guard --help`."""

from __future__ import annotations

import textwrap
from typing import Final

from vllm_guard.flags import SWITCHES, flag_of
from vllm_guard.settings import TABLE

_WIDTH: Final = 110
_HEAD: Final = """\
usage: vllm-guard serve MODEL [vllm options] [--guard-... options]
       vllm-guard check MODEL [vllm options] [--guard-... options]
       vllm-guard run [--guard-... options] -- CMD ...
       vllm-guard estimate MODEL [--memory 24GiB]... [--concurrency N] [vllm options]
       vllm-guard explain [LOG|-]
       vllm-guard gpus [--watch] | snapshot [--with-commands] | demo

Put in front of `vllm serve`. It measures free GPU memory, chooses a --gpu-memory-utilization that fits, says what it
changed and why, and becomes vLLM (same PID); or it refuses at once with the numbers, the culprit and the fix.

  serve      what `vllm serve` was, in units, entrypoints and shells
  check      the same decision, nothing started: report on stderr, the command line that would be executed on stdout
  run        another launcher of vLLM: `python -m vllm.entrypoints.openai.api_server ...`, `vllm bench latency ...`
  estimate   what a model needs, and what fits on cards of some size or on these, at each tensor parallel size
  explain    why a start failed, from its log: the cause, the line that proves it, what helps (journalctl -u vllm | vllm-guard explain)
  gpus       who holds the memory of which card
  snapshot   what this host looks like to the guard, as JSON; decide from it with check --guard-snapshot=FILE
  demo       one launch and one refusal on made-up cards: needs no GPU and no vLLM

examples:
  vllm-guard serve Qwen/Qwen3-8B --max-model-len 32k
  vllm-guard check Qwen/Qwen3-8B --tensor-parallel-size 2 --guard-margin=1GiB
  vllm-guard estimate Qwen/Qwen3-8B --memory 24GiB --memory 80GiB --concurrency 16
  VLLM_GUARD_MODE=observe vllm-guard serve Qwen/Qwen3-8B      decide and report, change nothing

Everything that is not a --guard- option is vLLM's: `vllm-guard serve --help` is vLLM's own help.
A link named `vllm` that points at vllm-guard, earlier on PATH: `vllm serve` goes through the guard, the rest straight to vLLM.

settings (flag; environment VLLM_GUARD_NAME; key in the TOML file VLLM_GUARD_CONFIG, else /etc/vllm-guard/config.toml;
sizes such as 512MiB, 8GiB, 1.5GiB, 800MB, bytes):
"""
_TAIL: Final = """
exit codes before vLLM starts (afterwards they are vLLM's own):
  0    check: it would start               64   the guard's own options are wrong
  69   memory could not be measured        70   check: a bug of the guard
  75   refused now, may succeed later      78   refused for good
  126  vLLM cannot be run                  127  vLLM not found
"""


def help_text() -> str:
    """What the guard is, its commands, every setting with its default, and the exit codes."""
    lines = []
    for row in TABLE:
        flag = flag_of(row.name) + ("" if row.name in SWITCHES else "=VALUE")
        lines.append(f"  {flag}  (default {row.default})")
        lines += textwrap.wrap(row.meaning, _WIDTH, initial_indent="      ", subsequent_indent="      ")
    return _HEAD + "\n".join(lines) + "\n" + _TAIL.rstrip("\n")
