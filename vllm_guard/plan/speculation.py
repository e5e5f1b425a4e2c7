"""Speculative decoding as the command asks for it: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from vllm_guard.command.parse import Command
from vllm_guard.model.unknown import Unknown

_SHORTHANDS: Final = (("spec_method", "method"), ("spec_model", "model"), ("spec_tokens", "num_speculative_tokens"))
# Keys that are read here, and keys that change neither what is loaded nor what is cached (config/speculative.py of 0.32.0).
_READ: Final = frozenset(("method", "model", "revision", "num_speculative_tokens", "draft_tensor_parallel_size", "disable_padded_drafter_batch"))
_HARMLESS: Final = frozenset(
    (
        *("prompt_lookup_max", "prompt_lookup_min", "enforce_eager", "max_model_len", "code_revision", "disable_by_batch_size", "disable_logprobs"),
        *("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob"),
        *("rejection_sample_method", "synthetic_acceptance_rates", "synthetic_acceptance_length", "draft_sample_method", "disable_eagle_block_drop"),
        *("num_speculative_tokens_per_batch_size", "use_local_argmax_reduction"),
    )
)
_WITHOUT_MODEL: Final = frozenset(("ngram", "ngram_gpu", "suffix"))
_WITH_MODEL: Final = frozenset(("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator"))
_SUFFIX_TREE_DEPTH: Final = 24
_MOST_TOKENS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Speculation:
    """What was asked for. `method` is "mtp" for every model's own further layers; `model` names the draft's folder or repository, None where there is none.

    `padded`: the drafter's batches are padded, which asynchronous scheduling asks for.
    """

    method: str
    tokens: int
    model: str | None = None
    revision: str | None = None
    draft_tensor_parallel_size: int | None = None
    padded: bool = True


def speculation(command: Command) -> Speculation | Unknown | None:
    """The speculation of a command, None without one, or why it is not known. Total. Source: config/speculative.py __post_init__."""
    values = _values(command)
    if values is None or isinstance(values, Unknown):
        return values
    strange = next((key for key in values if key not in _READ | _HARMLESS), None)
    if strange is not None:
        return Unknown(f"speculation with {strange[:40]} is not modelled")
    model, revision = values.get("model"), values.get("revision")
    method = values.get("method")
    if method is None and model is not None:
        method = "ngram" if model in ("ngram", "[ngram]") else "draft_model"
    tokens = values.get("num_speculative_tokens")
    if tokens is None and method == "suffix":
        tokens = values.get("suffix_decoding_max_tree_depth", _SUFFIX_TREE_DEPTH)
    parallel = values.get("draft_tensor_parallel_size")
    if not isinstance(method, str) or not _are_texts(model, revision) or not _is_count(tokens) or not (parallel is None or _is_count(parallel)):
        return Unknown("the speculative config says no method, or no number of tokens")
    padded = values.get("disable_padded_drafter_batch") is not True
    if method in {*_WITHOUT_MODEL, "[ngram]"}:
        return Speculation(method.strip("[]"), tokens, padded=padded)
    if method.endswith("mtp"):
        own = model is None or model == command.model
        return Speculation("mtp", tokens, padded=padded) if own else Unknown("further layers in a checkpoint of their own are not modelled")
    if method not in _WITH_MODEL:
        return Unknown(f"speculation with the method {method[:40]} is not modelled")
    if model is None:
        return Unknown(f"speculation with the method {method} names no model")
    return Speculation(method, tokens, model, revision, parallel, padded)


def _values(command: Command) -> dict[str, Any] | Unknown | None:
    """The keys of --speculative-config and of the flags that stand for some of them."""
    given = command.given.get("speculative_config")
    config = None if given is None else given.value
    if config is not None and not isinstance(config, dict):
        return Unknown("--speculative-config is no object")
    shorthands = {key: command.given[dest].value for dest, key in _SHORTHANDS if dest in command.given and command.given[dest].value is not None}
    if config is None and not shorthands:
        return None
    values = {str(key).replace("-", "_"): value for key, value in (config or {}).items()}
    if not values.keys().isdisjoint(shorthands):
        return Unknown("a flag says what --speculative-config says too")
    return {**values, **shorthands}


def _are_texts(*values: object) -> bool:
    return all(value is None or isinstance(value, str) for value in values)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_TOKENS
