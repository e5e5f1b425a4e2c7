"""The settings, one table with four ways in: default < TOML file < environment < flag. The only importer of pydantic."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field, PlainValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from vllm_guard import setting_layers
from vllm_guard import setting_values as values
from vllm_guard.errors import UsageError
from vllm_guard.facts import Warn
from vllm_guard.plan.policy import Amount, Lever, Policy

_SNAPSHOT_READERS: Final = ("check", "estimate", "demo")
_HUB_ASKERS: Final = ("check", "estimate")


def _setting(default: str, meaning: str, alias: str | None = None) -> Any:
    """A row of the table. The default is text, as a flag would give it, and is read like any value."""
    return Field(default, description=meaning, alias=alias)


class Settings(BaseSettings):
    """Every setting, read. None is `auto`, or `none` where there is no auto. Sizes in bytes."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    mode: Annotated[Literal["guard", "observe", "off"], PlainValidator(values.choice("guard", "observe", "off"))] = _setting(
        "guard", "guard; observe: decide and report, then start with the argv untouched; off: exec at once"
    )
    margin: Annotated[Amount | None, PlainValidator(values.read_amount_or_auto)] = _setting(
        "auto", "kept free on every GPU beyond vLLM's own needs; size or percent of the card"
    )
    start_overhead: Annotated[int | None, PlainValidator(values.read_size_or_auto)] = _setting("auto", "what vLLM's process takes before it measures; size")
    budget: Annotated[int | None, PlainValidator(values.read_size_or_none)] = _setting("none", "most that this instance may take of each GPU; size")
    max_utilization: Annotated[float | None, PlainValidator(values.read_ceiling_or_auto)] = _setting(
        "auto", "ceiling of what the guard chooses; auto: what was asked, up to 0.95 where only that gives the model its cache"
    )
    min_utilization: Annotated[float, PlainValidator(values.read_floor)] = _setting("0", "refuse below it")
    min_free: Annotated[Amount, PlainValidator(values.read_amount)] = _setting(
        "0", "refuse when a chosen GPU has less free memory than this; size or percent of the card"
    )
    min_kv_cache: Annotated[int | None, PlainValidator(values.read_size_or_auto)] = _setting(
        "auto", "refuse when the KV cache pool is certainly smaller; size; auto: one full sequence, 512 MiB where the model is not known"
    )
    on_explicit: Annotated[Literal["lower", "keep"], PlainValidator(values.choice("lower", "keep"))] = _setting(
        "lower", "a utilization given in the command: lower it to what fits, or keep it and judge it"
    )
    batched_tokens: Annotated[Literal["auto", "off"] | int, PlainValidator(values.read_batched_tokens)] = _setting(
        "auto", "--max-num-batched-tokens: auto, off, or a number (a ceiling)"
    )
    levers: Annotated[frozenset[Lever], PlainValidator(values.read_levers)] = _setting("utilization,batched_tokens", "what may be changed; empty: nothing")
    competitors: Annotated[Literal["share", "refuse"], PlainValidator(values.read_competitors)] = _setting(
        "share", "share, or refuse when somebody else computes on a chosen GPU"
    )
    unmeasured: Annotated[Literal["auto", "start", "refuse"], PlainValidator(values.choice("auto", "start", "refuse"))] = _setting(
        "auto", "when memory cannot be read: start, or refuse; auto: refuse for a CUDA build of vLLM, start with a warning for any other"
    )
    wait: Annotated[float, PlainValidator(values.read_seconds)] = _setting("0", "seconds to wait until what was asked fits; then what does is taken")
    settle: Annotated[float | None, PlainValidator(values.read_seconds_or_auto)] = _setting(
        "auto", "seconds to wait for free memory to become steady, 0: never; auto: only when somebody is leaving or little is free"
    )
    claims: Annotated[Literal["auto", "off"], PlainValidator(values.choice("auto", "off"))] = _setting(
        "auto", "promises between guards, so that two that start at once do not count the same free memory: auto, off"
    )
    claims_dir: Annotated[str | None, PlainValidator(values.read_path_or_auto)] = _setting(
        "auto", "folder of the claims; auto: /run/vllm-guard, else /run/lock/vllm-guard, else under XDG_RUNTIME_DIR"
    )
    remote_metadata: Annotated[bool, PlainValidator(values.read_boolean)] = _setting(
        "off", "ask the model hub for config and headers when the model is not on disk, 2 s at most (check, estimate and dry_run take it as on)"
    )
    snapshot: Annotated[str | None, PlainValidator(values.read_path_or_none)] = _setting(
        "none", "decide from this file and not from the host; only with check, estimate, demo and dry_run"
    )
    vllm: Annotated[str | None, PlainValidator(values.read_path_or_auto)] = _setting(
        "auto", "the vLLM executable; auto: the one beside vllm-guard, else the first on PATH, else our interpreter's"
    )
    vllm_version: Annotated[str | None, PlainValidator(values.read_text_or_auto)] = _setting("auto", "the release to decide for; auto: what is installed")
    dry_run: Annotated[bool, PlainValidator(values.read_boolean)] = _setting("false", "decide and report, do not launch")
    as_json: Annotated[bool, PlainValidator(values.read_boolean)] = _setting(
        "false", "print a JSON document on stdout (with check, dry_run, gpus, explain, estimate)", alias="json"
    )
    log_format: Annotated[Literal["auto", "json", "console"], PlainValidator(values.choice("auto", "json", "console"))] = _setting(
        "auto", "evidence and warnings on stderr: console, json; auto: console on a terminal, else json"
    )
    termination_log: Annotated[str | None, PlainValidator(values.read_path_or_none)] = _setting(
        "/dev/termination-log", "existing file that also gets a refusal or an error; off: none"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - reads os.environ, ours is an argument
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - a .env in the working folder is not ours
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no setting is a secret
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The layers that `load` passes, the strongest first."""
        return tuple(_LayerSource(settings_cls, layer) for layer in init_settings()["layers"])


class _LayerSource(PydanticBaseSettingsSource):
    """One layer as pydantic-settings wants it."""

    def __init__(self, settings_cls: type[BaseSettings], layer: setting_layers.Layer) -> None:
        super().__init__(settings_cls)
        self._values = {name: given.value for name, given in layer.items()}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value, its key, and that it needs no JSON decoding."""
        name = field.alias or field_name
        return self._values.get(name), name, False

    def __call__(self) -> dict[str, Any]:
        """All values of the layer."""
        return self._values


class Row(NamedTuple):
    """A setting as help and README show it."""

    name: str
    default: str
    meaning: str


TABLE: Final = tuple(Row(field.alias or name, str(field.default), field.description or "") for name, field in Settings.model_fields.items())


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, what is worth a warning, and whether a model hub is asked: where it is set, and in a command that starts nothing unless it is off."""

    settings: Settings
    warnings: tuple[Warn, ...]
    asks_hub: bool


def load(flags: Mapping[str, str | bool], environ: Mapping[str, str], *, command: str) -> Loaded:
    """The settings for one command of the guard, from `split_flags`, the environment and the TOML file.

    Raises UsageError for an unknown TOML key, a bad value, a setting that this command or this release does not take, and a file that
    cannot be used; in `serve` a file that nothing asked for by name is a warning instead.
    """
    file, file_warnings = setting_layers.of_file(environ, command)
    environment, environment_warnings = setting_layers.of_environment(environ)
    layers = (setting_layers.of_flags(flags), environment, file)
    given = ChainMap(*(dict(layer) for layer in layers))
    sources: dict[str, Any] = {"layers": layers}
    try:
        settings = Settings(**sources)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise _bad_value(name, given[name], accepted=str(first["ctx"]["error"])) from None
    _refuse_misplaced(settings, command, given)
    asks_hub = settings.remote_metadata or ("remote_metadata" not in given and (command in _HUB_ASKERS or settings.dry_run))
    return Loaded(settings, (*file_warnings, *environment_warnings), asks_hub)


def _bad_value(name: str, given: setting_layers.Given, accepted: str) -> UsageError:
    return UsageError(f"{name} {setting_layers.shown(given.value)} ({given.origin}) is not {accepted}", f"correct or remove {given.origin}")


def _refuse_misplaced(settings: Settings, command: str, given: Mapping[str, setting_layers.Given]) -> None:
    """Raises UsageError for a setting that this command cannot honour."""
    if settings.as_json and command in ("serve", "run") and not settings.dry_run:
        msg = f"json ({given['json'].origin}) is not for {command}: its stdout belongs to vLLM"
        raise UsageError(msg, "use vllm-guard check --guard-json, or add --guard-dry-run")
    if settings.snapshot is not None and command not in _SNAPSHOT_READERS and not settings.dry_run:
        msg = f"snapshot ({given['snapshot'].origin}) is not for {command}: a launch is decided from the host"
        raise UsageError(msg, "use vllm-guard check, or add --guard-dry-run")


def policy(settings: Settings) -> Policy:
    """The part of the settings that the plan reckons with."""
    return Policy(
        margin=settings.margin,
        start_overhead_bytes=settings.start_overhead,
        budget_bytes=settings.budget,
        max_utilization=settings.max_utilization,
        min_utilization=settings.min_utilization,
        min_free=settings.min_free,
        min_kv_cache_bytes=settings.min_kv_cache,
        on_explicit=settings.on_explicit,
        batched_tokens=settings.batched_tokens,
        competitors=settings.competitors,
        levers=settings.levers,
    )
