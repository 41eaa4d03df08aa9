"""From a config.json and a checkpoint to a model."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from karat.checkpoint.assign import assign
from karat.checkpoint.slices import without_read_ahead
from karat.checkpoint.weights import Checkpoint, Weight, WeightSpec
from karat.config import ModelConfig
from karat.errors import ConfigError
from karat.layers.attention import RopeTables
from karat.layers.weights import AS_STORED, Prepare, WeightLoader
from karat.models.cut_units import cut_units
from karat.models.decoder import Decoder, weight_specs
from karat.models.degrees import check_degree
from karat.models.families import FAMILIES
from karat.models.reader import ConfigReader
from karat.ops.api import Cache, Loaded, Ops, Step, Tensor
from karat.ranks.group import SINGLE, Group
from karat.request import shown


class Model:
    """A decoder on an executor, or a rank's part of one: `parts`, for which `bytes_read` of the files were taken.

    `on` gives the same loaded weights under another wrapper of the same executor.
    """

    def __init__(
        self,
        config: ModelConfig,
        ops: Ops,
        decoder: Decoder,
        ropes: RopeTables,
        group: Group = SINGLE,
        parts: Mapping[WeightSpec, Loaded] = MappingProxyType({}),
        bytes_read: int = 0,
    ) -> None:
        self.config = config
        self.ops = ops
        self.group = group
        self.parts = parts
        self.bytes_read = bytes_read
        self._decoder = decoder
        self._ropes = ropes

    def forward(self, step: Step, cache: Cache) -> Tensor:
        """Write K and V of the step's tokens; return the logits [rows, vocab] of its logit_rows."""
        return self._decoder(self.ops, step, cache, self._ropes)

    def on(self, ops: Ops) -> "Model":
        """The same model run through `ops`, a Tap of this model's executor."""
        return Model(self.config, ops, self._decoder, self._ropes, self.group, self.parts, self.bytes_read)

    @property
    def num_kv_heads(self) -> int:
        """KV heads that its cache holds: all of them, or those of this rank."""
        return self._decoder.num_kv_heads


def read_config(raw: Mapping[str, object]) -> ModelConfig:
    """The configuration that a config.json states; ConfigError names what is unknown or unsupported."""
    if "auto_map" in raw:
        raise ConfigError(
            "config.json has auto_map: the model brings its own Python code, which Karat never runs; "
            "use a release of the model in a supported architecture"
        )
    if raw.get("quantization_config") is not None:
        quantization = raw["quantization_config"]
        method = quantization.get("quant_method", "unnamed") if isinstance(quantization, dict) else quantization
        raise ConfigError(
            f"quantization method {shown(method)} is not supported in a Hugging Face folder; use the original model"
        )
    model_type = raw.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    supported = ", ".join(f"{f.model_type} ({f.architecture})" for f in FAMILIES.values())
    if family is None:
        raise ConfigError(f"model_type={shown(model_type)} is not supported; Karat has {supported}")
    architectures = raw.get("architectures")
    if architectures is not None and architectures != [family.architecture]:
        raise ConfigError(
            f"architectures={shown(architectures)} is not supported for model_type={model_type!r}: "
            f"expected [{family.architecture!r}]; Karat has {supported}"
        )
    reader = ConfigReader({key: value for key, value in raw.items() if key != "quantization_config"})
    config: ModelConfig = family.read(reader)
    reader.finish()
    return config


def find_weights(config: ModelConfig, checkpoint: Checkpoint) -> dict[str, Weight]:
    """The weight of every tensor the model needs, none of them read; CheckpointError unless they fit exactly."""
    tied = {"lm_head.weight": "model.embed_tokens.weight"} if config.tie_word_embeddings else {}
    return assign(weight_specs(config), checkpoint, tied=tied)


def build(
    config: ModelConfig,
    ops: Ops,
    checkpoint: Checkpoint,
    *,
    num_positions: int,
    prepare: Prepare = AS_STORED,
    group: Group = SINGLE,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Check the checkpoint against what the model needs, then load it. Raises CheckpointError before any loading.

    `num_positions` is the longest sequence that will be run; RoPE tables are that long. `prepare` may change a weight
    on its way (quantise it); it is called once for each, just before the executor loads it. Of a `group` of ranks each
    builds what it holds, and reads no more than that. `progress` is called after each weight with the bytes that were
    read, and those of all weights. UsageError for a number of ranks that the model cannot have.
    """
    weights = find_weights(config, checkpoint)
    units = cut_units(config, weights, prepare.stored_type)
    check_degree(config, units, group.size)
    if group.size > 1:
        without_read_ahead(weights.values())
    loader = WeightLoader(ops, weights, prepare, progress)
    decoder = Decoder(loader, config, units, group)
    ropes = decoder.rope_tables(ops, num_positions)
    return Model(config, ops, decoder, ropes, group, loader.parts, loader.bytes_read)
