"""build: from a config.json and a checkpoint to a loaded model."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from karat.checkpoint.assign import assign
from karat.checkpoint.composite import Composite
from karat.checkpoint.packed import PackedFile
from karat.checkpoint.quantization import quantization_of, refusal
from karat.checkpoint.slices import without_read_ahead
from karat.checkpoint.unsupported import told
from karat.checkpoint.weights import Checkpoint, Weight, WeightSpec
from karat.config import ModelConfig
from karat.errors import ConfigError
from karat.kv.groups import Keep
from karat.layers.mixer import RopeTables, Rotation
from karat.layers.weights import AS_STORED, Prepare, WeightLoader
from karat.models.cut_units import cut_units, experts_by_columns
from karat.models.decoder import Decoder, weight_specs
from karat.models.degrees import check_degree
from karat.models.families import COMPOSITES, FAMILIES
from karat.models.family import Family
from karat.models.reader import ConfigReader
from karat.ops.api import Cache, Loaded, Ops, Step, Tensor
from karat.ops.executor import Executor
from karat.ranks.group import SINGLE, Group
from karat.request import shown


class Model:
    """A decoder on an executor, or a rank's part of one.

    `parts` are the loaded weights by spec, for which `bytes_read` bytes of files were read. `types` are those of all
    matrices, as they are computed with, and `by_columns` says whether leaves of experts are columns. `packed` is the
    packed file that holds them, if one does. `on` runs the same weights under a wrapper of the same executor.
    """

    def __init__(
        self,
        config: ModelConfig,
        ops: Executor,
        decoder: Decoder,
        ropes: RopeTables,
        group: Group = SINGLE,
        parts: Mapping[WeightSpec, Loaded] = MappingProxyType({}),
        bytes_read: int = 0,
        types: frozenset[str] = frozenset(),
        by_columns: bool = False,
        packed: PackedFile | None = None,
    ) -> None:
        self.config = config
        self.ops = ops
        self.group = group
        self.parts = parts
        self.bytes_read = bytes_read
        self.types = types
        self.by_columns = by_columns
        self.packed = packed
        self._decoder = decoder
        self._ropes = ropes

    def forward(self, step: Step, caches: Sequence[Cache], ops: Ops | None = None) -> Tensor:
        """Write K and V of the step's tokens to the layers' caches. Returns the logits [rows, vocab] of its logit_rows.

        `ops` are those that the executor gives while it records.
        """
        return self._decoder(self.ops if ops is None else ops, step, caches, self._ropes)

    def on(self, ops: Executor) -> "Model":
        """The same model run through `ops`, a Tap of this model's executor."""
        parts = (self.parts, self.bytes_read, self.types, self.by_columns, self.packed)
        return Model(self.config, ops, self._decoder, self._ropes, self.group, *parts)

    @property
    def keeps(self) -> tuple[Keep, ...]:
        """What each layer keeps of the tokens it has seen: all of it, or this rank's part."""
        return self._decoder.keeps

    @property
    def rotations(self) -> frozenset[Rotation]:
        """The RoPE tables that its layers take."""
        return self._decoder.rotations


def read_config(raw: Mapping[str, object]) -> ModelConfig:
    """The configuration of a config.json. Raises ConfigError for unknown or unsupported keys, values and families."""
    config, reader = _read(raw)
    reader.finish()
    return config


def passed_over(raw: Mapping[str, object]) -> tuple[str, ...]:
    """Keys of a config.json that Karat does not know, with values that say nothing. Raises as `read_config`."""
    _, reader = _read(raw)
    reader.finish()
    return tuple(reader.passed_over)


def keys_read(raw: Mapping[str, object]) -> frozenset[str]:
    """The keys that the family of a config.json reads. Raises ConfigError for unsupported values and families."""
    return _read(raw)[1].seen | {"model_type", "architectures"}


def _read(raw: Mapping[str, object]) -> tuple[ModelConfig, ConfigReader]:
    """The configuration, and the reader before it has looked at keys that nobody read."""
    model_type = raw.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    known: list[Family[Any] | Composite] = [*FAMILIES.values(), *COMPOSITES.values()]
    supported = ", ".join(f"{kind.model_type} ({kind.architecture})" for kind in known)
    if family is None:
        raise ConfigError(f"model_type={shown(model_type)} is not supported{told(model_type)}; Karat has {supported}")
    if (code := raw.get("auto_map")) and not (family.brings_code and _is_known(code, family)):
        raise ConfigError(
            "config.json has auto_map: the model brings its own Python code, which Karat never runs; "
            "use a release of the model in a supported architecture"
        )
    if quantization := raw.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        if quantization_of(raw) is None and method not in family.quantised:
            raise ConfigError(refusal(quantization))
    architectures = raw.get("architectures")
    if architectures not in (None, [], [family.architecture]):
        raise ConfigError(
            f"architectures={shown(architectures)} is not supported for model_type={model_type!r}: "
            f"expected [{family.architecture!r}]; Karat has {supported}"
        )
    reader = ConfigReader({key: value for key, value in raw.items() if key not in ("quantization_config", "auto_map")})
    config: ModelConfig = family.read(reader)
    return config, reader


def _is_known(code: object, family: Family[Any]) -> bool:
    """Whether the model that an auto_map names is the family's, which transformers has itself."""
    named = code.get("AutoModelForCausalLM") if isinstance(code, dict) else None
    return isinstance(named, str) and named.rpartition(".")[2] == family.architecture


def find_weights(config: ModelConfig, checkpoint: Checkpoint) -> dict[str, Weight]:
    """The weight of every tensor that the model needs. None is read. CheckpointError unless all fit exactly."""
    tied = {"lm_head.weight": "model.embed_tokens.weight"} if config.tie_word_embeddings else {}
    return assign(weight_specs(config), checkpoint, tied=tied, grouped=FAMILIES[config.model_type].joins(config))


def build(
    config: ModelConfig,
    ops: Executor,
    checkpoint: Checkpoint,
    *,
    num_positions: int,
    prepare: Prepare = AS_STORED,
    group: Group = SINGLE,
    progress: Callable[[int, int], None] | None = None,
    meanwhile: Callable[[], bool] | None = None,
    packed: PackedFile | None = None,
) -> Model:
    """Check that the checkpoint fits the model, then load it.

    `num_positions` is the length of the longest sequence that will be run, and of the RoPE tables. `prepare` converts
    each weight (quantises it) just before the executor loads it. A rank of `group` builds and reads its own part only.
    `progress` is called with the bytes that are loaded and the bytes of all weights. `meanwhile` is called before each
    part of the wait for weights that the executor completes later. It starts a thread, and returns whether that still
    runs: until it has ended, the wait leaves the interpreter's lock and one core to it. `packed` is a packed file of
    this checkpoint as it is prepared, for one rank and an executor with that layout. Raises CheckpointError before any
    loading, UsageError for a number of ranks that the model cannot have.
    """
    weights = find_weights(config, checkpoint)
    units = cut_units(config, weights, prepare.stored_type)
    check_degree(config, units, group.size)
    if group.size > 1:
        without_read_ahead(weights.values())
    loader = WeightLoader(ops, weights, prepare, progress, later=True, packed=packed)
    decoder = Decoder(loader, config, units, group)
    ropes = decoder.rope_tables(ops, num_positions)
    loader.finish(meanwhile)
    types = frozenset(prepare.stored_type(weight) for weight in weights.values() if len(weight.shape) > 1)
    loaded = (loader.parts, loader.bytes_read, types, experts_by_columns(units), packed)
    return Model(config, ops, decoder, ropes, group, *loaded)
