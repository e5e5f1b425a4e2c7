"""One table of settings, four ways in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllm_guard import setting_layers
from vllm_guard.errors import UsageError
from vllm_guard.facts import Warn
from vllm_guard.flags import SETTINGS
from vllm_guard.plan.policy import Amount, Policy
from vllm_guard.settings import TABLE, Loaded, load, policy
from vllm_guard.units import GIB, MIB


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the default file, where none is."""
    path = tmp_path / "config.toml"
    monkeypatch.setattr(setting_layers, "CONFIG_PATH", str(path))
    return path


def load_check(flags: dict[str, str | bool] | None = None, environ: dict[str, str] | None = None) -> Loaded:
    """The settings of `check`, which accepts every one of them."""
    return load(flags or {}, environ or {}, command="check")


DEFAULTS = {
    "mode": "guard",
    "margin": "auto",
    "start_overhead": "auto",
    "budget": "none",
    "max_utilization": "auto",
    "min_utilization": "0",
    "min_free": "0",
    "min_kv_cache": "auto",
    "on_explicit": "lower",
    "batched_tokens": "auto",
    "levers": "utilization,batched_tokens",
    "competitors": "share",
    "unmeasured": "auto",
    "wait": "0",
    "settle": "auto",
    "claims": "auto",
    "claims_dir": "auto",
    "remote_metadata": "off",
    "snapshot": "none",
    "vllm": "auto",
    "vllm_version": "auto",
    "dry_run": "false",
    "json": "false",
    "log_format": "auto",
    "termination_log": "/dev/termination-log",
}


def test_the_table_is_the_published_one() -> None:
    """Names and defaults are a contract, each has a meaning, and the flags know the same names."""
    assert {row.name: row.default for row in TABLE} == DEFAULTS
    assert set(SETTINGS) == set(DEFAULTS)
    assert all(row.meaning for row in TABLE)


def test_the_defaults_are_the_policys_own() -> None:
    """Nothing given means what the plan takes for granted."""
    assert Policy() == policy(load_check().settings)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_default_may_be_given_by_name(name: str) -> None:
    """What help shows as the default is accepted and changes nothing."""
    assert load_check().settings == load_check({name: DEFAULTS[name]}).settings


def test_each_way_in_is_stronger_than_the_one_before(config: Path) -> None:
    """Default, then file, then environment, then flag, each setting by itself."""
    config.write_text('margin = "1GiB"\nbudget = "1GiB"\nmin_kv_cache = "1GiB"\n')
    environ = {"VLLM_GUARD_MARGIN": "2GiB", "VLLM_GUARD_BUDGET": "2GiB"}

    loaded = load_check({"margin": "3GiB"}, environ)

    given = loaded.settings
    assert (Amount(3 * GIB), 2 * GIB, GIB, None) == (given.margin, given.budget, given.min_kv_cache, given.start_overhead)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        pytest.param("mode", "OBSERVE", "observe", id="a word in capitals"),
        pytest.param("mode", "", "off", id="an empty mode is off"),
        pytest.param("margin", "512MiB", Amount(512 * MIB), id="a size"),
        pytest.param("margin", "5%", Amount(fraction=0.05), id="a share"),
        pytest.param("margin", " 2.5 % ", Amount(fraction=0.025), id="a decimal share with spaces"),
        pytest.param("margin", "off", Amount(0), id="no margin"),
        pytest.param("margin", "AUTO", None, id="auto in capitals"),
        pytest.param("start_overhead", "800MB", 800_000_000, id="decimal megabytes"),
        pytest.param("start_overhead", "off", 0, id="no overhead"),
        pytest.param("budget", "8GiB", 8 * GIB, id="a budget"),
        pytest.param("budget", "", None, id="an empty budget is none"),
        pytest.param("max_utilization", "1", 1.0, id="the whole card"),
        pytest.param("min_utilization", "0.5", 0.5, id="a floor"),
        pytest.param("min_utilization", "off", 0.0, id="no floor"),
        pytest.param("min_free", "4096", Amount(4096), id="plain bytes"),
        pytest.param("min_kv_cache", "0", 0, id="no least pool"),
        pytest.param("on_explicit", "keep", "keep", id="keep"),
        pytest.param("batched_tokens", "2048", 2048, id="a number of tokens"),
        pytest.param("batched_tokens", "off", "off", id="tokens off"),
        pytest.param("levers", "", frozenset(), id="an empty set"),
        pytest.param("levers", "off", frozenset(), id="levers off"),
        pytest.param("levers", "Utilization", frozenset({"utilization"}), id="one lever"),
        pytest.param("levers", "batched_tokens, utilization", frozenset({"utilization", "batched_tokens"}), id="two levers with a space"),
        pytest.param("unmeasured", "start", "start", id="start unmeasured"),
        pytest.param("settle", "2.5", 2.5, id="seconds"),
        pytest.param("settle", "off", 0.0, id="settle off is never"),
        pytest.param("wait", "off", 0.0, id="wait off"),
        pytest.param("wait", "", 0.0, id="an empty wait"),
        pytest.param("wait", "90", 90.0, id="a wait"),
        pytest.param("wait", "1.5", 1.5, id="a wait of a part of a second"),
        pytest.param("claims", "off", "off", id="claims off"),
        pytest.param("claims", "", "off", id="an empty claims is off"),
        pytest.param("claims_dir", "/run/x", "/run/x", id="a folder of claims"),
        pytest.param("claims_dir", "off", None, id="no folder of claims is auto"),
        pytest.param("competitors", "off", "share", id="competitors off"),
        pytest.param("remote_metadata", "0", False, id="no remote metadata, as a boolean"),
        pytest.param("remote_metadata", "on", True, id="remote metadata"),
        pytest.param("snapshot", "./facts.json", "./facts.json", id="a file"),
        pytest.param("snapshot", "off", None, id="no file"),
        pytest.param("vllm", "/opt/vllm/bin/vllm", "/opt/vllm/bin/vllm", id="an executable"),
        pytest.param("vllm_version", "0.32.0+cpu", "0.32.0+cpu", id="a release"),
        pytest.param("dry_run", "Yes", True, id="yes"),
        pytest.param("dry_run", "", False, id="an empty switch in the environment"),
        pytest.param("log_format", "json", "json", id="a log format"),
        pytest.param("termination_log", "", None, id="no termination log"),
        pytest.param("vllm", "", None, id="an empty executable is auto"),
        pytest.param("vllm_version", "", None, id="an empty release is auto"),
        pytest.param("max_utilization", "", None, id="no ceiling"),
        pytest.param("log_format", "", "auto", id="an empty log format is auto"),
    ],
)
def test_a_value_is_read_alike_from_flag_and_environment(name: str, text: str, expected: object) -> None:
    """One grammar for both."""
    by_flag = load_check({name: text}).settings
    by_variable = load_check({}, {f"VLLM_GUARD_{name.upper()}": text}).settings

    assert expected == getattr(by_flag, name)
    assert by_flag == by_variable


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        pytest.param("margin = 1048576", "margin", Amount(MIB), id="bytes as a number"),
        pytest.param('margin = "5%"', "margin", Amount(fraction=0.05), id="text"),
        pytest.param("max_utilization = 0.8", "max_utilization", 0.8, id="a decimal number"),
        pytest.param("batched_tokens = 2048", "batched_tokens", 2048, id="a whole number"),
        pytest.param("settle = false", "settle", 0.0, id="false is off"),
        pytest.param("wait = 0", "wait", 0.0, id="zero seconds"),
        pytest.param("wait = 120", "wait", 120.0, id="seconds"),
        pytest.param("dry_run = true", "dry_run", True, id="a boolean"),
        pytest.param("json = true", "as_json", True, id="the name that is not the attribute's"),
        pytest.param("remote_metadata = false", "remote_metadata", False, id="a boolean, off"),
        pytest.param('levers = ["utilization"]', "levers", frozenset({"utilization"}), id="a list"),
        pytest.param("levers = []", "levers", frozenset(), id="an empty list"),
        pytest.param('mode = "off"', "mode", "off", id="mode off"),
    ],
)
def test_toml_values_may_be_native(config: Path, line: str, name: str, expected: object) -> None:
    """Numbers, booleans and lists need no quotes."""
    config.write_text(line)

    assert expected == getattr(load_check().settings, name)


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        pytest.param("mode", "on", "one of guard, observe, off", id="an unknown word"),
        pytest.param("on_explicit", "", "one of lower, keep", id="empty where nothing is off"),
        pytest.param("margin", "lots", "a size such as 512MiB, a share such as 5%, or auto", id="no size"),
        pytest.param("margin", "-1GiB", "a size", id="a negative size"),
        pytest.param("margin", "0.05", "a share such as 5%", id="a decimal without a unit, which would be 0 bytes"),
        pytest.param("margin", "101%", "a share", id="more than the card"),
        pytest.param("margin", "none", "auto", id="none where there is auto"),
        pytest.param("start_overhead", "5%", "a size such as 512MiB, or auto", id="a share where it is not said"),
        pytest.param("budget", "9" * 5000, "a size", id="more digits than a number may have"),
        pytest.param("budget", "9" * 400 + ".5GiB", "a size", id="more than a float holds"),
        pytest.param("max_utilization", "0", "above 0 and at most 1", id="nothing at all"),
        pytest.param("max_utilization", "1.01", "above 0 and at most 1", id="more than everything"),
        pytest.param("max_utilization", "nan", "above 0 and at most 1", id="not a number"),
        pytest.param("min_utilization", "-0.1", "from 0 to 1", id="a negative floor"),
        pytest.param("batched_tokens", "0", "whole number of tokens (1 or more)", id="no tokens"),
        pytest.param("batched_tokens", "2.5", "whole number of tokens (1 or more)", id="half a token"),
        pytest.param("levers", "utilization,", "utilization, batched_tokens", id="an empty lever"),
        pytest.param("levers", "max_model_len", "utilization, batched_tokens", id="an unknown lever"),
        pytest.param("settle", "inf", "seconds (0 or more)", id="for ever"),
        pytest.param("settle", "-1", "seconds (0 or more)", id="negative seconds"),
        pytest.param("vllm", "a\0b", "a path", id="a path with a zero byte"),
        pytest.param("dry_run", "y", "one of 1, 0, true, false, yes, no, on, off", id="half a word"),
        pytest.param("wait", "auto", "a number of seconds (0 or more), or off", id="no length of time"),
        pytest.param("wait", "-1", "a number of seconds (0 or more), or off", id="a negative wait"),
        pytest.param("claims", "on", "one of auto, off", id="claims cannot be on"),
        pytest.param("remote_metadata", "auto", "one of 1, 0, true, false, yes, no, on, off", id="auto where there is none"),
    ],
)
def test_a_bad_value_says_where_it_came_from_and_what_is_accepted(name: str, text: str, accepted: str) -> None:
    """Setting, value, origin and what would do, in one line; the fix names the place."""
    variable = f"VLLM_GUARD_{name.upper()}"

    with pytest.raises(UsageError) as caught:
        load_check({}, {variable: text})

    assert caught.value.message.startswith(f"{name} {setting_layers.shown(text)} (environment {variable}) is not ")
    assert accepted in caught.value.message
    assert variable in caught.value.fix
    assert len(caught.value.message) < 250


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("margin = 0.05", id="a decimal, which would be 0 bytes"),
        pytest.param("margin = true", id="a boolean"),
        pytest.param("margin = 2024-01-01", id="a date"),
        pytest.param("[margin]\nx = 1", id="a table"),
        pytest.param("margin = [1]", id="a list"),
        pytest.param(f"margin = 0x{'f' * 20_000}", id="a number too long to print"),
    ],
)
def test_a_toml_value_of_the_wrong_kind_is_named_with_its_file(config: Path, line: str) -> None:
    """The file and the key are the origin."""
    config.write_text(line)

    with pytest.raises(UsageError, match=rf"^margin .* \(file {config} key margin\) is not a size"):
        load_check()


def test_a_flag_is_named_as_it_is_typed() -> None:
    """With dashes."""
    with pytest.raises(UsageError, match=r"^max_utilization '2' \(flag --guard-max-utilization\) is not a number"):
        load_check({"max_utilization": "2"})


def test_a_value_that_does_not_count_is_not_read(config: Path) -> None:
    """Only the value that counts is read: a flag mends a broken variable."""
    config.write_text('margin = "lots"')

    assert Amount(MIB) == load_check({"margin": "1MiB"}, {"VLLM_GUARD_MARGIN": "many"}).settings.margin


def test_an_unknown_key_names_the_nearest(config: Path) -> None:
    """A typing error in the file is exit 64, in `serve` too."""
    config.write_text('max-utilization = "0.5"')

    with pytest.raises(UsageError, match=r"unknown key 'max-utilization' in file .*; the nearest known one is max_utilization"):
        load({}, {}, command="serve")


BROKEN = [
    pytest.param(b"margin = ", id="broken syntax"),
    pytest.param(b"margin = '\xff'", id="not UTF-8"),
    pytest.param(b"a = " + b"[" * 100_000, id="nested too deep"),
    pytest.param(b"#" * ((1 << 20) + 1), id="too long"),
]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_is_a_usage_error(config: Path, content: bytes) -> None:
    """Its path and the reason are said."""
    config.write_bytes(content)

    with pytest.raises(UsageError, match=f"cannot use the settings file '{config}': "):
        load_check()


@pytest.mark.parametrize("content", BROKEN)
def test_in_serve_a_broken_default_file_is_a_warning(config: Path, content: bytes) -> None:
    """Nothing asked for it by name; the other settings count."""
    config.write_bytes(content)

    loaded = load({"margin": "1MiB"}, {}, command="serve")

    assert Amount(MIB) == loaded.settings.margin
    assert [(warning.code, str(config) in warning.message) for warning in loaded.warnings] == [("config_unreadable", True)]


@pytest.mark.parametrize("content", BROKEN)
def test_in_serve_a_broken_file_that_was_asked_for_is_a_usage_error(tmp_path: Path, content: bytes) -> None:
    """Who names a file wants it."""
    named = tmp_path / "mine.toml"
    named.write_bytes(content)

    with pytest.raises(UsageError, match="cannot use the settings file"):
        load({}, {"VLLM_GUARD_CONFIG": str(named)}, command="serve")


def test_a_named_file_replaces_the_default_one(config: Path, tmp_path: Path) -> None:
    """One file, not two."""
    config.write_text('margin = "1MiB"')
    named = tmp_path / "mine.toml"
    named.write_text('budget = "2MiB"')

    loaded = load_check({}, {"VLLM_GUARD_CONFIG": str(named)})

    assert (loaded.settings.margin, loaded.settings.budget, loaded.warnings) == (None, 2 * MIB, ())


@pytest.mark.parametrize("named", ["", "/dev/null"])
def test_a_file_can_be_switched_off(config: Path, named: str) -> None:
    """An empty name is no file, and /dev/null is an empty one."""
    config.write_text("broken")

    assert load_check({}, {"VLLM_GUARD_CONFIG": named}).warnings == ()


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """In `serve` too."""
    with pytest.raises(UsageError, match="No such file"):
        load({}, {"VLLM_GUARD_CONFIG": str(tmp_path / "none.toml")}, command="serve")


def test_a_pipe_in_place_of_the_file_does_not_hang(tmp_path: Path) -> None:
    """Nobody writes into it: reading would wait for ever."""
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UsageError, match="not a regular file"):
        load_check({}, {"VLLM_GUARD_CONFIG": str(tmp_path / "pipe")})


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    """Not read, not a crash."""
    with pytest.raises(UsageError, match="directory"):
        load_check({}, {"VLLM_GUARD_CONFIG": str(tmp_path)})


def test_an_unknown_variable_is_a_warning() -> None:
    """A typing error in a unit file is said once, with the nearest name."""
    warnings = load_check({}, {"VLLM_GUARD_MARGN": "1", "VLLM_PORT": "1", "OTHER": ""}).warnings

    assert (Warn("unknown_variable", "environment VLLM_GUARD_MARGN is no setting; the nearest known one is VLLM_GUARD_MARGIN"),) == warnings


def test_what_kubernetes_injects_is_no_warning() -> None:
    """A service named vllm-guard, or vllm-guard-api, in the same namespace."""
    injected = [
        "VLLM_GUARD_PORT",
        "VLLM_GUARD_PORT_8000_TCP",
        "VLLM_GUARD_PORT_8000_TCP_ADDR",
        "VLLM_GUARD_SERVICE_HOST",
        "VLLM_GUARD_SERVICE_PORT_HTTP",
        "VLLM_GUARD_API_PORT_8000_TCP_PROTO",
        "VLLM_GUARD_API_SERVICE_HOST",
    ]

    assert load_check({}, dict.fromkeys(injected, "tcp://10.0.0.1:8000")).warnings == ()


@pytest.mark.parametrize("command", ["serve", "run"])
def test_json_is_not_for_a_launch(command: str) -> None:
    """stdout is vLLM's."""
    with pytest.raises(UsageError, match=r"^json \(flag --guard-json\)"):
        load({"json": True}, {}, command=command)


@pytest.mark.parametrize("command", ["check", "gpus", "explain", "estimate", "snapshot"])
def test_json_is_for_the_commands_that_print(command: str) -> None:
    """Their stdout is ours."""
    assert load({"json": True}, {}, command=command).settings.as_json


def test_json_is_for_a_dry_run() -> None:
    """Nothing is launched."""
    assert load({"json": True, "dry_run": True}, {}, command="serve").settings.as_json


@pytest.mark.parametrize("command", ["serve", "run", "gpus", "explain", "snapshot"])
def test_a_snapshot_is_not_for_a_launch(command: str) -> None:
    """Yesterday's free memory must not start anything."""
    with pytest.raises(UsageError, match=r"^snapshot \(environment VLLM_GUARD_SNAPSHOT\)"):
        load({}, {"VLLM_GUARD_SNAPSHOT": "x"}, command=command)


@pytest.mark.parametrize("command", ["check", "estimate", "demo"])
def test_a_snapshot_is_for_the_commands_that_only_decide(command: str) -> None:
    """They start nothing."""
    assert load({"snapshot": "x"}, {}, command=command).settings.snapshot == "x"


def test_a_snapshot_is_for_a_dry_run() -> None:
    """It starts nothing either."""
    assert load({"snapshot": "x", "dry_run": True}, {}, command="serve").settings.snapshot == "x"


@pytest.mark.parametrize(
    ("command", "flags", "asks"),
    [
        pytest.param("serve", {}, False, id="never on the way to exec"),
        pytest.param("run", {}, False, id="nor to another launcher"),
        pytest.param("serve", {"remote_metadata": "on"}, True, id="unless it is set"),
        pytest.param("check", {}, True, id="check starts nothing"),
        pytest.param("estimate", {}, True, id="estimate starts nothing"),
        pytest.param("serve", {"dry_run": True}, True, id="a dry run is a check"),
        pytest.param("check", {"remote_metadata": "off"}, False, id="check, switched off"),
        pytest.param("serve", {"dry_run": True, "remote_metadata": "off"}, False, id="a dry run, switched off"),
        pytest.param("gpus", {}, False, id="a command without a model"),
    ],
)
def test_a_model_hub_is_asked_by_what_starts_nothing(command: str, flags: dict[str, str | bool], asks: bool) -> None:  # noqa: FBT001 - a column
    """In every other command only where it is set."""
    assert asks == load(flags, {}, command=command).asks_hub


def test_help_and_version_are_no_settings() -> None:
    """They are the command line's own."""
    assert load_check({"help": True, "version": True}) == load_check()


def test_the_policy_takes_what_was_set() -> None:
    """Every field of the policy has its setting."""
    flags: dict[str, str | bool] = {
        "margin": "5%",
        "start_overhead": "1MiB",
        "budget": "2MiB",
        "max_utilization": "0.9",
        "min_utilization": "0.2",
        "min_free": "3MiB",
        "min_kv_cache": "4MiB",
        "on_explicit": "keep",
        "batched_tokens": "1024",
        "levers": "",
    }

    expected = Policy(
        margin=Amount(fraction=0.05),
        start_overhead_bytes=MIB,
        budget_bytes=2 * MIB,
        max_utilization=0.9,
        min_utilization=0.2,
        min_free=Amount(3 * MIB),
        min_kv_cache_bytes=4 * MIB,
        on_explicit="keep",
        batched_tokens=1024,
        levers=frozenset(),
    )
    assert expected == policy(load_check(flags).settings)
