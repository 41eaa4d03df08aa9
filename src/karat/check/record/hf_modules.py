"""Where the parts of a transformers model stand: modules are named as Llama's, or, in LFM2, by names of its own."""

from collections.abc import Mapping
from typing import Any

from karat.errors import ExecutorError

# Llama's name of a part -> LFM2's, or that of LFM2 with experts.
_OTHERS: Mapping[str, str] = {
    "norm": "embedding_norm",
    "rotary_emb": "pos_emb",
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp": "feed_forward",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
    "q_norm": "q_layernorm",
    "k_norm": "k_layernorm",
    "o_proj": "out_proj",
}


def name_in(module: Any, name: str) -> str:
    """What the module calls its part of this name: LFM2's word where it has that and not Llama's."""
    other = _OTHERS.get(name, name)
    return other if getattr(module, name, None) is None and getattr(module, other, None) is not None else name


def part_of(module: Any, path: str) -> Any:
    """The part of a module at a path of Llama's names. AttributeError if there is none by either name."""
    for name in path.split("."):
        module = getattr(module, name_in(module, name))
    return module


def part_or_none(module: Any, path: str) -> Any:
    try:
        return part_of(module, path)
    except AttributeError:
        return None


def mixer_of(layer: Any) -> str:
    """The name of what mixes tokens: attention, a delta net, or a short convolution."""
    return next((name for name in ("linear_attn", "conv") if hasattr(layer, name)), "self_attn")


def mixers_of(model: Any) -> frozenset[str]:
    """Those of all layers of a model."""
    return frozenset(map(mixer_of, getattr(getattr(model, "model", None), "layers", ())))


def has_gate(attention: Any) -> bool:
    """Whether q_proj has rows of a gate beside those of q. A module in its place may not say its sizes."""
    rows = getattr(attention.q_proj, "out_features", None)
    columns = getattr(part_of(attention, "o_proj"), "in_features", 0)
    return bool(rows == 2 * columns)


def is_gated(attention: Any) -> bool:
    """Whether its result is multiplied by a gate, of rows of q_proj or of a matrix of its own."""
    return hasattr(attention, "gate_proj") or has_gate(attention)


def by_token(base: Any, name: str, out: Any) -> Any:
    """A module's result [1, tokens, …]. Norms of heads have their heads before the tokens in some models."""
    if out.ndim != 4 or not name.endswith((".q_norm", ".k_norm")):
        return out
    attention = base.layers[int(name.split(".")[2])].self_attn
    is_k = name.endswith(".k_norm")
    if is_k:
        stated, width = "num_key_value_heads", getattr(attention.k_proj, "out_features", None)
    else:
        stated, width = "num_attention_heads", getattr(part_of(attention, "o_proj"), "in_features", None)
    # A module in the place of a projection may not say its sizes.
    heads = getattr(base.config, stated) if width is None else width // out.shape[3]
    heads_first = out.shape[1] == heads
    is_view = out.shape[1] != out.shape[2] or out.stride(1) < out.stride(2)
    return out.transpose(1, 2) if heads_first and is_view else out


def reader_of_residual(layer: Any) -> str:
    """The part that reads the sum of a layer's input and its attention."""
    if part_or_none(layer, "pre_feedforward_layernorm") is not None:
        return "pre_feedforward_layernorm"
    return "post_attention_layernorm" if part_or_none(layer, "input_layernorm") else "mlp"


def refuse_other_modules(model: Any) -> None:
    """Raises ExecutorError for a model of transformers without the modules that Llama has beside its layers."""
    for name in ("embed_tokens", "norm", "rotary_emb"):
        if part_or_none(model.model, name) is None:
            raise other_modules(model, f"it has no {name}")


def scales_itself(embedding: Any) -> bool:
    """Whether an embedding multiplies the rows of its table, as Gemma's does."""
    return hasattr(embedding, "embed_scale")


def made_of_rows(embedding: Any) -> str | None:
    """What an embedding makes of the rows of its table: Gemma's are scaled, Muse Glimmer's normed."""
    return "normed" if hasattr(embedding, "embed_norm") else "scaled" if scales_itself(embedding) else None


def require_text_model(config: Any) -> None:
    """ExecutorError where transformers has the text model of this configuration as a part of another alone."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if config.model_type == "muse_glimmer_text":
        from karat.check.record import hf_muse_glimmer

        hf_muse_glimmer.register()
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ExecutorError(
            f"transformers has no text model of the type {config.model_type} by itself; compare with the reference, or "
            "with llama.cpp on a GGUF file"
        )


def other_modules(model: Any, why: object) -> ExecutorError:
    return ExecutorError(
        f"{type(model).__name__}: {why}; traces are made of models whose modules are named as Llama's are, or LFM2's"
    )
