"""The shipped units under a real systemd, with stand-ins for vLLM and the driver: what is started again, what is not, and what is left behind."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from booted_units import STATES, Machine, Unit, booted_machine, cards, inline, install_stand_ins, instance, texts
from doc_pages import ROOT, blocks_of
from model_files import stored, write_checkpoint
from other_worlds import wait_for
from real.server import free_port
from serving_vllm import SCRIPT
from standin_driver import SCENARIO_VARIABLE, Card, Listed

pytestmark = pytest.mark.slow

FULL: Final = Card(free_mib=300, processes=(Listed(1, 80_000),))
SOON: Final = {"RestartSec": "1"}
LOG: Final = ROOT / "tests" / "explain" / "logs" / "gate1_default.log"
USER: Final = "The user, the journal, the caches"
IN_FRONT: Final = "In front of a unit that you have"
# 195 GiB of weights, as holes.
LARGE: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 128_256,
    "hidden_size": 16_384,
    "intermediate_size": 53_248,
    "num_hidden_layers": 40,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
New = Callable[..., Unit]


@pytest.fixture(name="machine", scope="module")
def _machine(driver_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One machine for all tests, installed as docs/systemd.md says."""
    with booted_machine() as machine:
        install_stand_ins(machine, driver_folder, tmp_path_factory.mktemp("vllm"))
        assert machine.shell(texts("Install")[0]) == ""
        yield machine


@pytest.fixture(name="new")
def _new(machine: Machine) -> Iterator[New]:
    """Makes instances, which are stopped at the end."""
    made: list[Unit] = []

    def new(name: str, **options: Any) -> Unit:
        made.append(instance(machine, name, **options))
        return made[-1]

    yield new
    for unit in made:
        machine.run("systemctl", "stop", unit.name)


def start(unit: Unit) -> None:
    """Its first start, which returns once the guard runs."""
    unit.machine.run("systemctl", "start", unit.name)


def assert_nothing_else(unit: Unit, about: Mapping[str, Any]) -> None:
    """The server and its engine are all that there is, in the unit and of its user."""
    assert {about["pid"], about["engine"]} == unit.processes
    assert unit.processes == set(map(int, unit.machine.run("ps", "-o", "pid=", "-U", str(about["uid"])).split()))


def test_an_instance_starts_answers_and_stops(machine: Machine, new: New) -> None:
    """As the user vllm, with the words of its file, and with a claim in the folder that tmpfiles made; a stop that was asked for is no failure."""
    unit = new("qwen", args=inline("ARGS=").removeprefix("ARGS=--port 8000 "))
    machine.shell(texts("Install")[1])
    about = unit.answer()

    words = ["serve", "Qwen/Qwen2.5-7B-Instruct", "--port", str(unit.port), "--max-model-len", "32k", "--compilation-config", '{"mode": 3}']
    assert (words, str(about["pid"])) == (about["words"], unit.show("MainPID"))
    assert (True, "vllm", "/var/cache/vllm") == (about["uid"] != 0, about["environ"]["USER"], about["environ"]["HOME"])
    assert [] == [name for name in about["environ"] if name.startswith("VLLM_GUARD_")]
    assert "1777 root\n" == machine.run("stat", "--format=%a %U", "/run/vllm-guard")
    assert str(about["uid"]) in machine.run("sh", "-c", "stat --format=%u /run/vllm-guard/*").split()
    assert "" == machine.run("ls", "/dev/shm")  # noqa: S108 - that of the machine: the stub's file is in the instance's own
    assert_nothing_else(unit, about)

    machine.run("systemctl", "disable", "--now", unit.name)
    assert ("inactive", "success", "0") == tuple(unit.state[name] for name in ("ActiveState", "Result", "NRestarts"))
    assert set() == unit.processes
    assert "warning" not in unit.journal
    assert "explain" not in unit.journal


def test_what_one_instance_was_promised_is_not_free_for_another(new: New) -> None:
    """Both read an idle card; the first has a claim on 0.92 of it."""
    first, second = new("first"), new("second")
    start(first)
    first.answer()
    start(second)
    second.answer()

    assert "vllm-guard: launch: --gpu-memory-utilization 0.92 unchanged" in first.journal
    assert re.search(r"^vllm-guard: launch: --gpu-memory-utilization 0\.92 to 0\.0\d+ ", second.journal, re.MULTILINE)


def test_two_instances_share_a_card_by_the_setting_of_the_page(new: New) -> None:
    """Each has its part, whoever comes first."""
    name, _, value = inline("VLLM_GUARD_BUDGET=").partition("=")
    launches = []
    for unit in (new("half", environ={name: value}), new("other-half", environ={name: value})):
        start(unit)
        unit.answer()
        launches += re.findall(r"^vllm-guard: launch: --gpu-memory-utilization 0\.92 to (\S+) ", unit.journal, re.MULTILINE)

    assert ["0.4519", "0.4519"] == launches


def test_another_user_is_two_lines_away(machine: Machine, new: New) -> None:
    """Those of the page; the caches become hers."""
    machine.run("useradd", "--create-home", "alice")
    unit = new("hers")
    machine.write(f"/etc/systemd/system/{unit.name}.d/user.conf", texts(USER, "ini")[0])
    machine.run("systemctl", "daemon-reload")
    start(unit)

    assert machine.run("id", "-u", "alice").strip() == str(unit.answer()["uid"])
    assert "alice\n" == machine.run("stat", "--dereference", "--format=%U", "/var/cache/vllm")


def test_the_units_have_no_faults(machine: Machine, new: New) -> None:
    """systemd-analyze verify prints nothing, which it would also where it ends well."""
    new("verified")
    machine.shell(texts(IN_FRONT)[0])
    machine.write("/etc/systemd/system/vllm.service", "[Service]\nExecStart=/opt/vllm/bin/vllm serve Qwen/Qwen2.5-7B-Instruct\n")

    assert "" == machine.run("systemd-analyze", "verify", "vllm-guard@verified.service", "vllm.service")


def test_a_name_without_a_file_fails_at_once(machine: Machine) -> None:
    """And is not tried again."""
    unit = Unit(machine, "vllm-guard@nobody.service", 0)
    with pytest.raises(AssertionError, match="Assertion failed on job"):
        start(unit)
    assert ("inactive", "0") == (unit.state["ActiveState"], unit.state["NRestarts"])


def test_a_card_that_is_full_is_tried_again_after_the_delay(machine: Machine, new: New) -> None:
    """75: after the 30 s of the shipped unit, and it starts once there is room. The page shows what the journal holds."""
    unit = new("qwen")
    cards(machine, "qwen", FULL)
    machine.run("journalctl", "--rotate", "--vacuum-time=1us")
    start(unit)
    wait_for(lambda: "auto-restart" == unit.state["SubState"], 20)
    ended = int(unit.show("ExecMainExitTimestampMonotonic"))
    cards(machine, "qwen", Card())
    unit.answer(seconds=60)
    began = int(unit.show("ExecMainStartTimestampMonotonic"))

    assert ("1", True) == (unit.state["NRestarts"], 30e6 <= began - ended < 45e6)
    (step,) = blocks_of("docs/systemd.md", "What each exit code does")[0].steps
    assert step.shown == tuple(machine.shell(step.command).splitlines())


def test_a_driver_that_is_not_loaded_is_tried_again(machine: Machine, new: New) -> None:
    """69, as at boot."""
    unit = new("late", short=SOON)
    cards(machine, "late", Card(), init_error=9)
    start(unit)
    wait_for(lambda: "0" != unit.state["NRestarts"], 20)
    cards(machine, "late", Card())

    assert unit.answer()
    assert "status=69/UNAVAILABLE" in unit.journal


@pytest.mark.parametrize(
    ("code", "environ"),
    [
        pytest.param("64", {"VLLM_GUARD_MARGIN": "lots"}, id="a wrong setting"),
        pytest.param("78", {"MODEL": "/opt/models/large"}, id="a model larger than the card"),
        pytest.param("126", {"VLLM_GUARD_VLLM": "/etc/passwd"}, id="a vLLM that cannot be run"),
        pytest.param("127", {"VLLM_GUARD_VLLM": "/no/such/vllm"}, id="a vLLM that is not there"),
    ],
)
def test_what_a_start_cannot_mend_is_not_tried_again(machine: Machine, new: New, tmp_path: Path, code: str, environ: Mapping[str, str]) -> None:
    """The unit is failed for good at once: between two tries it would be activating."""
    if code == "78":
        machine.copy(write_checkpoint(tmp_path / "large", LARGE, stored(LARGE)), "/opt/models/large")
    unit = new(f"fails-{code}", environ=environ, short=SOON)
    start(unit)
    wait_for(lambda: "failed" == unit.state["ActiveState"], 20)
    time.sleep(2)

    assert ("failed", "failed", "exit-code", code, "0") == tuple(unit.state[name] for name in STATES)
    assert "explain" not in unit.journal


@pytest.mark.parametrize("killed", ["pid", "engine"])
def test_a_killed_server_is_started_again_and_nothing_is_left_behind(machine: Machine, new: New, killed: str) -> None:
    """The server leaves its engine to systemd; with its engine killed it exits with 0. No process is left, and no shared memory."""
    unit = new(f"killed-{killed}", short=SOON)
    start(unit)
    before = unit.answer()
    machine.run("kill", "-KILL", str(before[killed]))
    after = unit.answer_of_another(before)

    assert {before["pid"], before["engine"]}.isdisjoint({after["pid"], after["engine"]})
    assert ("1", []) == (unit.state["NRestarts"], after["shared_memory"])
    assert_nothing_else(unit, after)


def test_an_engine_that_does_not_hear_term_is_killed_before_the_next_start(machine: Machine, new: New) -> None:
    """After the time that the unit gives it."""
    unit = new("deaf", environ={"STUB_DEAF": "1"}, short={**SOON, "TimeoutStopSec": "3"})
    start(unit)
    before = unit.answer()
    began = time.monotonic()
    machine.run("kill", "-KILL", str(before["pid"]))
    after = unit.answer_of_another(before)

    assert time.monotonic() - began >= 4
    assert_nothing_else(unit, after)


def test_a_stop_ends_a_server_that_does_not_hear_term(machine: Machine, new: New) -> None:
    """As one in the middle of its start."""
    unit = new("stuck", environ={"STUB_DEAF": "1"}, short={"TimeoutStopSec": "3"})
    start(unit)
    unit.answer()
    began = time.monotonic()
    machine.run("systemctl", "stop", unit.name)

    assert 3 <= time.monotonic() - began < 10
    assert ("failed", "timeout", set()) == (unit.state["ActiveState"], unit.state["Result"], unit.processes)


def test_a_failed_start_is_explained_in_the_journal_and_tried_again(new: New) -> None:
    """With cause, numbers and fix, each time: the service reads its own lines."""
    unit = new("unlucky", environ={"STUB_LOG": str(LOG)}, short=SOON)
    start(unit)
    wait_for(lambda: unit.journal.count("vllm-guard: explain: not enough memory was free when vLLM started (gate_free_memory, certain)") > 1, 30)

    assert re.search(r"^  fix: --gpu-memory-utilization 0\.7\d", unit.journal, re.MULTILINE)
    assert "status=1/FAILURE" in unit.journal


def test_a_wait_may_be_longer_than_any_start_timeout(machine: Machine, new: New) -> None:
    """Type=exec: `systemctl start` is back at once, and the wait goes on until there is room."""
    unit = new("patient", environ={"VLLM_GUARD_WAIT": "60"}, short={"TimeoutStartSec": "2"})
    cards(machine, "patient", FULL)
    start(unit)
    wait_for(lambda: "vllm-guard: waiting, " in unit.journal)
    time.sleep(4)
    assert ("active", None) == (unit.state["ActiveState"], unit.ask())
    cards(machine, "patient", Card())

    assert unit.answer()
    assert "0" == unit.state["NRestarts"]


def test_the_emptied_lines_of_the_page_turn_explaining_off(machine: Machine, new: New) -> None:
    """And take the journal from the service."""
    unit = new("quiet", environ={"STUB_LOG": str(LOG)})
    machine.write(f"/etc/systemd/system/{unit.name}.d/quiet.conf", texts(USER, "ini")[1])
    machine.run("systemctl", "daemon-reload")
    start(unit)
    wait_for(lambda: "auto-restart" == unit.state["SubState"], 20)

    assert "desired CPU memory utilization" in unit.journal
    assert "explain" not in unit.journal
    assert "" == unit.show("SupplementaryGroups")


def test_a_code_that_is_added_stands_beside_the_others(new: New) -> None:
    """As the page says of 2, with which vLLM's own parser ends."""
    name, _, value = inline("RestartPreventExitStatus=").partition("=")
    unit = new("misspelt", environ={"STUB_EXIT": "2"}, short={**SOON, name: value})
    start(unit)
    wait_for(lambda: "failed" == unit.state["ActiveState"], 20)

    assert "2 64 78 126 127" == unit.show("RestartPreventExitStatus")


@pytest.fixture(name="existing")
def _existing(machine: Machine) -> Iterator[Unit]:
    """A unit vllm.service of somebody who does not know the guard, with the shipped drop-in copied beside it."""
    unit = Unit(machine, "vllm.service", free_port())
    environment = f"LD_LIBRARY_PATH=/opt/driver {SCENARIO_VARIABLE}=/opt/scenarios/vllm PYTHONPATH=/opt/modules VLLM_GUARD_SETTLE=0"
    command = f"/opt/vllm/bin/vllm serve org/model --port {unit.port}"
    machine.write("/etc/systemd/system/vllm.service", f"[Service]\nExecStart={command}\nEnvironment={environment}\nRestart=on-failure\n")
    cards(machine, "vllm", Card())
    machine.shell(texts(IN_FRONT)[0])
    machine.write("/etc/systemd/system/vllm.service.d/zz-short.conf", "[Service]\nRestartSec=1\n")
    yield unit
    machine.run("systemctl", "stop", unit.name)


DROP_IN: Final = "/etc/systemd/system/vllm.service.d/vllm-guard.conf"


def assert_guarded(unit: Unit, drop_in: str) -> None:
    """With this text as the drop-in the guard is in front, the words are as before, and an engine that dies is no end."""
    unit.machine.write(DROP_IN, drop_in)
    unit.machine.shell(texts(IN_FRONT)[1])
    before = unit.answer()
    assert ["serve", "org/model", "--port", str(unit.port)] == before["words"]
    assert "vllm-guard: launch: " in unit.machine.shell(inline("journalctl --unit vllm --grep "))
    unit.machine.run("kill", "-KILL", str(before["engine"]))
    assert unit.answer_of_another(before)


def test_a_drop_in_puts_the_guard_in_front_of_a_unit(existing: Unit) -> None:
    """With the unit's own command in it."""
    assert f"\nExecStart=/opt/vllm/bin/vllm serve org/model --port {existing.port}\n" in existing.machine.shell(inline("systemctl cat vllm"))
    shipped = existing.machine.run("cat", DROP_IN)
    command = re.search(r"^ExecStart=/opt/vllm/bin/vllm-guard serve (.+)$", shipped, re.MULTILINE)
    assert command is not None
    assert_guarded(existing, shipped.replace(command[1], f"org/model --port {existing.port}"))


def test_a_drop_in_puts_the_guard_in_front_without_the_command(existing: Unit) -> None:
    """The mount of the page, and vLLM as a module of the guard's own interpreter."""
    existing.machine.write("/opt/modules/vllm/__init__.py", "")
    existing.machine.write("/opt/modules/vllm/entrypoints/cli/main.py", SCRIPT)
    shipped = existing.machine.run("cat", DROP_IN)
    assert_guarded(existing, re.sub(r"^ExecStart=.*\n", "", shipped, flags=re.MULTILINE) + texts(IN_FRONT, "ini")[0])
