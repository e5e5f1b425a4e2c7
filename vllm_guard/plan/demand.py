"""What the model needs of each GPU, as far as its files and this release tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from vllm_guard.command.parse import Command
from vllm_guard.facts import Facts
from vllm_guard.model.checkpoint import Checkpoint
from vllm_guard.model.config import ModelTraits, text_config
from vllm_guard.model.drafts import Draft, draft_of, is_read, with_draft, with_further_layer
from vllm_guard.model.parallel import Parallel
from vllm_guard.model.parameters import familiar_decoder
from vllm_guard.model.peak import Activation, Band, ProfileRun, activation_peak, cuda_graphs
from vllm_guard.model.storage import is_one_method
from vllm_guard.model.towers import familiar
from vllm_guard.model.unknown import Unknown
from vllm_guard.model.weights import Loading, WeightBytes, weigh
from vllm_guard.plan import ask
from vllm_guard.plan.capping import BatchPlan
from vllm_guard.plan.defaults import Behaviour, runs_v2
from vllm_guard.plan.kv_demand import kv_demand
from vllm_guard.plan.needs import Demand
from vllm_guard.plan.speculation import speculation
from vllm_guard.release import Release, parse_release
from vllm_guard.units import GIB

_MOST_RANKS: Final = 4096
_LARGEST_OFFLOAD_GIB: Final = 1 << 20
# Options whose effect on weights and cache, or on the weights alone is not modelled.
_UNMODELLED: Final = ("hf_overrides", "hf_config_path", "mm_encoder_only")
_WEIGHTS_UNMODELLED: Final = ("quantization_config", "model_loader_extra_config", "offload_backend", "offload_group_size")


def gather_demand(
    command: Command,
    facts: Facts,
    checkpoint: Checkpoint,
    traits: ModelTraits,
    rows: Sequence[Behaviour],
    batch: BatchPlan,
    max_model_len: int | None,
    weighed: WeightBytes | Unknown | None = None,
) -> Demand:
    """The demand of this command on the device type that it runs on; `weighed` are its weights where they are known already."""
    release = parse_release(facts.vllm_version)
    config = checkpoint.config
    draft = _unreckonable(command, facts, checkpoint) or _draft(command, checkpoint, release)
    if isinstance(draft, Unknown):
        return Demand(draft, draft, Band(0, 0, 0), draft)
    tokens, sequences = batch.effective, batch.max_num_seqs
    parallel = Parallel(
        tensor_parallel_size=max(1, command.integer("tensor_parallel_size", 1)),
        pipeline_parallel_size=max(1, command.integer("pipeline_parallel_size", 1)),
        data_parallel_size=max(1, command.integer("data_parallel_size", 1)),
        enable_expert_parallel=command.flag("enable_expert_parallel") is True,
        mm_encoder_tp_mode="data" if command.text("mm_encoder_tp_mode") == "data" else "weights",
    )
    cpu = facts.vllm_device == "cpu"
    v2 = all(runs_v2(row, facts.environment.get("VLLM_USE_V2_MODEL_RUNNER"), traits.architecture) for row in rows) and not cpu
    activation: Activation | Unknown = Unknown("the batch budget is not known")
    if tokens is not None and sequences is not None:
        generates, known = not ask.is_pooling(command, traits), familiar_decoder(config)
        run = ProfileRun(tokens, sequences, parallel.tensor_parallel_size, v2, generates, traits.multimodal, cpu, widths_are_known=known)
        activation = _peak(config, draft, run)
    counted = not cpu and all(row.graphs_outside == "never" or (row.graphs_outside == "v2_runner" and not v2) for row in rows)
    graphs = cuda_graphs(counted=counted, enforce_eager=command.flag("enforce_eager") is True)
    return Demand(
        weights=weighed or _weights(command, checkpoint, traits, parallel, release, draft),
        activation=activation,
        cuda_graphs=replace(graphs, high=2 * graphs.high) if draft.tokens else graphs,  # the draft has graphs of its own
        kv=kv_demand(command, facts, config, draft, parallel, tokens, max_model_len, pooling=ask.is_pooling(command, traits)),
    )


def _unreckonable(command: Command, facts: Facts, checkpoint: Checkpoint) -> Unknown | None:
    """Why neither weights nor cache can be told."""
    if facts.environment.get("VLLM_PP_LAYER_PARTITION"):
        return Unknown("VLLM_PP_LAYER_PARTITION is not modelled")
    if ask.all_ranks(command) > _MOST_RANKS:
        return Unknown(f"more than {_MOST_RANKS} ranks")
    if "speculators_config" in checkpoint.config:  # transformers_utils/config.py maybe_override_with_speculators
        return Unknown("this checkpoint is a draft, which names its model itself")
    return ask.unmodelled(command, _UNMODELLED)


def _draft(command: Command, checkpoint: Checkpoint, release: Release | None) -> Draft | Unknown:
    """The draft of the speculation that was asked for; nothing of no tokens without one."""
    asked = speculation(command)
    if asked is None or isinstance(asked, Unknown):
        return asked or Draft("nothing", 0)
    draft = draft_of(asked.method, asked.model, asked.tokens, checkpoint, asked.draft_tensor_parallel_size)
    if isinstance(draft, Unknown):
        return draft
    # Whether asynchronous scheduling stays on (config/vllm.py of 0.32.0); one step at a time is the smaller need where that was not read.
    overlaps = is_read(release) and asked.padded and (draft.kind in {"further", "model", "eagle"} or asked.method == "ngram_gpu")
    return replace(draft, overlaps=overlaps)


def _peak(config: Mapping[str, Any], draft: Draft, run: ProfileRun) -> Activation | Unknown:
    """The peak of the model; with speculation that of the draft comes on top, and twice the rows of logits, both at the upper end only."""
    peak = activation_peak(config, run)
    if isinstance(peak, Unknown) or not draft.tokens:
        return peak
    beside = Band(0, 0, 0) if draft.checkpoint is None else activation_peak(draft.checkpoint.config, run)
    return beside if isinstance(beside, Unknown) else replace(peak, high=2 * peak.high + beside.high)


def _weights(command: Command, checkpoint: Checkpoint, traits: ModelTraits, parallel: Parallel, release: Release | None, draft: Draft) -> WeightBytes | Unknown:
    offload = command.number("cpu_offload_gb") or 0
    if not 0 <= offload <= _LARGEST_OFFLOAD_GIB:
        return Unknown("--cpu-offload-gb is no size")
    unmodelled = ask.unmodelled(command, _WEIGHTS_UNMODELLED)
    if unmodelled is not None:
        return unmodelled
    loading = _loading(command, traits, release, int(offload * GIB))
    plain = weigh(checkpoint.config, checkpoint.headers, parallel, loading)
    weighed = plain
    if draft.kind == "further":
        further = weigh(checkpoint.config, checkpoint.headers, parallel, replace(loading, predicts_further=True))
        weighed = further if isinstance(further, Unknown) else with_further_layer(further, plain, release)
    if isinstance(weighed, Unknown):
        return weighed
    return with_draft(_cautious(weighed, command, checkpoint, traits), draft, parallel, loading)


def _cautious(weights: WeightBytes, command: Command, checkpoint: Checkpoint, traits: ModelTraits) -> WeightBytes:
    """The bound from below where the config may not tell all: files that are smaller than it says (a quantized checkpoint may say nothing of it), no
    files at all (they may be of 4 bits unless something says how they are quantized), towers and their like that may not be loaded (by no architecture of
    text alone, though the config of the whole was kept).
    """
    files, low, likely = checkpoint.weight_files_bytes, weights.low, weights.likely
    share = None if files is None else files // ask.all_ranks(command)
    if checkpoint.headers is None:
        stored_so = traits.quantized or command.text("quantization") is not None
        told = stored_so and is_one_method(checkpoint.config, text_config(checkpoint.config))
        low = low // 4 if share is None and not told else low
        if files is not None and share is not None and share < low:  # replicas of the model share its experts at most
            low, likely = share // 2, min(likely, files // ask.model_ranks(command))
    limited = any(dest in command.given for dest in ("limit_mm_per_prompt", "language_model_only"))
    text_alone = (traits.architecture or "").endswith("ForCausalLM")
    whole = familiar(checkpoint.config) and familiar_decoder(checkpoint.config) and not ask.is_pooling(command, traits) and not text_alone
    if limited or (traits.multimodal and not whole):
        towers = sum(size for part, size in weights.parts if part in {"vision", "audio", "other"})
        low = max(0, min(low - towers, low if share is None else share // 2))
    changed = (low, likely) != (weights.low, weights.likely)
    return replace(weights, low=low, likely=likely, exact=weights.exact and not changed)


def _loading(command: Command, traits: ModelTraits, release: Release | None, cpu_offload_bytes: int) -> Loading:
    limits = command.given["limit_mm_per_prompt"].value if "limit_mm_per_prompt" in command.given else {}
    return Loading(
        release=release,
        dtype=command.text("dtype"),
        quantization=command.text("quantization"),
        load_format=command.text("load_format"),
        cpu_offload_bytes=cpu_offload_bytes,
        language_model_only=command.flag("language_model_only") is True,
        limit_mm_per_prompt={kind: most for kind, limit in limits.items() if (most := _count(limit)) is not None} if isinstance(limits, dict) else {},
        pooling=ask.is_pooling(command, traits),
    )


def _count(limit: object) -> int | None:
    """A limit of items, which may stand in an object with more about them."""
    count = limit.get("count") if isinstance(limit, dict) else limit
    return count if isinstance(count, int) else None
