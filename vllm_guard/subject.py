"""What is to be decided about: the command line, the vLLM that would run it, and the model's files. Read first, before any memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from vllm_guard.command.entrypoint import behind_entrypoint, model_first
from vllm_guard.command.launcher import FOREIGN, NO_ENGINE, SERVE, Launcher
from vllm_guard.command.parse import Command, config_path, parse
from vllm_guard.command.rewrite import rewrite
from vllm_guard.devices import Chosen, Device
from vllm_guard.errors import LaunchError
from vllm_guard.facts import Facts, Warn
from vllm_guard.host.visible import select_devices
from vllm_guard.host.vllm_install import Install, device_of_version, find_executable, read_install
from vllm_guard.model.checkpoint import Checkpoint, UnknownCheckpoint
from vllm_guard.model.files import read_model
from vllm_guard.plain_file import read_plain_file
from vllm_guard.plan.decide import decide, untouched
from vllm_guard.plan.decision import Decision, Launch
from vllm_guard.plan.foreign import restrain
from vllm_guard.plan.policy import Policy
from vllm_guard.plan.speculation import Speculation, speculation
from vllm_guard.release import Release, parse_release

_LARGEST_CONFIG_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Vllm:
    """The vLLM that would run: the words that start it, or why there are none, its release and its build."""

    words: tuple[str, ...] | None
    missing: LaunchError | None
    version: str | None
    device: str
    warnings: tuple[Warn, ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """A command line with everything about it that is not memory. `environ` is what its vLLM will see."""

    vllm: Vllm
    release: Release | None
    prefix: tuple[str, ...]
    command: Command
    checkpoint: Checkpoint | UnknownCheckpoint
    environ: Mapping[str, str]

    def decide(self, facts: Facts, policy: Policy) -> Decision:
        """The decision on one reading."""
        if self.command.entry == NO_ENGINE:
            return untouched(self.command, Warn("no_engine", "this starts no engine that the guard could judge"))
        decision = decide(facts, self.command, select_devices(facts, self.command, self.release), self.checkpoint, policy)
        return restrain(decision, self.command) if self.command.entry == FOREIGN else decision

    def devices(self, facts: Facts) -> tuple[Device, ...]:
        """The devices that the command uses; nothing when they are not known."""
        selection = select_devices(facts, self.command, self.release)
        return selection.devices if isinstance(selection, Chosen) else ()

    @property
    def untouched(self) -> tuple[str, ...]:
        """The whole argv with nothing changed."""
        return (*self.prefix, *self.command.argv)

    def words(self, decision: Decision) -> tuple[str, ...]:
        """The whole argv that would be executed after this decision."""
        changes = {change.dest: change.after for change in decision.assessment.changes} if isinstance(decision, Launch) else {}
        return (*self.prefix, *rewrite(self.command.argv, changes, self.release, self.command.entry.grammar))


def find_vllm(setting: str | None, version_setting: str | None, *, invoked: str, environ: Mapping[str, str]) -> Vllm:
    """Where vLLM is and what it is. A missing one is not an error here: `check` needs none."""
    try:
        words = find_executable(setting, invoked=Path(invoked), path=environ.get("PATH", os.defpath))
    except LaunchError as error:
        return _vllm(None, error, None, version_setting)
    return _vllm(words, None, read_install(words), version_setting)


def find_launched(launcher: Launcher, version_setting: str | None, environ: Mapping[str, str]) -> Vllm:
    """The vLLM that a launcher's script or interpreter would start; of unknown release where something in front chooses it."""
    words = (launcher.prefix[launcher.program or 0],)
    path = launcher.environment.get("PATH", environ.get("PATH", os.defpath))
    return _vllm(words, None, None if launcher.finds_own_vllm else read_install(words, path), version_setting)


def serving(vllm: Vllm, argv: Sequence[str]) -> Launcher:
    """`vllm serve` with these words behind it, a command of their own in front taken off, the model where this release wants it."""
    words = behind_entrypoint(argv)
    arguments = model_first(words, parse_release(vllm.version))
    moved = Warn("model_moved", f"vLLM {vllm.version} takes the model as the first word after serve: --model was moved there")
    return Launcher((*(vllm.words or ("vllm",)), "serve"), tuple(arguments), SERVE, warnings=(moved,) if arguments != words else ())


def read_subject(launcher: Launcher, vllm: Vllm, environ: Mapping[str, str], *, asks_hub: bool = False) -> Subject:
    """The command line of this release, its `--config` file, and the model's config and weight sizes. Nothing here can stop a launch.

    With `asks_hub` those of a model that is not on this disk come from its hub; a warning says why they do not.
    """
    release = parse_release(vllm.version)
    argv, entry = launcher.arguments, launcher.entry
    path = None if entry.grammar == "foreign" else config_path(argv, release)
    command = parse(argv, release, None if path is None else _read_text(path), entry)
    command = replace(command, warnings=(*vllm.warnings, *launcher.warnings, *command.warnings))
    environ = {**environ, **launcher.environment}
    checkpoint = read_model(command.model, command.text("revision"), command.text("download_dir"), environ)
    if asks_hub and isinstance(checkpoint, UnknownCheckpoint) and checkpoint.absent and command.entry != NO_ENGINE and not command.asks_help:
        from vllm_guard.hub.ask import ask_hub  # noqa: PLC0415 - not on the way to exec unless asked for

        checkpoint = ask_hub(command.model or "", command.text("revision"), command.text("hf_token"), environ)
        if isinstance(checkpoint, UnknownCheckpoint):
            command = replace(command, warnings=(*command.warnings, Warn("model_unknown", checkpoint.because)))
    checkpoint = _with_draft(checkpoint, command, environ)
    return Subject(vllm, release, launcher.prefix, command, checkpoint, environ)


def _with_draft(checkpoint: Checkpoint | UnknownCheckpoint, command: Command, environ: Mapping[str, str]) -> Checkpoint | UnknownCheckpoint:
    """The model, and with it the draft model of speculative decoding."""
    asked = speculation(command)
    if isinstance(checkpoint, UnknownCheckpoint) or not isinstance(asked, Speculation) or asked.model is None:
        return checkpoint
    return replace(checkpoint, draft=read_model(asked.model, asked.revision, command.text("download_dir"), environ))


def _vllm(words: tuple[str, ...] | None, missing: LaunchError | None, install: Install | None, version_setting: str | None) -> Vllm:
    warnings: tuple[Warn, ...] = ()
    version, device = None, "cuda"
    if install is not None:
        version, device = install.version, install.device if install.device != "unknown" else "cuda"
    if version_setting is not None:
        if version is not None and version != version_setting:
            warnings = (Warn("version_contradicts", f"vllm_version says {version_setting}, installed is {version}: {version_setting} counts"),)
        version, device = version_setting, device_of_version(version_setting)
    return Vllm(words, missing, version, device, warnings)


def _read_text(path: str) -> str | None:
    """The text of a plain file of at most 1 MiB, else None. A pipe is not read: vLLM would find it empty."""
    data = read_plain_file(path, _LARGEST_CONFIG_BYTES)
    try:
        return None if isinstance(data, str) else data.decode()
    except UnicodeDecodeError:
        return None
