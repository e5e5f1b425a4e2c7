"""The shipped units in a booted systemd: installed by the commands of docs/systemd.md, in front of stand-ins for vLLM and the driver."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from doc_pages import ROOT, blocks_of, read_page
from guard_process import GUARD
from other_worlds import booted_systemd, wait_for
from real.server import free_port
from serving_vllm import write_serving_stub
from standin_driver import SCENARIO_VARIABLE, Card, Series, write_scenario

PAGE: Final = read_page("docs/systemd.md")
_PYTHONS: Final = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
STATES: Final = ("ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts")


def texts(heading: str, kind: str = "sh") -> list[str]:
    """The blocks of this kind in a section of docs/systemd.md."""
    return [block.text for block in blocks_of("docs/systemd.md", heading) if block.kind == kind]


def inline(begin: str) -> str:
    """What stands in the running text of docs/systemd.md as code that begins so."""
    found = re.search(rf"`({re.escape(begin)}[^`]*)`", PAGE)
    assert found is not None, begin
    return found[1]


@dataclass(frozen=True, slots=True)
class Machine:
    """A booted machine with /opt/vllm, the units and a stand-in driver on it."""

    inside: list[str]

    def run(self, *words: str, text: str | None = None) -> str:
        """What a command prints on both streams; it must end well."""
        done = subprocess.run([*self.inside, *words], check=False, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, (words, done.stdout)
        return done.stdout

    def shell(self, script: str) -> str:
        """What the commands of a page print, run as they stand there, in the checkout."""
        return self.run("sh", "-ec", f"cd {ROOT}\n{script}")

    def write(self, path: str, text: str) -> None:
        """A file in this machine."""
        self.run("sh", "-ec", 'mkdir -p "${0%/*}"; cat > "$0"', path, text=text)

    def copy(self, source: Path, target: str) -> None:
        """A folder of the host, readable for all users of this machine: what it shares with the host is not, and may lie below /tmp, which units do not see."""
        archive = subprocess.run(["tar", "--create", "--sparse", "--directory", source, "."], check=True, capture_output=True).stdout
        unpack = 'mkdir -p "$0"; tar --extract --no-same-owner --directory "$0"; chmod -R a+rX "$0"'
        subprocess.run([*self.inside, "sh", "-ec", unpack, target], check=True, input=archive)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a machine, and the port that its vLLM listens on."""

    machine: Machine
    name: str
    port: int

    @property
    def state(self) -> dict[str, str]:
        """How the unit is."""
        lines = self.machine.run("systemctl", "show", f"--property={','.join(STATES)}", self.name).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def show(self, name: str) -> str:
        """One property."""
        return self.machine.run("systemctl", "show", f"--property={name}", "--value", self.name).strip()

    def request(self, path: str, body: Mapping[str, object] | None = None) -> str | None:
        """What it answers; None while nobody does."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with suppress(OSError, http.client.HTTPException), closing(connection):
            connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                return response.read().decode() if response.status == HTTPStatus.OK else None
        return None

    def ask(self) -> dict[str, Any] | None:
        """How the stand-in vLLM describes itself; None while nobody listens."""
        text = self.request("/")
        about: dict[str, Any] | None = json.loads(text) if text else None
        return about

    def answer(self, seconds: float = 30) -> dict[str, Any]:
        """The same, waited for."""
        about = wait_for(self.ask, seconds)
        assert about is not None
        return about

    def answer_of_another(self, before: Mapping[str, Any], seconds: float = 30) -> dict[str, Any]:
        """The answer of the server that came after this one."""
        wait_for(lambda: (about := self.ask()) is not None and about["pid"] != before["pid"], seconds)
        return self.answer()

    @property
    def journal(self) -> str:
        """All that the unit and systemd said of it."""
        self.machine.run("journalctl", "--sync")
        return self.machine.run("journalctl", "--output=cat", "--no-pager", f"--unit={self.name}")

    @property
    def processes(self) -> set[int]:
        """Who is left in its cgroup."""
        found = subprocess.run(
            [*self.machine.inside, "sh", "-c", 'grep -lF -- "/$0" /proc/[0-9]*/cgroup', self.name], check=False, capture_output=True, text=True
        )
        return {int(path.split("/")[2]) for path in found.stdout.split()}


def instance(machine: Machine, name: str, *, args: str = "", environ: Mapping[str, str] | None = None, short: Mapping[str, str] | None = None) -> Unit:
    """An instance on an idle card, with the shipped environment file but for port, `args` and `environ`; `short` are directives of a drop-in."""
    unit = Unit(machine, f"vllm-guard@{name}.service", free_port())
    text = (ROOT / "systemd" / "instance.env").read_text(encoding="utf-8").replace("--port 8000", f"--port {unit.port}")
    settings = {
        "LD_LIBRARY_PATH": "/opt/driver",
        SCENARIO_VARIABLE: f"/opt/scenarios/{name}",
        "VLLM_GUARD_WAIT": "0",
        "VLLM_GUARD_SETTLE": "0",
        **(environ or {}),
    }
    text = re.sub("^ARGS=.*$", lambda found: f"{found[0]} {args}", text, flags=re.MULTILINE)
    machine.write(f"/etc/vllm-guard/{name}.env", text + "".join(f"{key}={value}\n" for key, value in settings.items()))
    if short:
        machine.write(f"/etc/systemd/system/{unit.name}.d/short.conf", "[Service]\n" + "".join(f"{key}={value}\n" for key, value in short.items()))
        machine.run("systemctl", "daemon-reload")
    cards(machine, name, Card())
    return unit


def cards(machine: Machine, name: str, *shown: Card, init_error: Series | None = None) -> None:
    """What the driver shows to this instance from now on, in one step."""
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, name)
        write_scenario(draft, shown, init_error)
        machine.write(f"/opt/scenarios/{name}.new", draft.read_text(encoding="utf-8"))
    machine.run("mv", f"/opt/scenarios/{name}.new", f"/opt/scenarios/{name}")


@contextmanager
def booted_machine(*shared: Path) -> Iterator[Machine]:
    """A machine with the checkout and the interpreters of the tests, open to all users, and the guard in /opt/vllm; nothing of systemd/ is installed yet."""
    folders = {folder for folder in (*_PYTHONS, *shared) if not folder.is_relative_to("/usr")}
    with booted_systemd(*folders) as inside:
        machine = Machine(inside)
        # These are folders of this machine, made for the mounts: all users may pass through them to the interpreters.
        above = {parent for folder in folders for parent in folder.parents if not any(parent.is_relative_to(other) for other in folders)}
        machine.run("chmod", "a+rx", *map(str, above))
        machine.run("mkdir", "-p", "/opt/vllm/bin")
        machine.run("cp", str(GUARD), "/opt/vllm/bin/vllm-guard")
        # The units have a /tmp of their own; a checkout or an interpreter that lies there is shown to them.
        hidden = [folder for folder in sorted(folders) if any(folder.is_relative_to(place) for place in ("/tmp", "/var/tmp"))]  # noqa: S108 - as said
        machine.write(
            "/etc/systemd/system/vllm-guard@.service.d/shown.conf", "\n".join(["[Service]", *(f"BindReadOnlyPaths={folder}" for folder in hidden), ""])
        )
        yield machine


def install_stand_ins(machine: Machine, driver: Path, scratch: Path) -> None:
    """A vLLM 0.32.0 that serves, in /opt/vllm, and a driver in /opt/driver."""
    (scratch / "bin").mkdir()
    write_serving_stub(scratch / "bin")
    info = scratch / "lib" / "python3" / "site-packages" / "vllm-0.32.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    machine.copy(scratch, "/opt/vllm")
    machine.copy(driver, "/opt/driver")
