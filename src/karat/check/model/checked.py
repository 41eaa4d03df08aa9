"""A model as the check needs it: configuration, graph and stored tensors, none of them loaded."""

from dataclasses import dataclass
from pathlib import Path

from karat.check.model.graph import Graph, build_graph
from karat.check.model.weights import CheckpointWeights
from karat.checkpoint import ModelCheckpoint, resolve
from karat.checkpoint.overrides import NO_OVERRIDES, Overrides
from karat.checkpoint.weights import Weight
from karat.config import FloatName, ModelConfig, embedded_model_path
from karat.models.cut_units import cut_units, experts_by_columns
from karat.models.opening import open_model as open_checkpoint
from karat.models.registry import find_weights, read_config


@dataclass(frozen=True, slots=True, eq=False)
class CheckedModel:
    """path: the folder or file; stored: the tensor of every weight that the model needs."""

    path: Path
    config: ModelConfig
    checkpoint: ModelCheckpoint
    stored: dict[str, Weight]
    graph: Graph

    @property
    def types(self) -> frozenset[str]:
        """Stored types of the matrices."""
        return frozenset(weight.dtype for weight in self.stored.values() if len(weight.shape) > 1)

    @property
    def by_columns(self) -> bool:
        """Whether leaves of experts are columns."""
        return experts_by_columns(cut_units(self.config, self.stored))

    def weights(self, narrow: FloatName | None = None) -> CheckpointWeights:
        """The tensors as an engine that computes in `narrow` has them."""
        return CheckpointWeights(self.stored, narrow)


def open_model(model: str | None, overrides: Overrides = NO_OVERRIDES) -> CheckedModel:
    """A folder, a GGUF file, org/name, or None for the embedded model. Raises what opening and reading it raises."""
    checkpoint = open_checkpoint(embedded_model_path() if model is None else resolve(model), overrides)
    config = read_config(checkpoint.config)
    return CheckedModel(checkpoint.path, config, checkpoint, find_weights(config, checkpoint), build_graph(config))
