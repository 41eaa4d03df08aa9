"""Why tensors and config.json do not fit together: the usual causes, recognised from the names alone."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from karat.checkpoint.wording import shown

# (pattern in an unexpected name, the cause and what to do)
_KINDS: Sequence[tuple[str, str]] = (
    (r"lora_|\.base_layer\.", "these are a LoRA adapter's: merge it into its base model first"),
    (
        r"\.(qweight|qzeros|g_idx|scales|weight_scale(_inv)?|weight_packed|absmax|quant_map|SCB)$",
        "these are a quantised model's, and config.json announces none, or another: use the unquantised original",
    ),
    (r"^blk\.\d", "these are GGUF names in a safetensors file: use the GGUF file, or the model's original files"),
    (
        r"\.attention\.w[qkvo]\.|\.feed_forward\.w\d\.|tok_embeddings",
        "these are the names of Meta's and Mistral's own releases: use the Hugging Face version of the model",
    ),
    (
        r"(qkv_proj|gate_up_proj|query_key_value|c_attn|W_pack)\.",
        "projections are fused here in a way that Karat does not read: use a model of a family it has",
    ),
    (
        r"\.(block_sparse_moe|mlp\.experts|mlp\.gate)\.",
        "these are a mixture of experts', which config.json does not announce: is model_type right?",
    ),
    (r"vision|visual|image|audio", "these are a multimodal model's: only text models are read"),
)
_BIAS = re.compile(r"\.bias$")
_NORM = re.compile(r"\.[qk]_norm\.")
_LAYER = re.compile(r"\.layers\.(\d{1,9})\.")


def likely_reason(
    missing: Sequence[str], unexpected: Sequence[str], any_misshapen: bool, *, in_gguf: bool = False
) -> str:
    """One clause with the probable cause and what to do. At least one of the first three must not be empty.

    in_gguf: the model is a GGUF file, which has metadata instead of a config.json.
    """
    if in_gguf:
        return _reason_in_gguf(missing, unexpected, any_misshapen)
    if missing and (reason := _prefix(missing, unexpected)):
        return reason
    for pattern, reason in _KINDS:
        if any(re.search(pattern, name) for name in unexpected):
            return reason
    if list(missing) == ["lm_head.weight"]:
        return (
            "the output head is absent, and config.json does not tie it to the embedding: if the model shares"
            ' the two, set "tie_word_embeddings": true there; else the file is incomplete: download it again'
        )
    if _all(_BIAS, missing) and not unexpected:
        return "config.json announces these biases: check model_type, attention_bias and mlp_bias there"
    if _all(_BIAS, unexpected) and not missing:
        return "config.json announces no such biases: check model_type, attention_bias and mlp_bias there"
    if _all(_NORM, missing) or _all(_NORM, unexpected):
        return "these are query and key norms, which only some families have: is model_type in config.json right?"
    if _all(_LAYER, unexpected) and not missing:
        layers = sorted({int(match[1]) for name in unexpected if (match := _LAYER.search(name))})
        return f"config.json has none of these in layers {layers[0]} to {layers[-1]}: is num_hidden_layers right?"
    if missing and not unexpected:
        return "the file is incomplete, or config.json is another model's: download both again"
    if any_misshapen and not missing and not unexpected:
        return "config.json is that of a model of another size, or was edited: download it again"
    return "weights and config.json are of different models: download both again"


def _reason_in_gguf(missing: Sequence[str], unexpected: Sequence[str], any_misshapen: bool) -> str:
    if _all(_BIAS, [*missing, *unexpected]):
        return (
            "the file has biases on some matrices of a kind and not on the others: expected them in all layers, on q, "
            "k and v, or on the output of attention too, or on all of the MLP; download it again, or convert it anew"
        )
    if missing and not unexpected and not any_misshapen:
        return "the file is incomplete: download it again"
    return "the file was converted wrongly, or for another architecture: take another file of the model, or report it"


def _all(pattern: re.Pattern[str], names: Sequence[str]) -> bool:
    return bool(names) and all(pattern.search(name) for name in names)


def _prefix(missing: Sequence[str], unexpected: Sequence[str]) -> str | None:
    """The reason, if most missing tensors are present under a longer or a shorter name; else None."""
    wanted, present = set(missing), set(unexpected)
    longer = Counter(
        name[: dot + 1] for name in unexpected for dot in _dots(name) if name[dot + 1 :] in wanted
    ).most_common(1)
    if longer and 2 * longer[0][1] >= len(missing):
        return f"most are there with {shown(longer[0][0])} before the name: save the model without its wrapper"
    shorter = Counter(
        name[: dot + 1] for name in missing for dot in _dots(name) if name[dot + 1 :] in present
    ).most_common(1)
    if shorter and 2 * shorter[0][1] >= len(missing):
        return (
            f"most are there without {shown(shorter[0][0])} before the name: this is a model's body saved without "
            "its head: save the whole model (…ForCausalLM)"
        )
    return None


def _dots(name: str) -> list[int]:
    """The first four dots of a name, where a prefix may end: no wrapper has more than four parts."""
    return [match.start() for match in islice(re.finditer(r"\.", name), 4)]
