"""Kinds of models that people know and that Karat does not run: why, and which family that it runs is nearest."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unsupported:
    """`names` are model types of config.json and architectures of GGUF files; `nearest` is a family."""

    names: tuple[str, ...]
    why: str
    nearest: str


_COMPRESSED = "its attention keeps keys and values of all heads as one compressed row (MLA)"
_STATES = "its layers are Mamba's (a scan over states)"
_SPARSE = "its attention chooses the keys that a token sees"
_PARALLEL = "attention and MLP stand side by side behind a LayerNorm"
_ENCODES = "it encodes texts and generates none"
_KINDS = (
    Unsupported(("deepseek_v2", "deepseek_v3", "deepseek2", "kimi_k2", "kimi_k25"), _COMPRESSED, "qwen3_moe"),
    Unsupported(("glm4_moe_lite", "mistral4", "kimi_linear", "kimi-linear"), _COMPRESSED, "qwen3_moe"),
    Unsupported(("deepseek_v32", "deepseek_v4", "glm_moe_dsa", "glm5_next"), _SPARSE, "qwen3_next"),
    Unsupported(("hy_v4", "minimax_m3_vl", "mistral_large4", "qwen4_exp"), _SPARSE, "qwen3_next"),
    Unsupported(("mamba", "mamba2", "falcon_mamba"), _STATES, "lfm2"),
    Unsupported(("nemotron_h", "nemotron_h_moe", "bamba", "jamba", "zamba2"), _STATES, "qwen3_5_moe_text"),
    Unsupported(("falcon_h1", "falcon-h1", "granitemoehybrid", "granitehybrid", "plamo2"), _STATES, "granite"),
    Unsupported(("glm4_moe", "glm4moe"), "its RoPE turns neighbours, and its experts have groups", "qwen3_moe"),
    Unsupported(("glm4", "glm", "chatglm"), "its RoPE turns neighbours, and a part of a head alone", "qwen3"),
    Unsupported(("cohere", "cohere2", "command-r"), _PARALLEL, "gemma3_text"),
    Unsupported(("falcon", "gpt_neox", "gptneox", "phi", "phi2", "stablelm"), _PARALLEL, "phi3"),
    Unsupported(("gpt2", "gptj", "gpt_bigcode", "bloom", "opt", "mpt"), "it has LayerNorms and no RoPE", "llama"),
    Unsupported(("starcoder2", "nemotron", "persimmon"), "it has LayerNorms, and an MLP without a gate", "qwen2"),
    Unsupported(("cohere2_moe",), _PARALLEL, "qwen3_moe"),
    Unsupported(("olmo",), "its LayerNorms have no weights", "olmo2"),
    Unsupported(("olmo_hybrid",), "it has OLMo's attention beside delta nets", "qwen3_5_text"),
    Unsupported(("apertus",), "its MLP has no gate (xIELU)", "qwen3"),
    Unsupported(("nanochat",), "its MLP has no gate (ReLU squared)", "qwen3"),
    Unsupported(("cwm",), "its layers are Llama's with windows, and GGUF has no form of it", "llama"),
    Unsupported(
        ("granite_swa", "granitemoe", "granitemoe_swa", "granitemoeshared"),
        "it has Granite's multipliers beside experts or sinks",
        "granite",
    ),
    Unsupported(("lfm3",), "its attention has gates of heads and windows", "lfm2"),
    Unsupported(("hunyuan_v1_dense", "hunyuan-dense"), "q and k are normalised after RoPE", "qwen3"),
    Unsupported(("exaone_moe", "exaone-moe"), "EXAONE's layers have experts of another kind", "exaone4"),
    Unsupported(("laguna",), "its attention has a gate of each head (softplus), and layers other heads", "qwen3_moe"),
    Unsupported(("mellum",), "its layers have windows beside experts", "qwen3_moe"),
    Unsupported(("minimax",), "its layers are of lightning attention", "qwen3_next"),
    Unsupported(("muse_spark", "muse_spark_text"), "its residuals have gates, beside experts", "muse_glimmer_text"),
    Unsupported(("inkling", "inkling2"), "its positions are relative, beside short convolutions", "lfm2_moe"),
    Unsupported(("diffusion_gemma",), "it writes by diffusion, not token by token", "gemma4_text"),
    Unsupported(("gemma4_assistant", "gemma4_unified_assistant"), "it drafts for Gemma 4", "gemma4_text"),
    Unsupported(("muse_glimmer_assistant",), "it drafts for Muse Glimmer", "muse_glimmer_text"),
    Unsupported(("gemma",), "its norms and MLP are Gemma 2's, and its layers are others", "gemma2"),
    Unsupported(("gemma3n",), "its layers have several streams (AltUp)", "gemma3_text"),
    Unsupported(
        ("llama4", "llama4_text"), "its layers attend to chunks, and experts multiply their input", "qwen3_moe"
    ),
    Unsupported(("phimoe", "dbrx", "grok-1"), "its router, or its norms, are of another kind", "mixtral"),
    Unsupported(("minimax_m2", "minimax-m2", "hy_v3", "hunyuan_v1_moe"), "its router is of another kind", "qwen3_moe"),
    Unsupported(("ernie4_5", "ernie4_5_moe", "ernie4_5-moe"), "its RoPE turns neighbours, in float32", "qwen3"),
    Unsupported(
        ("qwen2_vl", "qwen2_5_vl", "qwen2vl", "qwen3_vl", "qwen3vl"), "it sees, and its RoPE has axes", "qwen3"
    ),
    Unsupported(("qwen3_vl_moe", "qwen3vlmoe", "qwen3_omni_moe"), "it sees, and its RoPE has axes", "qwen3_moe"),
    Unsupported(("mllama",), "it sees: its layers attend to pictures", "llama"),
    Unsupported(("bert", "roberta", "modernbert", "xlm-roberta", "nomic-bert"), _ENCODES, "qwen3"),
    Unsupported(("t5", "bart", "whisper", "mbart"), "it has an encoder beside its decoder", "llama"),
    Unsupported(("rwkv", "rwkv6", "rwkv7"), "its layers are RWKV's", "qwen3_5_text"),
)
UNSUPPORTED: Mapping[str, Unsupported] = {name: kind for kind in _KINDS for name in kind.names}


def told(name: object) -> str:
    """What to say of a kind of model by its name, after `is not supported`; empty for one that nobody knows."""
    kind = UNSUPPORTED.get(name) if isinstance(name, str) else None
    return "" if kind is None else f": {kind.why}; the nearest family that Karat runs is {kind.nearest}"
