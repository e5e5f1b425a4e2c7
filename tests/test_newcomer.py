"""A newcomer's walk: in a fresh system with nothing but python3, a compiler and make, the commands of README.md and CONTRIBUTING.md in one shell.

Top to bottom, each once. Only a GPU and vLLM are stood in for. What was typed and what came of it is kept in build/newcomer.txt. As root; it takes
about six minutes.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from doc_pages import ROOT, blocks
from doc_scenes import COVERED, ReadBy, Scene
from other_worlds import copy_checkout, need
from standin_driver import SCENARIO_VARIABLE, Card, build_driver, write_scenario
from stub_vllm import write_stub

pytestmark = pytest.mark.slow

PACKAGES: Final = "python3,python3-venv,gcc,libc6-dev,make,ca-certificates"
HOME: Final = Path("/home/newcomer")
RECORD: Final = ROOT / "build" / "newcomer.txt"
WALK_SECONDS: Final = 1800
# How pip is told where packages are, here and so there; what these name on this disk is lent.
PIP_FILES: Final = ("/etc/pip.conf", "/etc/xdg/pip", "~/.config/pip", "~/.pip")
PIP_VARIABLES: Final = re.compile(r"PIP_\w+|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|(?:https?|no|all)_proxy", re.IGNORECASE)
# In a mount namespace of its own: the system's folders and what pip needs, then a user without rights.
ENTER: Final = """
set -e; root=$1; shift
for path in /proc /dev /etc/resolv.conf /etc/hosts "$@"; do
  if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}"; touch "$root$path"; fi
  mount --rbind "$path" "$root$path"
done
mount -t tmpfs tmpfs "$root/tmp"
exec chroot --userspec=newcomer:newcomer "$root" bash /home/newcomer/walk
"""


def mirror() -> tuple[str, str]:
    """Where this system's own packages come from, and the name of its release."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)["VERSION_CODENAME"]
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Identifier: Packages"], check=True, capture_output=True, text=True
    ).stdout
    return next(uri for uri, name in (line.split() for line in listed.splitlines()) if name == release), release


def lent() -> tuple[list[str], dict[str, str]]:
    """Files and folders of this host that pip's configuration is made of or names, and its variables."""
    files = [path for name in PIP_FILES if (path := Path(name).expanduser()).exists()]
    variables = {name: value for name, value in os.environ.items() if PIP_VARIABLES.fullmatch(name)}
    told = [path.read_text() for each in files for path in ([each] if each.is_file() else each.iterdir())]
    named = re.findall(r"(?:^|file://|[\s=])(/[^\s,:]+)", "\n".join((*told, *variables.values())), re.MULTILINE)
    return sorted({str(path) for path in files} | {path for path in named if Path(path).exists()}), variables


def commands() -> list[str]:
    """What is typed: every command that is not of another test, in the order of the pages, once."""
    return list(dict.fromkeys(_commands()))


def _commands() -> Iterator[str]:
    for page in ("README.md", "CONTRIBUTING.md"):
        for name, block in blocks(page).items():
            cover = COVERED[page, name]
            if isinstance(cover, Scene) or cover == ReadBy("test_newcomer.py"):
                yield from (step.command for step in block.steps)


def files() -> dict[str, str]:
    """What the commands of the README find in the checkout: a model, a log."""
    found: dict[str, str] = {}
    for (page, _), cover in COVERED.items():
        if page == "README.md" and isinstance(cover, Scene):
            found |= cover.files
    return found


def furnish(root: Path) -> None:
    """A user with a checkout, and an environment with a stand-in for vLLM, its server as a module too."""
    subprocess.run(["chroot", str(root), "useradd", "--create-home", HOME.name], check=True)
    home = root / HOME.relative_to("/")
    checkout = home / "vllm-guard"
    copy_checkout(checkout)
    for name, text in files().items():
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text(text, encoding="utf-8")
    subprocess.run(["chroot", str(root), "python3", "-m", "venv", str(HOME / "vllm")], check=True)
    (site,) = (home / "vllm" / "lib").glob("python3*/site-packages")
    (site / "vllm-0.32.0.dist-info").mkdir()
    (site / "vllm-0.32.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    (site / "vllm" / "entrypoints" / "openai").mkdir(parents=True)
    (site / "vllm" / "entrypoints" / "openai" / "api_server.py").write_text("print('stub vllm')\n")
    write_stub(home / "vllm" / "bin")
    build_driver(home / "driver")
    write_scenario(home / "scenario", [Card()])


def write_walk(root: Path, variables: dict[str, str]) -> None:
    """The shell's script: each command, and how it ended."""
    environment = {"HOME": str(HOME), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **variables}
    driver = {"LD_LIBRARY_PATH": f"{HOME}/driver", SCENARIO_VARIABLE: f"{HOME}/scenario"}
    lines = ["for name in $(compgen -e); do unset $name; done"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in (environment | driver).items()]
    lines += [f"cd {HOME}/vllm-guard"]
    for command in commands():
        lines += [f"printf '%s\\n' {shlex.quote(f'newcomer$ {command}')}", command, 'echo "newcomer: exit status $?"']
    (root / HOME.relative_to("/") / "walk").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_every_command_of_the_readme_works_for_a_newcomer(tmp_path: Path) -> None:
    """As a user without rights; the demo shows what it should, and the tests pass."""
    need("debootstrap", "unshare")
    root, (paths, variables), (uri, release) = tmp_path / "root", lent(), mirror()
    subprocess.run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", release, str(root), uri], check=True, capture_output=True, timeout=900)
    tmp_path.chmod(0o755)
    furnish(root)
    write_walk(root, variables)
    subprocess.run(["chroot", str(root), "chown", "--recursive", f"{HOME.name}:", str(HOME)], check=True)
    RECORD.parent.mkdir(exist_ok=True)
    with (
        RECORD.open("wb") as record,
        subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(root), *paths], stdin=subprocess.DEVNULL, stdout=record, stderr=record, start_new_session=True
        ) as walk,
    ):
        try:
            walk.wait(WALK_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(walk.pid, signal.SIGKILL)
    steps = re.findall(r"^newcomer\$ (.*)$\n((?:.*\n)*?)^newcomer: exit status (\d+)$", RECORD.read_text(errors="replace"), re.MULTILINE)
    printed = {command: text for command, text, _ in steps}

    assert commands() == [command for command, _, _ in steps], RECORD.read_text()[-3000:]
    assert [] == [(command, status, text[-3000:]) for command, text, status in steps if status != "0"]
    assert re.search(r"^=+ (\d+) passed.*=$", printed["make test"], re.MULTILINE)
    assert "refused: GPU 0 (nvidia-smi 1) has 1322 MiB free" in printed["make demo"]
