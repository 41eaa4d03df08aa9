"""A model as the check needs it: configuration, graph and stored tensors, none of them loaded."""

from dataclasses import dataclass
from pathlib import Path

from karat.check.graph import Graph, build_graph
from karat.check.weights import CheckpointWeights
from karat.checkpoint import FolderCheckpoint, open_folder, resolve
from karat.checkpoint.weights import Weight
from karat.config import FloatName, ModelConfig, embedded_model_path
from karat.models.registry import find_weights, read_config


@dataclass(frozen=True, slots=True, eq=False)
class CheckedModel:
    """path is the folder; stored the tensor of every weight that the model needs."""

    path: Path
    config: ModelConfig
    checkpoint: FolderCheckpoint
    stored: dict[str, Weight]
    graph: Graph

    def weights(self, narrow: FloatName | None = None) -> CheckpointWeights:
        """The tensors as an engine has them that computes in `narrow`."""
        return CheckpointWeights(self.stored, narrow)


def open_model(model: str | None) -> CheckedModel:
    """A folder, org/name or None for the embedded model. Raises what opening and reading it raises."""
    path = embedded_model_path() if model is None else resolve(model)
    checkpoint = open_folder(path)
    config = read_config(checkpoint.config)
    return CheckedModel(path, config, checkpoint, find_weights(config, checkpoint), build_graph(config))
