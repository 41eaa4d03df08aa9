"""Family: the record that each family's file exports."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from karat.checkpoint.gguf import GgufForm
from karat.checkpoint.joins import Grouped
from karat.checkpoint.unused import PREDICTION_KEYS
from karat.config import FloatName, ModelConfig, RopeConfig
from karat.errors import ConfigError
from karat.layers.block import Block
from karat.layers.layer_inputs import InputSizes
from karat.layers.place import Place
from karat.models.reader import ConfigReader, read_dtype, read_token_ids
from karat.models.ropes import DEFAULT_THETA, read_rope
from karat.request import shown

C = TypeVar("C", bound=ModelConfig)
_ALIKE = {"silu": ("silu", "swish"), "gelu_pytorch_tanh": ("gelu_pytorch_tanh",)}  # names of one function


@dataclass(frozen=True, slots=True)
class Ends:
    """The numbers by which the embedding's rows, and what the head reads, are multiplied, and the cap of logits.

    None is no multiplication, and no cap. With `embedding_eps` the embedding's rows are normalised, without a weight.
    The last norm is called `norm`; with `norm_plus_one` it multiplies by 1 + weight. With `layer_inputs` each layer
    gets something of the tokens besides x.
    """

    embedding_scale: float | None = None
    embedding_eps: float | None = None
    head_scale: float | None = None
    head_cap: float | None = None
    norm: str = "model.norm"
    norm_plus_one: bool = False
    layer_inputs: InputSizes | None = None


@dataclass(frozen=True, slots=True)
class Family(Generic[C]):
    """A model family.

    `model_type` and `architecture` are the names in config.json. `read` reads the configuration from a config.json; it
    must read every key that can change the result. `layer` composes layer `index` of a model at its place. `gguf` is
    the record of the family's GGUF files. `ends` says what a model does at its ends that others do not. `quantised` are
    the methods of a config.json's quantization_config whose tensors Karat reads. `joins` are tensors of its files that
    are several of a model's, row by row. `least_kv_dtype` is the narrowest dtype that a cache has without being asked.
    `brings_code`: releases name Python code of their own that computes what transformers' class of that name does.
    """

    model_type: str
    architecture: str
    read: Callable[[ConfigReader], C]
    layer: Callable[[Place, C, int], Block]
    gguf: GgufForm[C]
    ends: Callable[[C], Ends] = lambda _: Ends()
    quantised: tuple[str, ...] = ()
    joins: Callable[[C], tuple[Grouped, ...]] = lambda _: ()
    least_kv_dtype: FloatName = "float16"
    brings_code: bool = False


def read_decoder(
    reader: ConfigReader,
    config: Callable[..., C],
    *,
    layer_windows: tuple[int | None, ...],
    num_kv_heads: int,
    head_dim: int | None = None,
    intermediate_size: int | None = None,
    eps_key: str = "rms_norm_eps",
    tied: bool | None = None,
    default_theta: float = DEFAULT_THETA,
    default_rope: Mapping[str, object] = MappingProxyType({}),
    rope_keys: Collection[str] = (),
    rope: RopeConfig | None = None,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    **own: object,
) -> C:
    """A `config` from the keys that all families share and the family's `own` fields.

    A head_dim of None means hidden_size / num_attention_heads; intermediate_size is the one where none is stated;
    eps_key is what the family calls the norms' epsilon, and `tied` whether the head is the embedding, where the family
    reads that itself. default_theta is RoPE's base where none is stated, and default_rope its parameters where none
    are. Of RoPE's parameters the family reads `rope_keys` itself, or all of them, and gives the `rope`. `activation` is
    the key that names the MLP's, and what it has to be.
    Raises ConfigError for missing or invalid values.
    """
    key, computed = activation
    if (stated := reader.get(str, key, computed)) not in _ALIKE[computed]:
        raise ConfigError(f"{key}={shown(stated)} is not supported: models of this type are computed with {computed}")
    hidden, num_heads = reader.get(int, "hidden_size"), reader.get(int, "num_attention_heads")
    if head_dim is None:
        if num_heads < 1 or hidden % num_heads:
            raise ConfigError(
                f"hidden_size={hidden} does not divide by num_attention_heads={num_heads}; state head_dim"
            )
        head_dim = hidden // num_heads
    for key in PREDICTION_KEYS:
        if (count := reader.get(int, key, 0)) < 0:
            raise ConfigError(f"{key}={count}: expected a number of layers")
    max_positions = reader.get(int, "max_position_embeddings")
    bos = read_token_ids(reader, "bos_token_id")
    return config(
        model_type=reader.get(str, "model_type"),
        vocab_size=reader.get(int, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=reader.get(int, "intermediate_size", intermediate_size),
        num_layers=reader.get(int, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=reader.get(float, eps_key),
        max_position_embeddings=max_positions,
        rope=read_rope(reader, max_positions, default_theta, default_rope, rope_keys) if rope is None else rope,
        tie_word_embeddings=reader.get(bool, "tie_word_embeddings", False) if tied is None else tied,
        layer_windows=layer_windows,
        dtype=read_dtype(reader),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=read_token_ids(reader, "eos_token_id"),
        **own,
    )
