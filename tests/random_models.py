"""Model folders and command lines of many kinds, random but always the same ones: what `vllm serve` may be asked to serve, without weights."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_DIMENSIONS: Mapping[str, Any] = {"vocab_size": 32_000, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024}
_KV_HEADS: Mapping[str, Any] = {"num_key_value_heads": 4}
_WINDOWED: Mapping[str, Any] = {"sliding_window": 1024}
_EXPERTS: Mapping[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
_LATENT: Mapping[str, Any] = {"kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model: what its config.json always says, and the key of its length. `text` is the kind of its text_config where it has one;
    the class of one that `picks` nests a flat config itself, and drops the keys that it does not know.
    """

    model_type: str
    architecture: str
    length: str | None = "max_position_embeddings"
    more: Mapping[str, Any] = field(default_factory=dict)
    text: str | None = None
    picks: bool = False


FAMILIES = (
    *(
        Family(kind, f"{name}ForCausalLM", more=_KV_HEADS)
        for kind, name in {
            "llama": "Llama",
            "qwen2": "Qwen2",
            "qwen3": "Qwen3",
            "gemma": "Gemma",
            "phi3": "Phi3",
            "granite": "Granite",
            "glm4": "Glm4",
            "smollm3": "SmolLM3",
            "stablelm": "StableLm",
            "olmo2": "Olmo2",
            "nemotron": "Nemotron",
            "exaone4": "Exaone4",
            "arcee": "Arcee",
            "phi": "Phi",
            "seed_oss": "SeedOss",
            "ernie4_5": "Ernie4_5",
            "gpt_neox": "GPTNeoX",
            "opt": "OPT",
            "falcon": "Falcon",
        }.items()
    ),
    Family("mistral", "MistralForCausalLM", more={**_KV_HEADS, **_WINDOWED}),
    Family("mistral", "MistralForCausalLM", more={**_KV_HEADS, "sliding_window": None}),
    Family("starcoder2", "Starcoder2ForCausalLM", more={**_KV_HEADS, **_WINDOWED}),
    Family("gemma2", "Gemma2ForCausalLM", more={**_KV_HEADS, **_WINDOWED}),
    Family("gemma3_text", "Gemma3ForCausalLM", more={**_KV_HEADS, **_WINDOWED}),
    Family("cohere", "CohereForCausalLM", "model_max_length"),
    Family("cohere2", "Cohere2ForCausalLM", more={**_KV_HEADS, **_WINDOWED}),
    Family("gpt2", "GPT2LMHeadModel", "n_positions"),
    Family("gpt_bigcode", "GPTBigCodeForCausalLM", "n_positions"),
    Family("gptj", "GPTJForCausalLM", "n_positions"),
    Family("bloom", "BloomForCausalLM", None),
    Family("mamba", "MambaForCausalLM", None, {"state_size": 16}),
    Family("mamba2", "Mamba2ForCausalLM", None, {"num_heads": 16, "head_dim": 64}),
    Family("jamba", "JambaForCausalLM", more={"attn_layer_period": 2, "attn_layer_offset": 1}),
    Family("falcon_h1", "FalconH1ForCausalLM"),
    Family("mixtral", "MixtralForCausalLM", more={**_KV_HEADS, "num_local_experts": 8}),
    Family("qwen3_moe", "Qwen3MoeForCausalLM", more={**_KV_HEADS, **_EXPERTS}),
    Family("qwen2_moe", "Qwen2MoeForCausalLM", more={**_KV_HEADS, **_EXPERTS}),
    Family("gpt_oss", "GptOssForCausalLM", more={**_KV_HEADS, "sliding_window": 128}),
    Family("deepseek_v2", "DeepseekV2ForCausalLM", more=_LATENT),
    Family("chatglm", "ChatGLMModel", "seq_length"),
    Family("bert", "BertModel"),
    Family("bert", "BertForSequenceClassification"),
    Family("roberta", "RobertaModel"),
    Family("xlm-roberta", "XLMRobertaForSequenceClassification"),
    Family("modernbert", "ModernBertModel"),
    Family("qwen2", "Qwen2ForRewardModel", more=_KV_HEADS),
    Family("qwen2", "Qwen2ForProcessRewardModel", more=_KV_HEADS),
    Family("llama", "LlamaModel", more=_KV_HEADS),
    Family("qwen3", "Qwen3ForSequenceClassification", more=_KV_HEADS),
    Family("llama", "LlamaBidirectionalModel", more={**_KV_HEADS, "pooling": "avg"}),
    Family("gemma3_text", "Gemma3TextModel", more={**_KV_HEADS, "use_bidirectional_attention": True}),
    Family("whisper", "WhisperForConditionalGeneration", "max_target_positions", {"is_encoder_decoder": True}),
    Family("llava", "LlavaForConditionalGeneration", text="llama"),
    Family("llava_onevision", "LlavaOnevisionForConditionalGeneration", text="qwen2"),
    Family("mistral3", "Mistral3ForConditionalGeneration", text="mistral"),
    Family("gemma3", "Gemma3ForConditionalGeneration", text="gemma3_text"),
    Family("paligemma", "PaliGemmaForConditionalGeneration", text="gemma"),
    Family("qwen2_vl", "Qwen2VLForConditionalGeneration", picks=True),
    Family("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", text="qwen2_5_vl_text"),
    Family("qwen3_vl", "Qwen3VLForConditionalGeneration", text="qwen3_vl_text"),
    Family("internvl", "InternVLForConditionalGeneration", text="qwen2"),
    Family("idefics3", "Idefics3ForConditionalGeneration", text="llama"),
    Family("qwen2_audio", "Qwen2AudioForConditionalGeneration", text="qwen2"),
    Family("llama4", "Llama4ForConditionalGeneration", text="llama4_text"),
)
_LENGTHS = (512, 1000, 2048, 2049, 4096, 8192, 32_768, 131_072, 262_144)


class RandomModels:
    """Folders and command lines from one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)  # noqa: S311  # a seed, not a secret
        self.folder = folder

    def ask(self, number: int) -> list[str]:
        """A command line after serve, whose model is a folder that was written for it."""
        folder = self.folder / str(number)
        folder.mkdir(parents=True)
        family = self.random.choice(FAMILIES)
        (folder / "config.json").write_text(json.dumps(self._config(family)))
        if self._chance(0.25):
            (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": self.random.choice((256, 1024, 8192, 10**30, 1e30, None))}))
        options = [option for _ in range(self.random.randrange(5)) for option in self._option()]
        if self._chance(0.1):
            (folder / "more.yaml").write_text(self.random.choice(("max-num-seqs: 4\n", "max-model-len: 300\n", "max_num_batched_tokens: 3k\n")))
            options += ["--config", str(folder / "more.yaml")]
        return [str(folder), *options]

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _config(self, family: Family) -> dict[str, Any]:
        text: dict[str, Any] = {**_DIMENSIONS, **family.more}
        length = self.random.choice(_LENGTHS)
        if family.length is not None and self._chance(0.8 if family.text else 0.96):
            text[family.length] = length
        if not family.picks and self._chance(0.05):
            text[self.random.choice(("max_seq_len", "seq_length", "model_max_length", "max_sequence_length"))] = self.random.choice(_LENGTHS)
        if not family.picks and self._chance(0.35):
            text.update(self._rope(length))
        outer = {"architectures": [family.architecture], "model_type": family.model_type, "torch_dtype": "bfloat16"}
        if family.architecture.endswith("Model") and self._chance(0.5):
            outer["position_embedding_type"] = "absolute"
        if family.text is None:
            return {**text, **outer}
        beside = {"max_position_embeddings": self.random.choice(_LENGTHS)} if self._chance(0.1) else {}
        return {**outer, **beside, "text_config": {**text, "model_type": family.text}}

    def _rope(self, length: int) -> dict[str, Any]:
        kind = self.random.choice(("linear", "dynamic", "yarn", "llama3", "longrope", "su", "default"))
        rope: dict[str, Any] = {self.random.choice(("type", "rope_type")): kind}
        if kind not in {"su", "longrope"} or self._chance(0.3):
            rope["factor"] = self.random.choice((1.0, 2.0, 4, 8.0, 2.5))
        beside: dict[str, Any] = {"rope_theta": 10_000.0} if self._chance(0.95) else {}
        if kind == "llama3":
            rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        if kind in {"su", "longrope"}:
            rope |= {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
            if self._chance(0.7):
                beside["original_max_position_embeddings"] = max(64, length // 4)
        if kind in {"yarn", "llama3"} and self._chance(0.8):
            rope["original_max_position_embeddings"] = max(64, length // 4)
        return {**beside, self.random.choice(("rope_scaling", "rope_parameters")): rope}

    def _option(self) -> list[str]:
        pick = self.random.choice
        if self._chance(0.04):
            return list(pick((("--disable-sliding-window",), ("--hf-overrides", '{"max_position_embeddings": 777}'), ("--hf-overrides", '{"foo": 1}'))))
        options: tuple[tuple[str, ...], ...] = (
            ("--max-model-len", pick(("256", "1k", "1K", "2048", "8192", "auto", "-1", "16k"))),
            ("--max-model-len", pick(("512", "1000", "4096"))),
            ("--max_model_len=" + pick(("128", "0.5k", "auto")),),
            ("--max-num-seqs", pick(("1", "2", "7", "64", "300", "2000"))),
            ("--max_num_seqs", "16"),
            ("--max-num-se", "3"),
            ("--max-num-batched-tokens", pick(("64", "1k", "2048", "5000", "8K", "200k"))),
            ("--max-num-batched=4096",),
            ("--no-enable-chunked-prefill",),
            ("--enable-chunked-prefill",),
            ("--performance-mode", pick(("throughput", "balanced", "interactivity"))),
            ("--performance-mode=throughput",),
            ("-tp", pick(("1", "2", "4"))),
            ("-pp", "2"),
            ("-dp", "2"),
            ("--tensor-parallel-size=2",),
            ("--runner", pick(("pooling", "generate", "auto"))),
            ("--convert", pick(("embed", "classify", "none"))),
            ("--no-enable-prefix-caching",),
            ("--enforce-eager",),
            ("--kv-cache-memory-bytes", "1G"),
            ("--block-size", "128"),
            ("--disable-chunked-mm-input",),
            ("--language-model-only",),
            ("--dtype", "float32"),
        )
        return list(pick(options))
