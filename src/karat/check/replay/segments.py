"""Segments: the ops between the recorded results and a result, row by row.

A trace may have some tokens of a result, or some heads of scores and weights. A norm of token 7 needs token 7 only.
Attention of token 7 needs K and V of tokens 0 to 7, and a recurrent layer all that its state is made of; those that are
not recorded are computed.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from karat.check.model.graph import Graph, Node
from karat.check.model.tokens import Tokens
from karat.models.decoder import end_names

Mask = NDArray[np.bool_]  # [tokens]; of scores and weights [heads, tokens]


class Masks(Protocol):
    """The rows of results that a trace has."""

    def mask(self, name: str) -> Mask | None: ...


class Segments:
    """The nodes between recorded results, over one trace."""

    def __init__(self, graph: Graph, tokens: Tokens, logit_rows: NDArray[np.int64], recorded: Masks) -> None:
        self._graph, self._tokens, self._recorded = graph, tokens, recorded
        self._with_logits = np.isin(np.arange(tokens.num_tokens), logit_rows)

    def of(self, name: str, *, missing: bool = False) -> tuple[str, ...]:
        """The nodes that are computed to judge the recorded rows of `name`, in order, `name` last.

        missing: to compute the rows that are not recorded instead. All rows of a result that is not recorded count.
        """
        have, order = self._recorded.mask(name), self._graph.order
        wanted = self._whole(name) if have is None else self._whole(name) & ~have if missing else have
        needs, found = {name: wanted}, []
        while needs:
            current = max(needs, key=order.__getitem__)
            need = needs.pop(current)
            if current != name and (have := self._recorded.mask(current)) is not None:
                need = need & ~have
            if current != name and not need.any():
                continue
            found.append(current)
            for source, mask in self._inputs(self._graph.nodes[current], need):
                needs[source] = needs[source] | mask if source in needs else mask
        return tuple(reversed(found))

    def is_partial(self, name: str) -> bool:
        """Whether the trace has only some tokens or heads of a result."""
        have = self._recorded.mask(name)
        return have is not None and not bool(have[self._whole(name)].all())

    def _whole(self, name: str) -> Mask:
        """The mask of all rows of a node."""
        node = self._graph.nodes[name]
        if node.kind in ("scores", "softmax"):
            return np.ones((self._graph.shape(node).num_heads, self._tokens.num_tokens), bool)
        if node.name in end_names(self._graph.config):
            return self._with_logits
        return np.ones(self._tokens.num_tokens, bool)

    def _inputs(self, node: Node, need: Mask) -> Iterator[tuple[str, Mask]]:
        """Each input of a node, and the rows of it that are needed for the rows `need`."""
        match node.kind:
            case "scores":
                rows: Mask = np.logical_or.reduce(need, axis=0)
                yield node.inputs[0], rows
                yield node.inputs[1], self._visible(rows)
            case "mix":
                yield node.inputs[0], np.broadcast_to(need, (self._graph.shape(node).num_heads, len(need)))
                yield node.inputs[1], self._visible(need)
            case "conv" | "delta_rule":
                for source in node.inputs:
                    yield source, self._visible(need)
            case _:
                for source in node.inputs:
                    yield source, need

    def _visible(self, rows: Mask) -> Mask:
        """[tokens]: the tokens that some token of `rows` may attend to, or whose state may hold something of them."""
        tokens = self._tokens
        last = np.full(int(tokens.sequences.max()) + 1, -1, np.int64)
        np.maximum.at(last, tokens.sequences[rows], tokens.positions[rows])
        visible: Mask = tokens.positions <= last[tokens.sequences]
        return visible
