"""What a family is: a name, the architecture it answers to, and how its config.json is read."""

from collections.abc import Callable
from dataclasses import dataclass

from karat.config import ModelConfig
from karat.errors import ConfigError
from karat.models.reader import ConfigReader, read_dtype, read_rope, read_token_ids
from karat.request import shown


@dataclass(frozen=True, slots=True)
class Family:
    """`read` turns a config.json of this model_type into a ModelConfig and leaves no key unread that matters."""

    model_type: str
    architecture: str
    read: Callable[[ConfigReader], ModelConfig]


def read_decoder(
    reader: ConfigReader, *, layer_windows: tuple[int | None, ...], num_kv_heads: int, head_dim: int | None = None,
    qkv_bias: bool = False, o_bias: bool = False, mlp_bias: bool = False, qk_norm: bool = False,
) -> ModelConfig:  # fmt: skip
    """The keys that all families share; what differs is passed in. head_dim None: hidden_size / heads."""
    activation = reader.get(str, "hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ConfigError(
            f"hidden_act={shown(activation)} is not supported: models of this type are computed with silu"
        )
    hidden, num_heads = reader.get(int, "hidden_size"), reader.get(int, "num_attention_heads")
    if head_dim is None:
        if num_heads < 1 or hidden % num_heads:
            raise ConfigError(
                f"hidden_size={hidden} does not divide by num_attention_heads={num_heads}; state head_dim"
            )
        head_dim = hidden // num_heads
    max_positions = reader.get(int, "max_position_embeddings")
    bos = read_token_ids(reader, "bos_token_id")
    return ModelConfig(
        model_type=reader.get(str, "model_type"),
        vocab_size=reader.get(int, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=reader.get(int, "intermediate_size"),
        num_layers=reader.get(int, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=reader.get(float, "rms_norm_eps"),
        max_position_embeddings=max_positions,
        rope=read_rope(reader, max_positions),
        tie_word_embeddings=reader.get(bool, "tie_word_embeddings", False),
        layer_windows=layer_windows,
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        dtype=read_dtype(reader),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=read_token_ids(reader, "eos_token_id"),
    )
