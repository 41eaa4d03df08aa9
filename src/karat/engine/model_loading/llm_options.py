"""Options: the arguments of LLM besides model and tokenizer, checked before any file is opened."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from karat.config import FLOAT_BYTES, FloatName
from karat.errors import ExecutorError, UsageError
from karat.ops.registry import check_values
from karat.request import MAX_COUNT, MAX_SEED, shown

GenerationSource = Literal["auto", "none"]
Quantization = Literal["q8_0", "q4_0"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of karat.LLM with these names. Raises UsageError for an invalid value.

    executor_options are those of the executor (karat.ops.registry), which checks them: threads, activations and others.
    """

    dtype: FloatName | Literal["auto"] = "auto"
    kv_dtype: FloatName | None = None
    executor: str = "auto"
    max_model_len: int | None = None
    seed: int = 0
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    kv_cache_bytes: int | None = None
    num_blocks: int | None = None
    state_cache_bytes: int | None = None
    enable_prefix_caching: bool = True
    generation_config: GenerationSource = "auto"
    quantize: Quantization | None = None
    packed_cache: str | None = None
    guard: bool = False
    tensor_parallel_size: int = 1
    max_step_ms: int | None = None
    executor_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.quantize is not None and self.quantize not in get_args(Quantization):
            expected = " or ".join(map(repr, get_args(Quantization)))
            raise UsageError(f"quantize={shown(self.quantize)}: expected {expected}")
        if self.generation_config not in get_args(GenerationSource):
            raise UsageError(f"generation_config={shown(self.generation_config)}: expected 'auto' or 'none'")
        if self.kv_dtype is not None and self.kv_dtype not in FLOAT_BYTES:
            raise UsageError(f"kv_dtype={shown(self.kv_dtype)}: expected one of {', '.join(FLOAT_BYTES)}, or None")
        if not isinstance(self.packed_cache, str | None):
            raise UsageError(f"packed_cache={shown(self.packed_cache)}: expected the path of a folder, or None")
        check_values(self.executor_options)
        if self.kv_cache_bytes is not None and self.num_blocks is not None:
            raise UsageError("kv_cache_bytes and num_blocks both set the size of the KV cache; give one")
        if not isinstance(self.enable_prefix_caching, bool):
            raise UsageError(f"enable_prefix_caching={shown(self.enable_prefix_caching)}: expected True or False")
        self._check_int("seed", 0, MAX_SEED)
        for name, most in (("max_step_ms", MAX_COUNT), ("state_cache_bytes", None)):
            if getattr(self, name) is not None:
                self._check_int(name, 0, most)
        for name in ("tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens"):
            self._check_int(name, 1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"max_num_batched_tokens={self.max_num_batched_tokens}: expected a token at least for each of "
                f"max_num_seqs={self.max_num_seqs} sequences of a step; raise it, or lower max_num_seqs"
            )
        for name in ("num_blocks", "kv_cache_bytes", "max_model_len"):
            if getattr(self, name) is not None:
                self._check_int(name, 1)

    @property
    def compute_dtype(self) -> FloatName:
        """The compute dtype. ExecutorError for a type that weights can be stored in but Karat does not compute in."""
        match self.dtype:
            case "auto" | "float32":
                return "float32"
            case "float64":
                return "float64"
        raise ExecutorError(
            f"dtype={shown(self.dtype)}: expected 'auto', 'float32' or 'float64'; this is the compute dtype, and "
            "weights stay as stored, float16 and bfloat16 ones too"
        )

    def _check_int(self, name: str, least: int, most: int | None = None) -> None:
        value = getattr(self, name)
        if not (type(value) is int and least <= value and (most is None or value <= most)):
            span = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
            raise UsageError(f"{name}={shown(value)}: expected {span}")
