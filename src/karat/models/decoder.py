"""Decoder: a whole model of embedding, the layers of its family, final norm and head."""

from collections.abc import Sequence

from karat.checkpoint.weights import WeightSpec
from karat.config import FLOAT_BYTES, FloatName, ModelConfig
from karat.kv.groups import Keep
from karat.layers.block import Block
from karat.layers.layer_inputs import LayerInputs
from karat.layers.mixer import RopeTables, Rotation
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.layers.shards import Cut, CutUnits, Wholes
from karat.layers.vocabulary import ParallelLMHead, VocabParallelEmbedding
from karat.layers.weights import SpecCollector, Take
from karat.models.families import FAMILIES
from karat.models.family import Ends
from karat.ops.api import Cache, Ops, Step, Tensor
from karat.ops.executor import Executor
from karat.ranks.group import SINGLE, Group

_ANY: CutUnits = Wholes()  # for one rank, units do not matter


class Decoder:
    """A model of loaded weights, or a rank's part of one; `units` are never cut apart.

    It holds no executor, so the same weights also run under a tap of their executor.
    """

    def __init__(self, take: Take, config: ModelConfig, units: CutUnits, group: Group = SINGLE) -> None:
        self.config = config
        root = Place(take, "", units, group)
        self.embed_tokens = embedding(root, config)
        self.layer_inputs = layer_inputs(root, config)
        self.layers = [layer(root, config, index) for index in range(config.num_layers)]
        self.norm, self.lm_head = end(root, config, self.embed_tokens)

    @property
    def keeps(self) -> tuple[Keep, ...]:
        """What each layer keeps of the tokens it has seen: all of it, or this rank's part."""
        return tuple(layer.keeps for layer in self.layers)

    @property
    def cuts(self) -> dict[str, Cut]:
        """Its row-parallel weights by name: what ranks cut, and what they may not."""
        return {name: cut for layer in self.layers for name, cut in layer.cuts.items()}

    @property
    def rotations(self) -> frozenset[Rotation]:
        """The RoPE tables that its layers take."""
        return frozenset(rotation for layer in self.layers for rotation in layer.rotations)

    def rope_tables(self, ops: Executor, num_positions: int) -> RopeTables:
        """The RoPE tables of its layers for positions below `num_positions`, each made once."""
        return {
            rotation: ops.rope_table(
                rotation.rope, head_dim=rotation.head_dim, num_positions=num_positions, growth=rotation.growth
            )
            for rotation in self.rotations
        }

    def __call__(self, ops: Ops, step: Step, caches: Sequence[Cache], ropes: RopeTables) -> Tensor:
        x = self.embed_tokens(ops, step)
        given = None if self.layer_inputs is None else self.layer_inputs(ops, x, step)
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            x = layer(ops, x, step, cache, ropes, None if given is None else given[index])
        x = ops.select_rows(x, step, name="model.selected")
        return self.lm_head(ops, self.norm(ops, x))


def embedding(root: Place, config: ModelConfig) -> VocabParallelEmbedding:
    """The embedding, whose result is the first layer's input."""
    return VocabParallelEmbedding(
        root / "model.embed_tokens",
        config.vocab_size,
        config.hidden_size,
        is_head=config.tie_word_embeddings,
        scale=_ends(config).embedding_scale,
        norm_eps=_ends(config).embedding_eps,
    )


def layer_inputs(root: Place, config: ModelConfig) -> LayerInputs | None:
    """What each layer gets of the tokens besides x; None in most families."""
    sizes = _ends(config).layer_inputs
    if sizes is None:
        return None
    return LayerInputs(root / "model", config.hidden_size, config.num_layers, sizes, config.rms_norm_eps)


def layer(root: Place, config: ModelConfig, index: int) -> Block:
    """Layer `index`, as the model's family composes it."""
    return FAMILIES[config.model_type].layer(root / f"model.layers.{index}", config, index)


def end(root: Place, config: ModelConfig, embed_tokens: VocabParallelEmbedding) -> tuple[RMSNorm, ParallelLMHead]:
    """The final norm and the head. A tied head uses the embedding's weight."""
    ends = _ends(config)
    return (
        RMSNorm(root / ends.norm, config.hidden_size, config.rms_norm_eps, plus_one=ends.norm_plus_one),
        ParallelLMHead(
            root / "lm_head",
            config.vocab_size,
            config.hidden_size,
            tied_to=embed_tokens if config.tie_word_embeddings else None,
            scale=ends.head_scale,
            cap=ends.head_cap,
        ),
    )


def end_names(config: ModelConfig) -> tuple[str, ...]:
    """The results that have rows of the wanted tokens alone, in order."""
    ends = _ends(config)
    scaled = () if ends.head_scale is None else ("lm_head_input",)
    uncapped = () if ends.head_cap is None else ("lm_head_uncapped",)
    return ("model.selected", ends.norm, *scaled, *uncapped, "lm_head")


def default_kv_dtype(config: ModelConfig, ops: Executor) -> FloatName:
    """The dtype of a cache for which none is asked: the executor's, or the family's where that is wider."""
    least = FAMILIES[config.model_type].least_kv_dtype
    return max(ops.default_kv_dtype, least, key=FLOAT_BYTES.__getitem__)


def _ends(config: ModelConfig) -> Ends:
    return FAMILIES[config.model_type].ends(config)


def outline(config: ModelConfig, units: CutUnits = _ANY, group: Group = SINGLE) -> Decoder:
    """The model, or a rank's part of it, without weights: it says what its layers keep and need."""
    return Decoder(SpecCollector(), config, units, group)


def weight_specs(config: ModelConfig) -> list[WeightSpec]:
    """Every tensor that a model of this configuration needs, each once and whole."""
    return rank_specs(config, _ANY, SINGLE)


def rank_specs(config: ModelConfig, units: CutUnits, group: Group) -> list[WeightSpec]:
    """The part of every tensor that a rank of `group` holds."""
    collector = SpecCollector()
    Decoder(collector, config, units, group)
    return collector.specs
