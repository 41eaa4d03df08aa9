"""A model's configuration as the metadata of a GGUF file, with errors for what GGUF cannot express."""

from collections.abc import Sequence
from dataclasses import replace

from karat.checkpoint.gguf.config import WINDOW_THETA
from karat.checkpoint.gguf.writer import numbers, scalar, string
from karat.config import LayerShape, ModelConfig, RopeConfig
from karat.errors import ConfigError
from karat.models.families import FAMILIES
from karat.ops.rope_table import yarn_attention_factor

Pairs = list[tuple[str, bytes]]


def model_pairs(config: ModelConfig, name: str) -> Pairs:
    """The pairs of general.* and of the architecture. ConfigError for a model that GGUF cannot express."""
    form, shape, rope = FAMILIES[config.model_type].gguf, _shape(config), rope_of(config)
    arch, window = form.architecture, _window(config)
    if window and not form.has_window:
        raise ConfigError(
            f"the model has a sliding window of {window} tokens, which GGUF cannot state for {arch}: longer contexts "
            "would differ from the model; set max_position_embeddings to the window, or the window to null"
        )
    if (reason := form.not_in_gguf(config)) is not None:
        raise ConfigError(f"GGUF cannot state {reason}")
    stated: dict[str, int | Sequence[int]] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": shape.inner_size,
        "attention.head_count": shape.num_heads,
        "attention.head_count_kv": shape.num_kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "rope.dimension_count": shape.head_dim,
        "vocab_size": config.vocab_size,
        **{key: getattr(config, name) for key, name in form.counts.items()},
        **form.written(config),
    }
    if form.has_window:  # 0 too: a file without the key gets a warning when it is opened
        stated.setdefault("attention.sliding_window", window)
    pairs = [
        ("general.architecture", string(arch)),
        ("general.type", string("model")),
        ("general.name", string(name)),
        *((f"{arch}.{key}", _whole(number)) for key, number in stated.items()),
        (f"{arch}.attention.layer_norm_rms_epsilon", scalar("FLOAT32", config.rms_norm_eps)),
        (f"{arch}.rope.freq_base", scalar("FLOAT32", rope.theta)),
        *((f"{arch}.{key}", scalar("FLOAT32", getattr(config, name))) for key, name in form.numbers.items()),
    ]
    if form.window_theta or (form.window_theta is not None and any(shape.window for shape in config.shapes)):
        pairs.append(
            (f"{arch}.{WINDOW_THETA}", scalar("FLOAT32", _window_theta(config, form.window_theta or rope.theta)))
        )
    return pairs + [(f"{arch}.rope.scaling.{key}", value) for key, value in _scaling(rope, form.yarn_truncates)]


def _whole(stated: int | Sequence[int]) -> bytes:
    """A number of all layers, or one for each, or a truth value."""
    if isinstance(stated, int):
        return scalar("UINT32", stated)
    return numbers("BOOL" if all(isinstance(each, bool) for each in stated) else "INT32", stated)


def _window(config: ModelConfig) -> int:
    """The smallest window below the context length, in tokens; 0 for none."""
    windows = (shape.window for shape in config.shapes if shape.window is not None)
    return min((window for window in windows if window < config.max_position_embeddings), default=0)


def _shape(config: ModelConfig) -> LayerShape:
    """The shape of all layers, but for their windows, RoPE and growth, and what the family's form states of each.

    ConfigError for layers that differ otherwise.
    """
    first, *others = (replace(shape, window=None, rope=None, growth=0.0) for shape in config.shapes)
    if not FAMILIES[config.model_type].gguf.sizes_by_layer and any(shape != first for shape in others):
        raise ConfigError("layers of different sizes cannot be written as GGUF yet; expected layers alike")
    return first


def rope_of(config: ModelConfig) -> RopeConfig:
    """The RoPE of the layers that have it. ConfigError for several, and for other layers than GGUF means."""
    form = FAMILIES[config.model_type].gguf
    for layer, shape in enumerate(config.shapes):
        if (shape.rope is not None) != form.has_rope(config, layer):
            found, expected = ("RoPE", "none") if shape.rope else ("no RoPE", "RoPE")
            raise ConfigError(
                f"layer {layer} has {found}, which GGUF cannot state for {form.architecture}; expected {expected}"
            )
    by_kind = form.window_theta is not None
    ropes = {shape.rope for shape in config.shapes if shape.rope is not None and not (by_kind and shape.window)}
    if len(ropes) > 1:
        raise ConfigError("layers with different RoPE cannot be written as GGUF yet; expected one for all")
    return ropes.pop() if ropes else config.rope


def _window_theta(config: ModelConfig, default: float) -> float:
    """The base of RoPE in the layers with a window. ConfigError for a RoPE with a scaling."""
    ropes = {shape.rope for shape in config.shapes if shape.window is not None}
    for rope in ropes:
        if rope is None or rope != RopeConfig(theta=rope.theta):
            raise ConfigError("layers with a window have a RoPE that is scaled, which GGUF cannot state")
    return next((rope.theta for rope in ropes if rope is not None), default)


def different_in_llama_cpp(config: ModelConfig) -> str | None:
    """A warning where llama.cpp loads the model but computes something else; None otherwise."""
    if (window := _window(config)) and not FAMILIES[config.model_type].gguf.llama_cpp_has_window:
        return f"llama.cpp computes without the model's window of {window} tokens: longer contexts differ there"
    return None


def foreign_to_llama_cpp(config: ModelConfig) -> str | None:
    """Why llama.cpp (llama-cpp-python 0.3.36) does not load the model; None if it does."""
    return FAMILIES[config.model_type].gguf.not_in_llama_cpp(config)


def _scaling(rope: RopeConfig, truncates: bool) -> Pairs:
    if rope.rope_type == "linear":
        return [("type", string("linear")), ("factor", scalar("FLOAT32", rope.factor))]
    if rope.rope_type == "longrope":
        return [
            ("original_context_length", scalar("UINT32", rope.original_max_position_embeddings)),
            ("attn_factor", scalar("FLOAT32", rope.attention_factor)),
        ]
    if rope.rope_type != "yarn":
        return []  # llama3 and factors are stored as the tensor rope_freqs.weight
    is_usual = rope.attention_factor == yarn_attention_factor(rope.factor, None, None)
    if not (is_usual or rope.attention_factor == 1) or rope.truncate != truncates:
        raise ConfigError(
            f"yarn with attention_factor={rope.attention_factor} and truncate={rope.truncate} cannot be stated in "
            f"GGUF; expected the default factor or 1, and truncate={truncates}"
        )
    return [
        ("type", string("yarn")),
        ("factor", scalar("FLOAT32", rope.factor)),
        ("original_context_length", scalar("UINT32", rope.original_max_position_embeddings)),
        ("yarn_beta_fast", scalar("FLOAT32", rope.beta_fast)),
        ("yarn_beta_slow", scalar("FLOAT32", rope.beta_slow)),
        *([] if is_usual else [("yarn_log_multiplier", scalar("FLOAT32", 1.0))]),  # of mscale_all_dim = mscale
    ]
