"""The grammar of the guard's own flags."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_guard.errors import UsageError
from vllm_guard.flags import SETTINGS, SWITCHES, VALUE_FLAGS, flag_of, mode_off, split_flags, strip_flags, variable_of

PLAIN = ["serve", "m", "--port", "8000", "--", "", "off", "--guard", "-guard-mode", "--Guard-mode=off"]
RIGHT = ["--guard-json", "--guard-mode", "--guard-mode=off", "--guard-mode=", "--guard-margin", "--guard-levers"]
WRONG = ["--guard-nope", "--guard-nope=1", "--guard-", "--guard-json=1", "--guard-max_utilization=1"]
WORDS = st.sampled_from(PLAIN + RIGHT + WRONG)


@pytest.mark.parametrize(
    ("argv", "flags", "rest"),
    [
        pytest.param(["serve", "m"], {}, ["serve", "m"], id="none"),
        pytest.param(
            ["serve", "m", "--guard-margin", "1GiB", "--port", "1"], {"margin": "1GiB"}, ["serve", "m", "--port", "1"], id="the next token is the value"
        ),
        pytest.param(["serve", "--guard-margin=1GiB", "m"], {"margin": "1GiB"}, ["serve", "m"], id="the value after an equals sign"),
        pytest.param(["serve", "--guard-vllm=a=b", "m"], {"vllm": "a=b"}, ["serve", "m"], id="only the first equals sign counts"),
        pytest.param(["--guard-json", "check", "m"], {"json": True}, ["check", "m"], id="a switch takes no token, first of all words"),
        pytest.param(["check", "--guard-dry-run", "1"], {"dry_run": True}, ["check", "1"], id="a switch leaves a number alone"),
        pytest.param(["serve", "--guard-help"], {"help": True}, ["serve"], id="help"),
        pytest.param(["--guard-version"], {"version": True}, [], id="version"),
        pytest.param(["--guard-levers=", "m"], {"levers": ""}, ["m"], id="an empty value with an equals sign"),
        pytest.param(["--guard-levers", "", "m"], {"levers": ""}, ["m"], id="an empty token is a value"),
        pytest.param(["--guard-margin", "--guard-json"], {"margin": "--guard-json"}, [], id="the next token is the value, whatever it is"),
        pytest.param(["--guard-margin", "1", "--guard-margin=2"], {"margin": "2"}, [], id="the last counts"),
        pytest.param(
            ["run", "--guard-margin=1", "--", "x", "--guard-margin=2"],
            {"margin": "1"},
            ["run", "--", "x", "--guard-margin=2"],
            id="nothing after a double dash is ours",
        ),
        pytest.param(["--guard", "-guard-mode=x", "--Guard-mode"], {}, ["--guard", "-guard-mode=x", "--Guard-mode"], id="what only looks like ours"),
    ],
)
def test_flags_of_the_guard_are_told_from_the_rest(argv: list[str], flags: dict[str, str | bool], rest: list[str]) -> None:
    """Ours anywhere before a double dash, the rest in its order."""
    assert (flags, rest) == split_flags(argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(["--guard-marginn=1"], "unknown flag '--guard-marginn'; the nearest known one is --guard-margin", id="a typing error"),
        pytest.param(["--guard-max_utilization", "1"], "the nearest known one is --guard-max-utilization", id="underscores"),
        pytest.param(["--guard-marg=1"], "unknown flag '--guard-marg'", id="an abbreviation"),
        pytest.param(["--guard-"], "unknown flag '--guard-'", id="no name"),
        pytest.param(["--guard-" + "x" * 100_000], "unknown flag", id="an endless name"),
        pytest.param(["--guard-json=1"], "--guard-json takes no value, '1' was given", id="a switch with a value"),
        pytest.param(["--guard-json="], "--guard-json takes no value, '' was given", id="a switch with an empty value"),
        pytest.param(["--guard-margin"], "--guard-margin needs a value", id="no value at the end"),
        pytest.param(["run", "--guard-margin", "--", "x"], "--guard-margin needs a value", id="no value before a double dash"),
    ],
)
def test_a_wrong_flag_is_a_usage_error(argv: list[str], message: str) -> None:
    """It names the flag, and the nearest known one."""
    with pytest.raises(UsageError) as caught:
        split_flags(argv)

    assert message in caught.value.message


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        pytest.param([], {}, False, id="nothing said"),
        pytest.param(["--guard-mode", "off"], {}, True, id="flag and token"),
        pytest.param(["--guard-mode=OFF"], {}, True, id="flag in capitals"),
        pytest.param(["--guard-mode="], {}, True, id="an empty flag is off"),
        pytest.param([], {"VLLM_GUARD_MODE": "Off"}, True, id="variable"),
        pytest.param([], {"VLLM_GUARD_MODE": ""}, True, id="an empty variable is off"),
        pytest.param(["--guard-mode=guard"], {"VLLM_GUARD_MODE": "off"}, False, id="the flag counts before the variable"),
        pytest.param(["--guard-mode=off", "--guard-mode=observe"], {}, False, id="the last flag counts"),
        pytest.param(["--guard-mode=observe", "--guard-mode=off"], {}, True, id="the last flag counts, off"),
        pytest.param(["run", "--", "--guard-mode=off"], {}, False, id="not after a double dash"),
        pytest.param(["--guard-nope", "--guard-json=1", "--guard-mode=off", "--guard-margin"], {}, True, id="whatever else is broken"),
        pytest.param(["--guard-mode"], {"VLLM_GUARD_MODE": "off"}, True, id="a flag without its value says nothing"),
        pytest.param(["--guard-mode=offf"], {}, False, id="another word"),
    ],
)
def test_off_is_read_from_flag_and_environment(argv: list[str], environ: dict[str, str], *, expected: bool) -> None:
    """It needs no other flag to be right."""
    assert expected == mode_off(argv, environ)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(["serve", "--guard-margin", "1", "m", "--guard-json", "x"], ["serve", "m", "x"], id="a value goes along where there is one"),
        pytest.param(["serve", "--guard-nope", "m", "--guard-other=1"], ["serve", "m"], id="an unknown flag goes alone"),
        pytest.param(["serve", "m", "--guard-margin"], ["serve", "m"], id="a value that is not there"),
        pytest.param(["run", "--guard-margin", "--", "x", "--guard-y"], ["run", "--", "x", "--guard-y"], id="up to a double dash"),
    ],
)
def test_off_takes_the_guards_words_out(argv: list[str], expected: list[str]) -> None:
    """vLLM would not know them."""
    assert expected == strip_flags(argv)


@given(st.lists(WORDS, max_size=8), st.dictionaries(st.sampled_from(["VLLM_GUARD_MODE", "X"]), st.text(max_size=3)))
def test_the_three_readings_agree(argv: list[str], environ: dict[str, str]) -> None:
    """What split_flags leaves is what strip_flags leaves, and neither mode_off nor strip_flags ever raises."""
    off = mode_off(argv, environ)
    stripped = strip_flags(argv)
    try:
        flags, rest = split_flags(argv)
    except UsageError:
        return

    assert stripped == rest
    mode = flags.get("mode", environ.get("VLLM_GUARD_MODE"))
    assert off == (isinstance(mode, str) and mode.strip().lower() in ("", "off"))


@given(st.lists(WORDS, max_size=8))
def test_stripping_leaves_nothing_of_ours(argv: list[str]) -> None:
    """No guard flag before the double dash, and everything from there on."""
    stripped = strip_flags(argv)
    end = stripped.index("--") if "--" in stripped else len(stripped)

    assert not [word for word in stripped[:end] if word.startswith("--guard-")]
    assert stripped[end:] == (argv[argv.index("--") :] if "--" in argv else [])


def test_names_are_spelled_two_ways() -> None:
    """One name, one flag, one variable."""
    assert flag_of("max_utilization") == "--guard-max-utilization"
    assert variable_of("max_utilization") == "VLLM_GUARD_MAX_UTILIZATION"
    assert {*SETTINGS, "help", "version"} == {*SWITCHES, *VALUE_FLAGS}


def test_the_way_to_off_needs_no_foreign_library() -> None:
    """A broken pydantic or driver must not stand between the operator and vLLM."""
    code = (
        "import sys; import vllm_guard.flags, vllm_guard.launch, vllm_guard.host.vllm_install;"
        "print(sorted({'pydantic', 'pydantic_settings', 'structlog', 'pynvml', 'psutil', 'yaml', 'importlib.metadata'} & sys.modules.keys()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout

    assert out == "[]\n"
