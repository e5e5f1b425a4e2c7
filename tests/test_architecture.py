"""The picture of the house, held by reading every import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "vllm_guard"

# A room imports from itself and from the rooms named here, nothing else of the package.
WORDS = frozenset({"units", "errors", "facts", "devices", "release"})
TYPES = WORDS | {"command", "model"}
DECIDES = TYPES | {"plan"}
EDGES = DECIDES | {"host", "claims", "render", "flags", "settings", "log", "launch", "wait", "settle"}
MAY_IMPORT = {
    "__init__": frozenset[str](),
    "units": frozenset[str](),
    "errors": frozenset({"units"}),
    "facts": frozenset({"units"}),
    "devices": frozenset({"facts"}),
    "release": frozenset[str](),
    "command": WORDS,
    "plain_file": frozenset[str](),
    "model": WORDS | {"plain_file"},
    "hub": WORDS | {"plain_file", "model"},
    "plan": TYPES,
    "host": DECIDES,
    "claims": WORDS | {"host", "plain_file"},
    "explain": WORDS,
    "render": DECIDES | {"explain"},
    "flags": WORDS,
    "setting_values": DECIDES,
    "setting_layers": DECIDES | {"flags"},
    "settings": DECIDES | {"flags", "setting_values", "setting_layers"},
    "log": WORDS,
    "launch": WORDS | {"flags"},
    "settle": DECIDES,
    "wait": DECIDES | {"settle"},
    "notify": frozenset[str](),
    "progress": EDGES | {"speak", "notify"},
    "help": frozenset({"flags", "settings"}),
    "bypass": WORDS | {"command", "flags", "launch", "host", "setting_layers", "speak"},
    "subject": EDGES | {"plain_file", "hub"},
    "speak": EDGES,
    "demo": EDGES | {"subject", "speak"},
    "cli": EDGES | {"explain", "plain_file", "subject", "speak", "bypass", "help", "demo", "progress"},
    "__main__": frozenset({"flags", "bypass", "cli", "launch", "units"}),
}
# Rooms that only reckon: nothing of the world in them. command/options.py, model/files.py and model/headers.py read files, by design.
PURE = ("plan", "command", "model", "explain", "render", "facts", "devices", "release", "units", "errors")
READS_FILES = {"explain/signatures.py", "command/options.py", "model/files.py", "model/headers.py"}
WORLDLY = {
    "os",
    "sys",
    "time",
    "datetime",
    "subprocess",
    "socket",
    "signal",
    "threading",
    "pathlib",
    "pynvml",
    "psutil",
    "structlog",
    "pydantic",
    "pydantic_settings",
}
ONLY_IN = {
    "pynvml": {"host/nvml.py"},
    "psutil": {"host/processes.py"},
    "pydantic": {"settings.py"},
    "pydantic_settings": {"settings.py"},
    "structlog": {"log.py"},
    "yaml": {"command/config_file.py", "explain/signatures.py"},
    "huggingface_hub": {"hub/fetch.py"},
    "subprocess": set[str](),
    "torch": set[str](),
    "vllm": set[str](),
}


def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def room_of(module: Path) -> str:
    """The folder, or the file of the first level."""
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(module: Path) -> Iterator[str]:
    """Every imported module, lazy imports included."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            yield node.module or ""
            if node.module == "vllm_guard":
                yield from (f"vllm_guard.{alias.name}" for alias in node.names if not alias.name.startswith("__"))


@pytest.mark.parametrize("module", modules(), ids=lambda module: str(module.relative_to(PACKAGE)))
def test_a_room_imports_only_what_stands_above_it(module: Path) -> None:
    """The picture in the design stays true."""
    room = room_of(module)
    imported = {name.split(".")[1] for name in imports_of(module) if name.startswith("vllm_guard.")}

    assert imported - {room} <= MAY_IMPORT[room]


@pytest.mark.parametrize("module", [m for m in modules() if room_of(m) in PURE], ids=lambda module: str(module.relative_to(PACKAGE)))
def test_a_pure_room_does_not_touch_the_world(module: Path) -> None:
    """Decisions and arithmetic take all their inputs."""
    if str(module.relative_to(PACKAGE)) in READS_FILES:
        return
    found = {name.split(".")[0] for name in imports_of(module)} & WORLDLY

    assert found == set()


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_foreign_library_has_one_room(library: str) -> None:
    """Quirks of a library are known in one place; heavy ones nowhere."""
    users = {str(module.relative_to(PACKAGE)) for module in modules() if library in {name.split(".")[0] for name in imports_of(module)}}

    assert users <= ONLY_IN[library]


def test_every_room_is_in_the_picture() -> None:
    """A new room is drawn before it is built."""
    assert {room_of(module) for module in modules()} <= set(MAY_IMPORT)
