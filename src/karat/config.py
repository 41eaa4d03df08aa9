"""Frozen configuration: a model's, and the few settings that come from the environment.

No other module of Karat reads the environment (huggingface_hub reads its own `HF_*` variables).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal

from karat.errors import ConfigError

RopeType = Literal["default", "factors", "linear", "llama3", "longrope", "proportional", "yarn"]
FloatName = Literal["float16", "bfloat16", "float32", "float64"]
Activations = Literal["float64", "float32", "int24", "int16", "int8"]

VERSION = "0.1.0"  # of this package, karat.__version__
# What the native executor reads where weights are in blocks, unless it is told (karat.ops.executor).
DEFAULT_ACTIVATIONS: Activations = "int16"
NUMERIC_CONTRACT = 7  # the version of docs/determinism.md that the native executor computes by

_PREFIXES = ("KARAT_", "HF_", "HUGGING_FACE_", "HUGGINGFACE_")  # Karat's variables and huggingface_hub's

FLOAT_BYTES: Mapping[FloatName, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding, with the fields of Hugging Face's `rope_parameters`.

    `rope_type` decides which fields are used. linear: `factor`. llama3: `factor`, the two frequency factors and the
    original length. yarn: `factor`, the original length, the betas, `truncate` and `attention_factor` (already
    resolved; cosine and sine are multiplied by it). factors (only from GGUF): `factors` has a number for each pair of a
    head, and the pair's frequency is divided by it. longrope: the same, with an `attention_factor`; each wavelength is
    multiplied. proportional: ProportionalRope.
    """

    theta: float
    rope_type: RopeType = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalRope(RopeConfig):
    """RoPE of the kind proportional, with `factor`: the first pairs of a head are turned as where all are.

    These are `share` of all pairs, rounded down; the others stay as they are. A class of its own, as a field of all
    would change the fingerprints of all models.
    """

    rope_type: RopeType = "proportional"
    share: float

    def turned_pairs(self, head_dim: int) -> int:
        """How many pairs of a head of this size are turned."""
        return int(self.share * head_dim // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The sizes of one layer, for all ranks together.

    A token sees `window` keys, itself included; None means all. `rope` turns q and k by position; None turns nothing.
    It turns the first `rotary_dim` numbers of a head; None means all. With `growth` all of q, which is turned then, is
    also multiplied by 1 + growth · ln(1 + ⌊position / original length⌋); the length is RoPE's.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    inner_size: int
    window: int | None
    rope: RopeConfig | None
    rotary_dim: int | None = None
    growth: float = 0.0

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_heads} is no multiple of num_key_value_heads={self.num_kv_heads}: "
                "query heads are shared out evenly over KV heads; check config.json"
            )
        dim = self.head_dim if self.rotary_dim is None else self.rotary_dim
        if dim % 2:
            raise ConfigError(f"head_dim={dim}: rotary embedding turns pairs, so an even number is needed")
        if not 0 < dim <= self.head_dim:
            raise ConfigError(f"{dim} numbers of a head are turned, of {self.head_dim}: expected 2 to all of them")
        rope, num_pairs = self.rope, dim // 2
        if self.growth and (rope is None or rope.original_max_position_embeddings < 1 or dim != self.head_dim):
            raise ConfigError(
                f"q grows by {self.growth} with the position, which is supported only with a RoPE of whole heads that "
                "has an original length, as yarn and llama3 have; check rope_parameters"
            )
        if rope is not None and rope.rope_type in ("factors", "longrope") and len(rope.factors) != num_pairs:
            raise ConfigError(f"{len(rope.factors)} factors of RoPE; expected one for each of {num_pairs} pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The sizes and choices of every decoder-only transformer, all resolved. A family adds fields of its own.

    The family's reader writes it; it never changes. Raises ConfigError for sizes that do not fit together. The sizes of
    heads, of MLPs, the windows and the RoPE are what config.json states for all layers: they are for families, and
    everybody else asks for the `shape` of a layer.
    layer_windows[i] is the number of keys that a token of layer i sees, itself included; None means all.
    dtype is the checkpoint's stated dtype. It is information only: each tensor is used in its stored type.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool
    layer_windows: tuple[int | None, ...]
    dtype: FloatName | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    norms_all_heads: ClassVar[bool] = False  # of q and of k together (karat.layers.norm.AllHeadsNorm)

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected a positive integer")
        if not self.rms_norm_eps > 0:
            raise ConfigError(f"rms_norm_eps={self.rms_norm_eps}: expected a number above 0")
        if len(self.layer_windows) != self.num_layers:
            raise ConfigError(f"{len(self.layer_windows)} layer types for {self.num_layers} layers")
        _ = self.shapes  # which must be possible

    @property
    def usual_context(self) -> int:
        """The tokens of a context where nobody asks for another one."""
        return self.max_position_embeddings

    @property
    def other_ropes(self) -> tuple[RopeConfig, ...]:
        """What RoPE would be with contexts of other lengths."""
        return ()

    def reading(self, context: int | None) -> "ModelConfig":
        """This model with what it computes for contexts of so many tokens, which is decided once; None: the usual."""
        return self

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The sizes of all layers."""
        return tuple(map(self.shape, range(self.num_layers)))

    def shape(self, layer: int) -> LayerShape:
        """The sizes of a layer. A family whose layers differ in more than their windows has a method of its own."""
        return LayerShape(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            inner_size=self.intermediate_size,
            window=self.layer_windows[layer],
            rope=self.rope,
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings from the environment.

    `isa` (`KARAT_ISA`) forces a kernel build: generic, avx2, avx2-vnni, avx512, avx512-vnni, avx512-intel or
    avx512-amx (generic, neon, neon-dotprod or neon-i8mm on Arm). `debug` (`KARAT_DEBUG`) is on unless empty or 0.
    `variables` holds every set variable of Karat and huggingface_hub by name; `karat env` shows them.
    """

    isa: str | None
    debug: bool
    variables: Mapping[str, str]

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "Settings":
        """The settings of an environment, by default of this process."""
        return cls(
            isa=env.get("KARAT_ISA") or None,
            debug=env.get("KARAT_DEBUG", "") not in ("", "0"),
            variables=MappingProxyType({name: env[name] for name in sorted(env) if name.startswith(_PREFIXES)}),
        )


def variables_named(prefix: str) -> list[str]:
    """The names of the environment's variables that begin so."""
    return sorted(name for name in os.environ if name.startswith(prefix))


def embedded_model_path() -> Path:
    """The folder of the model in the package."""
    return Path(__file__).parent / "embedded"


def packed_cache_path(env: Mapping[str, str] = os.environ) -> Path:
    """The folder of `karat pack` where none is named: karat/packed in the user's folder of caches."""
    named = Path(env.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "karat" / "packed"


def numpy_on_one_thread() -> None:
    """Keep NumPy's matrix products to one thread, unless the environment says otherwise. Before NumPy is imported.

    Its OpenBLAS wakes all cores for products of a few tokens and then waits for them. The reference executor and the
    checks run up to ten times slower so, most of all where the cores have other work.
    """
    os.environ.update(_one_thread())


def environment_of_children() -> dict[str, str]:
    """The environment for processes of ours: this process's, with NumPy on one thread as above."""
    return dict(os.environ) | _one_thread()


def _one_thread() -> dict[str, str]:
    names = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
    return {} if any(name in os.environ for name in names) else {"OPENBLAS_NUM_THREADS": "1"}
