"""Every mistake of the catalogue that has no free number, as edits of the graph.

A generator states the whole bug: a wrong theta changes q and k. The diagnosis later keeps the nodes of an edit that
stand between recorded results, and joins mistakes that give the same numbers.
"""

from collections.abc import Iterator, Sequence

from karat.check.mistakes import block, embedding, linear, loading, norm, result
from karat.check.mistakes.bugs import OF_ATTENTION, OF_LAYER
from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.scope import DEGREES, Layer, Params, Scope
from karat.check.mistakes.weight_readings import Effective
from karat.check.model.graph import Graph
from karat.check.model.tokens import Tokens
from karat.check.model.weights import CheckpointWeights

_OVERFLOWING = ("self_attn.scores", "mlp.act", "layer", "attention_residual", "self_attn.attention")


class Enumeration:
    """The mistakes of one model over the tokens of one trace, of an engine of one of `degrees` of ranks."""

    def __init__(
        self, graph: Graph, weights: CheckpointWeights, tokens: Tokens, degrees: Sequence[int] = DEGREES
    ) -> None:
        self.scope = Scope(graph, weights, tokens, tuple(degrees))
        self.graph = graph
        self.config = graph.config

    def of_layers(self, layers: Sequence[int]) -> Iterator[Variant]:
        """Each mistake made in all these layers."""
        parts = [list(self.of_layer(layer)) for layer in layers]
        by_key: dict[tuple[str, str], dict[str, Params]] = {}
        for variants in parts:
            for variant in variants:
                by_key.setdefault((variant.bug, variant.detail), {}).update(variant.edits)  # type: ignore[arg-type]
        for (bug, detail), edits in by_key.items():
            yield Variant(bug, detail, edits)

    def of_layer(self, index: int) -> Iterator[Variant]:
        layer = Layer(self.graph, index)
        for generate in (*(OF_ATTENTION if layer.has_attention else ()), *OF_LAYER):
            for bug, detail, roles in generate(self.scope, layer):
                yield Variant(bug, detail, layer.edit(roles))
        linears = layer.roles_of("linear")
        for role in linears:
            for bug, detail, params in linear.linears(self.scope, layer.node(role)):
                yield Variant(bug, f"{role}: {detail}", layer.edit({role: params}))
        sums = {role: layer.node(role) for role in linears if role.endswith(linear.ROW_PARALLEL)}
        for ranks in self.scope.degrees if len(sums) > 1 else ():
            averaged: dict[str, Params] = {role: linear.averaged(node, ranks) for role, node in sums.items()}
            yield Variant("reduce-mean", f"all sums over ranks: divided by {ranks}", layer.edit(averaged))
        yield from loading.layer_wide(self.scope, layer)
        for bug, detail, role, params in result.overflow(linears, [role for role in _OVERFLOWING if role in layer]):
            yield Variant(bug, f"{role}: {detail}", layer.edit({role: params}))
        # Where the activation is float16 too, its last bit decides which products overflow.
        if "mlp.act" not in layer:
            return
        act: Params = {"fp16_activation": True, "fp16_output": True}
        yield Variant("overflow-fp16", "mlp.act: activation and product are float16", layer.edit({"mlp.act": act}))

    def _of_rows(self) -> Iterator[Variant]:
        """Logits of other rows than those that are wanted."""
        nodes = self.graph.nodes
        norm, selected, head = nodes["model.norm"], nodes["model.selected"], self.graph.head
        for kind, detail in linear.ROWS.items():
            yield Variant("logits-row", detail, {selected.name: {"rows_of": kind}})
            if head.inputs == (norm.name,) and norm.inputs == (selected.name,):
                of = (kind, norm.params["weight"], norm.params["eps"], head.params["weight"])
                edit: Params = {"inputs": (norm.name, *selected.inputs), "rows_of": of}
                yield Variant("logits-row", detail, {head.name: edit})

    def of_all_norms(self) -> Iterator[Variant]:
        """The mistakes of one norm's class, made by all norms before attention, MLP and head."""
        ends = self.graph.nodes["model.norm"]
        layers = [Layer(self.graph, number) for number in range(self.config.num_layers)]
        nodes = [ends, *(layer.node(role) for layer in layers for role in layer.norms)]
        of_nodes = [{(bug, detail): p for bug, detail, p in norm.of_node(self.scope, node)} for node in nodes]
        for bug, detail in of_nodes[0]:
            if bug != "layer-prefix" and all((bug, detail) in found for found in of_nodes):
                edits = {node.name: found[bug, detail] for node, found in zip(nodes, of_nodes, strict=True)}
                yield Variant(bug, f"all norms: {detail}", edits)

    def of_all_sums(self) -> Iterator[Variant]:
        """What one function that adds the ranks' parts does wrong, to the embedding and in all layers."""
        nodes = [node for node in self.graph.nodes.values() if node.role.endswith(linear.ROW_PARALLEL)]
        for ranks in self.scope.degrees:
            edits = {node.name: linear.averaged(node, ranks) for node in nodes}
            edits[embedding.EMBED] = {"output_factor": 1 / ranks}
            yield Variant("reduce-mean", f"all sums over ranks, the embedding's too: divided by {ranks}", edits)

    def of_ends(self) -> Iterator[Variant]:
        """The mistakes of embedding, final norm and head, and of multipliers beside them."""
        hidden = self.config.hidden_size
        embed, final, head = embedding.EMBED, "model.norm", self.graph.head.name
        yield from embedding.variants(self.scope)
        for bug, detail, params in norm.of_node(self.scope, self.graph.nodes[final]):
            yield Variant(bug, detail, {final: params})
        yield Variant(
            "norm-missing", "model.norm's result is not used", {head: {"inputs": self.graph.nodes[final].inputs}}
        )
        yield from self._of_rows()
        for number in range(self.config.num_layers):
            layer = Layer(self.graph, number)
            read_by = (node for node in self.graph.nodes.values() if layer.node("layer").name in node.inputs)
            skipped = {
                node.name: {"inputs": tuple(layer.before if s == layer.node("layer").name else s for s in node.inputs)}
                for node in read_by
            }
            yield Variant("layer-skipped", f"layer {number} is not computed, or its result not used", skipped)
        for number in sorted({0, self.config.num_layers - 1}):
            for part in Layer(self.graph, number).norms:
                weight = f"model.layers.{number}.{part}.weight"
                yield Variant("norm-swapped", f"{weight} is used", {final: {"weight": weight}})
        for node in self.graph.nodes.values():
            if node.kind == "scale" and node.layer is None:
                for bug, detail, params in block.of_multiplier(node):
                    yield Variant(bug, f"{node.name}: {detail}", {node.name: params})
            if node.kind == "l2_norm" and node.layer is None:
                yield Variant("norm-missing", f"{node.name}: skipped", {node.name: {"as_it_is": True}})
        for bug, detail, params in linear.linears(self.scope, self.graph.nodes[head]):
            yield Variant(bug, detail, {head: params})
        logits = self.graph.nodes["lm_head"]
        for bug, detail, params in result.of_cap(logits):
            yield Variant(bug, f"logits {detail}", {logits.name: params})
        for factor in (hidden**-0.5, 1 / hidden):
            yield Variant("logit-scale", f"logits multiplied by {factor:.6g}", {head: {"output_factor": factor}})
        if self.config.tie_word_embeddings:
            yield Variant("tie-ignored", "the head is all zero", {head: {"factor": 0}})
        else:
            yield Variant("tie-wrong", "the embedding is used as head", {head: {"weight": "model.embed_tokens.weight"}})
        for bug, detail, _, params in result.overflow([head]):
            yield Variant(bug, detail, {head: params})
        table = self.graph.nodes[embed].params["weight"]
        for how, bug, detail in linear.misreadings(self.scope, table):
            yield Variant(bug, f"embedding: {detail}", {embed: {"effective": Effective("bits", (table,), (how,))}})
        for how, bug, detail in linear.misreadings(self.scope):
            edits: dict[str, Params] = {embed: {"effective": Effective("bits", (table,), (how,))}}
            for node in self.graph.nodes.values():  # routers and the like may be stored in a type of their own
                if node.kind == "linear" and how in {
                    known for known, _, _ in linear.misreadings(self.scope, node.params["weight"])
                }:
                    edits[node.name] = linear.misread(self.scope, node, how)
            yield Variant(bug, f"all weights but the norms': {detail}", edits)
            without_biases = {name: {"effective": params["effective"]} for name, params in edits.items()}
            if without_biases != edits:
                yield Variant(bug, f"all matrices: {detail}", without_biases)
