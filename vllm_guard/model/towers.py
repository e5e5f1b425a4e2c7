"""The weights of the parts that see and hear, by the config alone: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from vllm_guard.model.config import text_config
from vllm_guard.model.fields import Fields, LackingError
from vllm_guard.model.matrix import Matrix, table
from vllm_guard.model.mixers import hidden
from vllm_guard.model.unknown import Unknown
from vllm_guard.release import Release

Modality = Literal["vision", "audio"]


@dataclass(frozen=True, slots=True)
class _Sight:
    """How a family's vision tower is built: a gated MLP or not, and what joins it to the language model."""

    joint: Literal["merger", "gated merger", "mlp", "linear", "resampler"]
    gated: bool = False
    video: bool = False
    layers: int = 0
    width: int = 0
    inner: int = 0
    extra_mergers: int = 0


# By model_type, with the sizes that the config class fills in (transformers configuration_*.py, vllm/model_executor/models).
_SIGHTS: Final[Mapping[str, _Sight]] = {
    "qwen2_vl": _Sight("merger", video=True, layers=32, width=1280),
    "qwen2_5_vl": _Sight("merger", gated=True, video=True, layers=32, inner=3420),
    "qwen3_vl": _Sight("merger", video=True, layers=27, width=1152, inner=4304, extra_mergers=3),
    "qwen3_vl_moe": _Sight("merger", video=True, layers=27, width=1152, inner=4304, extra_mergers=3),
    "qwen3_5": _Sight("merger", video=True, layers=27, width=1152, inner=4304),
    "qwen3_5_moe": _Sight("merger", video=True, layers=27, width=1152, inner=4304),
    "glm4v": _Sight("gated merger", gated=True, video=True, layers=24, width=1536),
    "glm4v_moe": _Sight("gated merger", gated=True, video=True, layers=24, width=1536),
    "dots_ocr": _Sight("merger", gated=True, layers=42, width=1536, inner=4224),
    "kimi_vl": _Sight("merger", layers=27, width=1152, inner=4304),
    "kimi_k25": _Sight("merger", video=True, layers=27, width=1152, inner=4304),
    "mistral3": _Sight("mlp", gated=True, layers=24, width=1024, inner=4096),
    "pixtral": _Sight("mlp", gated=True, layers=24, width=1024, inner=4096),
    "llava": _Sight("mlp", layers=24, width=1024, inner=4096),
    "llava_next": _Sight("mlp", layers=24, width=1024, inner=4096),
    "llava_next_video": _Sight("mlp", video=True, layers=24, width=1024, inner=4096),
    "llava_onevision": _Sight("mlp", video=True),
    "internvl": _Sight("mlp", video=True, layers=24, width=1024, inner=4096),
    "internvl_chat": _Sight("mlp", video=True, layers=24, width=1024, inner=4096),
    "llama4": _Sight("mlp", layers=34, width=1408, inner=5632),
    "mllama": _Sight("linear", layers=32, width=1280, inner=5120),
    "paligemma": _Sight("linear"),
    "gemma3": _Sight("linear", layers=27, width=1152, inner=4304),
    "gemma4": _Sight("linear", gated=True, video=True, layers=16, width=768, inner=3072),
    "idefics3": _Sight("linear"),
    "smolvlm": _Sight("linear"),
    "minicpmv": _Sight("resampler", video=True, layers=27, width=1152, inner=4304),
}
_WHISPER_LIKE: Final = frozenset(("whisper", "qwen2_audio", "voxtral", "voxtral_realtime", "ultravox", "glmasr"))
# These left out their tower at a limit of zero before all did (models/qwen2_vl.py and others, 0.11.0).
_SKIPPED_EARLY: Final = frozenset(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"))
_ALL_SKIP_SINCE: Final = Release(0, 15, 1)
_SOME_SKIP_SINCE: Final = Release(0, 11)
# CLIP towers of LLaVA end before their last layer (models/clip.py, vision_feature_layer).
_LAST_LAYER_UNUSED: Final = frozenset(("llava", "llava_next", "llava_next_video"))


def modalities(config: Mapping[str, Any]) -> frozenset[Modality]:
    """The towers that this config describes."""
    named: dict[Modality, tuple[str, ...]] = {"vision": ("vision_config",), "audio": ("audio_config",)}
    found = {modality for modality, keys in named.items() if Fields(config).part(*keys)}
    return frozenset(found | ({"audio"} if Fields(config).kind == "whisper" else set()))


def familiar(config: Mapping[str, Any]) -> bool:
    """Whether each tower of this config is of a family that is known here; the sizes of others are those of a plain vision transformer."""
    kind = Fields(config).kind
    return ("vision" not in modalities(config) or kind in _SIGHTS) and ("audio" not in modalities(config) or kind in _WHISPER_LIKE | {"gemma4"})


def skipped(config: Mapping[str, Any], release: Release | None, limits: Mapping[str, int], *, language_model_only: bool) -> frozenset[Modality]:
    """The towers that vLLM does not load because nothing of their kind is allowed in a prompt (models/interfaces.py _mark_tower_model)."""
    kind = Fields(config).kind
    since = _SOME_SKIP_SINCE if kind in _SKIPPED_EARLY else _ALL_SKIP_SINCE
    if release is not None and release < since:
        return frozenset()
    sight = _SIGHTS.get(kind)
    needed: dict[Modality, tuple[str, ...]] = {"vision": ("image", "video") if sight is None or sight.video else ("image",), "audio": ("audio",)}
    return frozenset(modality for modality in modalities(config) if language_model_only or all(limits.get(item) == 0 for item in needed[modality]))


def towers(config: Mapping[str, Any]) -> tuple[Matrix, ...] | Unknown:
    """The matrices of all towers, named visual.* and audio.*, or why they are not known."""
    top = Fields(config)
    try:
        text = Fields(text_config(config))
        seen, heard = top.part("vision_config"), top if top.kind == "whisper" else top.part("audio_config")
        sight = tuple(_vision(top.kind, seen, hidden(text))) if seen else ()
        return (*sight, *(_audio(top.kind, heard, hidden(text)) if heard else ()))
    except LackingError as lacking:
        return Unknown(f"a tower of {top.kind or 'a nameless model'}: {lacking}")


def transformer(name: str, layers: int, width: int, inner: int, *, gated: bool = False, attention: int = 0) -> Iterator[Matrix]:
    """Encoder layers of four attention matrices and an MLP."""
    if not 0 < layers <= _MOST_LAYERS:
        msg = f"{layers} layers"
        raise LackingError(msg)
    attention = attention or width
    yield Matrix(f"{name}.qkv", width, 3 * attention, layers)
    yield Matrix(f"{name}.proj", attention, width, layers)
    yield Matrix(f"{name}.fc1", width, inner * (2 if gated else 1), layers)
    yield Matrix(f"{name}.fc2", inner, width, layers)


_MOST_LAYERS: Final = 4096


def _vision(kind: str, vision: Fields, text_width: int) -> Iterator[Matrix]:
    sight = _SIGHTS.get(kind, _Sight("mlp"))
    # Qwen2-VL calls the width of its output hidden_size.
    narrow = ("embed_dim", "vt_hidden_size") if kind == "qwen2_vl" else ("vt_hidden_size", "hidden_size", "embed_dim")
    width = vision.number(*narrow, default=sight.width) or vision.need("hidden_size")
    layers = vision.number("depth", "vt_num_hidden_layers", "num_hidden_layers", default=sight.layers) or vision.need("num_hidden_layers")
    inner = vision.number("vt_intermediate_size", "intermediate_size", default=sight.inner) or width * vision.number("mlp_ratio", default=4)
    out = vision.number("out_hidden_size", "text_hidden_size", default=text_width)
    if sight.joint == "gated merger":  # intermediate_size is the merger's there (models/glm4_1v.py)
        inner = out
    layers += vision.number("num_global_layers") - (kind in _LAST_LAYER_UNUSED and layers > 1)
    yield from transformer("visual.blocks", layers, width, inner, gated=sight.gated)
    yield table("visual.patch_embed", 3 * vision.number("temporal_patch_size", default=1) * vision.number("patch_size", default=14) ** 2 * width)
    yield table("visual.pos_embed", _positions(kind, vision) * width)
    yield from _joint(sight, vision, width, out)


def _positions(kind: str, vision: Fields) -> int:
    grid = (vision.number("image_size") // vision.number("patch_size", default=14)) ** 2
    if kind == "mllama":  # one table for each of the nine arrangements of tiles (models/mllama.py, up to 0.10)
        return grid * (1 + 9 * vision.number("max_num_tiles", default=4))
    return vision.number("num_position_embeddings", default=grid) + 2 * vision.number("position_embedding_size")


def _joint(sight: _Sight, vision: Fields, width: int, out: int) -> Iterator[Matrix]:
    """From the tower's width to the language model's."""
    wide = width * vision.number("spatial_merge_size", default=2) ** 2
    if sight.joint == "merger":
        stated = vision.values.get("deepstack_visual_indexes")
        count = 1 + (min(len(stated), _MOST_LAYERS) if isinstance(stated, list) else sight.extra_mergers)
        yield Matrix("visual.merger.fc1", wide, wide, count)
        yield Matrix("visual.merger.fc2", wide, out, count)
    elif sight.joint == "gated merger":
        yield Matrix("visual.downsample", wide, out)
        yield Matrix("visual.merger.proj", out, out)
        yield Matrix("visual.merger.mlp", out, 3 * vision.number("intermediate_size", default=13696))
    elif sight.joint == "mlp":
        yield Matrix("visual.projector.fc1", width, out)
        yield Matrix("visual.projector.fc2", out, out)
    elif sight.joint == "resampler":
        yield Matrix("visual.resampler.kv_proj", width, out)
        yield Matrix("visual.resampler.attn", out, 5 * out)
    else:
        yield Matrix("visual.projector.linear", vision.number("vision_output_dim", default=width), out)


def _audio(kind: str, audio: Fields, text_width: int) -> Iterator[Matrix]:
    width = audio.need("d_model", "hidden_size")
    layers = audio.need("encoder_layers", "num_hidden_layers")
    if kind == "gemma4":  # conformer layers: two MLPs of four times the width, attention, a gated convolution
        yield from transformer("audio.layers", layers, width, 10 * width)
        return
    heads = audio.number("num_attention_heads", "encoder_attention_heads", default=1)
    inner = audio.need("encoder_ffn_dim", "intermediate_size")
    # Voxtral's realtime encoder is a small llama, with gated MLPs and heads of their own size.
    head = audio.number("head_dim")
    yield from transformer("audio.layers", layers, width, inner, gated=bool(head), attention=heads * head)
    yield table("audio.conv", 3 * width * (audio.number("num_mel_bins", default=128) + width))
    yield table("audio.positions", width * audio.number("max_source_positions"))
    if kind == "whisper":
        return
    wide = width * (4 if kind.startswith("voxtral") else 1)
    yield Matrix("audio.projector.fc1", wide, text_width)
    if wide != width:
        yield Matrix("audio.projector.fc2", text_width, text_width)
