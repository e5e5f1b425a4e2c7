"""SECURITY.md: its bounds are those of the code. What it says of behaviour is tested where that behaviour is."""

from __future__ import annotations

import pytest
from doc_pages import read_page

from vllm_guard import setting_layers, speak
from vllm_guard.claims import book, lock, reckon, record
from vllm_guard.command import config_file
from vllm_guard.hub import ask
from vllm_guard.model import files, headers
from vllm_guard.units import MIB

KIB, MB = 1 << 10, 1_000_000
BOUNDS = {
    "config": f"{files.LARGEST_CONFIG_BYTES // MIB} MiB for a config",
    "index": f"{files.LARGEST_INDEX_BYTES // MIB} MiB for an index",
    "headers": f"{headers._LARGEST_HEADER_BYTES // MB} MB for one header and {headers.LARGEST_SUM_BYTES // MB} MB for all",  # noqa: SLF001 - its bounds
    "claims": f"up to {record.LARGEST_BYTES // KIB} KiB, at most {book._MOST_FILES} of them",  # noqa: SLF001 - as above
    "settings": f"Up to {setting_layers._CONFIG_LIMIT_BYTES // MIB} MiB of TOML",  # noqa: SLF001 - as above
    "YAML": f"is read up to {config_file.MAX_CONFIG_CHARACTERS // KIB} KiB with the safe loader",
    "hub": f"at most {ask.SECONDS:g} s, bounded answers, in a child process",
    "descriptor": f"one more ({book._LOWEST_INHERITED}) that holds the claim's lock",  # noqa: SLF001 - as above
    "termination log": f"at most {speak._TERMINATION_LIMIT_BYTES // KIB} KiB",  # noqa: SLF001 - as above
    "a claim's time": f"for {'ten' if reckon.COUNTS_SECONDS == 600 else '?'} minutes at a time",
    "a lock's time": f"costs each start {lock.AT_MOST_SECONDS:g} s",
}


@pytest.mark.parametrize("text", BOUNDS.values(), ids=BOUNDS)
def test_a_bound_is_that_of_the_code(text: str) -> None:
    """Word for word, but for where lines end."""
    assert text in " ".join(read_page("SECURITY.md").split())
