"""Every enumerable way of the catalogue to compute a layer wrongly, as edits of the graph.

Generators say the bug in full: a wrong theta changes q and k. What a trace cannot tell apart is sorted out later, by
keeping of an edit only the nodes that stand between recorded results.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

from karat.check.catalogue import Variant
from karat.check.effective import Effective
from karat.check.graph import Graph, Node
from karat.check.tokens import CACHE_FAULTS, Tokens
from karat.check.weights import CheckpointWeights
from karat.checkpoint.weights import PLAIN_BYTES
from karat.config import RopeConfig

Params = dict[str, Any]

DEGREES = (2, 4, 8)
_THETAS = (500.0, 1e4, 1e5, 5e5, 1e6, 1e7)
_EPS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3)
_CAPS = (15.0, 20.0, 30.0, 50.0)
_LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
            "mlp.up_proj", "mlp.down_proj")  # fmt: skip


class Layer:
    """The nodes of one layer by role."""

    def __init__(self, graph: Graph, index: int) -> None:
        self.graph = graph
        self.index = index

    def __contains__(self, role: str) -> bool:
        return (self.index, role) in self.graph.by_role

    def node(self, role: str) -> Node:
        return self.graph.by_role[self.index, role]

    def edit(self, roles: Mapping[str, Params]) -> dict[str, Params]:
        """Edits by role as edits by name; roles that the layer does not have are left out."""
        return {self.node(role).name: params for role, params in roles.items() if role in self}

    @property
    def before(self) -> str:
        """The name of the layer's input."""
        return self.node("input_layernorm").inputs[0]


class Enumeration:
    """Variants of one model and one trace's tokens."""

    def __init__(self, graph: Graph, weights: CheckpointWeights, tokens: Tokens) -> None:
        self.graph = graph
        self.weights = weights
        self.tokens = tokens
        self.config = graph.config

    def of_layers(self, layers: Sequence[int]) -> Iterator[Variant]:
        """Each variant with the same edits in all these layers."""
        parts = [list(self.of_layer(layer)) for layer in layers]
        by_key: dict[tuple[str, str], dict[str, Params]] = {}
        for variants in parts:
            for variant in variants:
                by_key.setdefault((variant.bug, variant.detail), {}).update(variant.edits)  # type: ignore[arg-type]
        for (bug, detail), edits in by_key.items():
            yield Variant(bug, detail, edits)

    def of_layer(self, index: int) -> Iterator[Variant]:
        layer = Layer(self.graph, index)
        for generate in (
            self._masks, self._scales, self._heads, self._caches, self._ropes, self._qk_norms, self._norms,
            self._residuals, self._mlp, self._wiring,
        ):  # fmt: skip
            for bug, detail, roles in generate(layer):
                yield Variant(bug, detail, layer.edit(roles))
        for role in _LINEARS:
            for bug, detail, params in self._linears(layer.node(role)):
                yield Variant(bug, f"{role}: {detail}", layer.edit({role: params}))
        yield from self._layer_wide(layer)
        for bug, detail, params in _overflow():
            for role in (
                *_LINEARS,
                "self_attn.scores",
                "mlp.act",
                "layer",
                "attention_residual",
                "self_attn.attention",
            ):
                yield Variant(bug, f"{role}: {detail}", layer.edit({role: params}))

    def of_ends(self) -> Iterator[Variant]:
        """Variants of embedding, final norm and head."""
        hidden = self.config.hidden_size
        embed, norm, head = "model.embed_tokens", "model.norm", "lm_head"
        yield Variant("embed-scale", f"multiplied by sqrt(hidden_size) = {hidden**0.5:.6g}", {
            embed: {"output_factor": hidden**0.5}})  # fmt: skip
        for shift in (-1, 1):
            yield Variant("embed-row", f"row id {shift:+d} is read for id", {embed: {"shift": shift}})
        for bug, detail, params in self._norm(self.graph.nodes[norm]):
            yield Variant(bug, detail, {norm: params})
        for number in sorted({0, self.config.num_layers - 1}):
            for part in ("input_layernorm", "post_attention_layernorm"):
                weight = f"model.layers.{number}.{part}.weight"
                yield Variant("norm-swapped", f"{weight} is used", {norm: {"weight": weight}})
        for bug, detail, params in self._linears(self.graph.nodes[head]):
            yield Variant(bug, detail, {head: params})
        for cap in _CAPS:
            yield Variant("softcap", f"logits capped at {cap:g}", {head: {"soft_cap": cap}})
        for factor in (hidden**-0.5, 1 / hidden):
            yield Variant("logit-scale", f"logits multiplied by {factor:.6g}", {head: {"output_factor": factor}})
        if self.config.tie_word_embeddings:
            yield Variant("tie-ignored", "the head is all zero", {head: {"factor": 0}})
        else:
            yield Variant("tie-wrong", "the embedding is used as head", {head: {"weight": "model.embed_tokens.weight"}})
        for bug, detail, params in _overflow():
            yield Variant(bug, detail, {head: params})
        table = self.graph.nodes[embed].params["weight"]
        for how, bug, detail in self._misreadings(table):
            yield Variant(bug, f"embedding: {detail}", {embed: {"effective": Effective("bits", (table,), (how,))}})
        for how, bug, detail in self._misreadings():
            edits: dict[str, Params] = {embed: {"effective": Effective("bits", (table,), (how,))}}
            for name, node in self.graph.nodes.items():
                if node.kind == "linear":
                    edits[name] = {"effective": Effective("bits", (node.params["weight"],), (how,))}
            yield Variant(bug, f"all weights but the norms': {detail}", edits)

    def _masks(self, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
        s, w = "self_attn.scores", "self_attn.weights"
        yield "mask-nan", "0 × -inf", {s: {"mask": "nan"}}
        for empty in ("nan", "zero", "uniform"):
            yield (
                "mask-off-by-one", f"a token does not see itself (a row of nothing becomes {empty})",
                {s: {"diagonal": -1}, w: {"empty": empty}},
            )  # fmt: skip
        yield "mask-off-by-one", "a token sees the one after it", {s: {"diagonal": 1}}
        yield "mask-missing", "every key of the step is visible", {s: {"causal": False}}
        if self.tokens.num_steps > 1:
            yield "mask-misaligned", "rows count from the start of the step", {s: {"align": "top-left"}}
        window = layer.node(s).params["window"]
        others = {w for w in self.config.layer_windows if w is not None}
        if window is not None:
            yield "mask-window", "the window is ignored", {s: {"window": None}}
            others |= {window - 1, window + 1}
        for other in sorted(others - {window, 0}):
            yield "mask-window", f"a window of {other}", {s: {"window": other}}

    def _scales(self, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
        s = "self_attn.scores"
        d, config = self.config.head_dim, self.config
        yield "scale-missing", "scores are multiplied by 1", {s: {"scale": 1.0}}
        yield "scale-twice", "scores are multiplied by 1 / head_dim", {s: {"scale": 1.0 / d}}
        yield "scale-wrong", "multiplied by sqrt(head_dim)", {s: {"scale": d**0.5}}
        yield "scale-wrong", "hidden_size ** -0.5", {s: {"scale": config.hidden_size**-0.5}}
        if config.hidden_size // config.num_heads != d:
            yield "scale-wrong", "(hidden_size / heads) ** -0.5", {
                s: {"scale": (config.hidden_size / config.num_heads) ** -0.5}}  # fmt: skip
        for cap in _CAPS:
            yield "softcap", f"scores capped at {cap:g}", {s: {"score_cap": cap}}
        for axis, name in ((-2, "queries"), (0, "heads")):
            yield "softmax-axis", f"over {name}", {"self_attn.weights": {"axis": axis}}

    def _heads(self, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
        s, a = "self_attn.scores", "self_attn.attention"
        if 1 < self.config.num_kv_heads < self.config.num_heads:
            tile: Params = {"gqa": "tile"}
            yield "gqa-tile", "K and V", {s: tile, a: tile}
            yield "gqa-tile", "K", {s: tile}
            yield "gqa-tile", "V", {a: tile}
        yield "heads-order", "[tokens, head_dim, heads]", {a: {"head_order": "dim-major"}}
        yield "heads-order", "[heads, tokens, head_dim] flattened as it is", {a: {"head_order": "untransposed"}}
        yield "rope-on-v", "v is turned too", {a: {"rope_v": self.config.rope}}

    def _caches(self, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
        s, a = "self_attn.scores", "self_attn.attention"
        for fault, detail in CACHE_FAULTS.items():
            if self.tokens.num_steps == 1 and not fault.startswith("slot"):
                continue
            found: Params = {"cache": fault}
            yield "kv-stale", detail, {s: found, a: found}
            yield "kv-stale", f"K only: {detail}", {s: found}
            yield "kv-stale", f"V only: {detail}", {a: found}
        if self.tokens.num_steps > 1:
            yield "kv-stale", "a step does not see its own keys", {
                s: {"late_cache_hidden": True}, "self_attn.weights": {"empty": "zero"}}  # fmt: skip

    def _ropes(self, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
        for detail, roles in (("q and k", ("q", "k")), ("q", ("q",)), ("k", ("k",))):
            for bug, what, params in self._rope_params():
                yield bug, f"{what} ({detail})", {f"self_attn.{part}_rope": params for part in roles}

    def _rope_params(self) -> Iterator[tuple[str, str, Params]]:
        rope, d = self.config.rope, self.config.head_dim
        yield "rope-pairing", "neighbours are turned", {"pairing": "interleaved"}
        yield "rope-missing-k", "not turned", {"skip": True}
        yield "rope-twice", "turned twice", {"times": 2}
        yield "rope-sign", "turned backwards", {"direction": -1}
        for shift in (-2, -1, 1, 2):
            yield "rope-position", f"positions shifted by {shift:+d}", {"positions": shift}
        kinds = {"restarted": "positions start anew in each step", "frozen": "every decode step has the same position",
                 "frozen-last": "every decode step has the last position of the prompt"}  # fmt: skip
        if self.tokens.num_steps > 1:
            for kind, detail in kinds.items():
                yield "rope-position", detail, {"positions": kind}
        if not self.tokens.is_single:
            yield "rope-position", "positions go on from one sequence to the next", {"positions": "flat"}
        for detail, config in rope_mistakes(rope):
            yield "rope-theta", detail, {"rope": config}
        for part in (2, 4):
            if d % (2 * part) == 0:
                yield "rope-partial", f"only {d // part} of {d} dimensions", {"rotary_dim": d // part}
                yield "rope-partial", f"only {d // part} of {d} dimensions, frequencies of {d}", {
                    "rotary_dim": d // part, "table_dim": d}  # fmt: skip
        other = self.config.hidden_size // self.config.num_heads
        for size in sorted({other, 2 * d, d // 2} - {d}):
            if size % 2 == 0 and size > 1:
                yield "rope-partial", f"frequencies of head_dim {size}", {
                    "rotary_dim": min(size, d), "table_dim": size}  # fmt: skip

    def _qk_norms(self, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
        if not self.config.qk_norm:
            return
        q, k = "self_attn.q_norm", "self_attn.k_norm"
        for detail, roles in (("q and k", (q, k)), ("q", (q,)), ("k", (k,))):
            yield "qk-norm-missing", f"{detail} not normalised", {role: {"skip": True} for role in roles}
        rope = self.config.rope
        inputs = {part: (layer.node(f"self_attn.{part}_proj").name,) for part in "qk"}
        normed = tuple(layer.node(role).name for role in (q, k))
        edits: dict[str, Params] = {"self_attn.scores": {"inputs": normed}}
        for part, role in (("q", q), ("k", k)):
            edits[role] = {"rope_first": rope}
            edits[f"self_attn.{part}_rope"] = {"inputs": inputs[part]}
        yield "qk-norm-missing", "normalised after RoPE", edits
        late: dict[str, Params] = {}
        for part, role in (("q", q), ("k", k)):
            params = layer.node(role).params
            late[f"self_attn.{part}_rope"] = {
                "inputs": inputs[part], "norm_after": (params["weight"], params["eps"]),
            }  # fmt: skip
        yield "qk-norm-missing", "RoPE's result is normalised", late

    def _norms(self, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
        first, second = "input_layernorm", "post_attention_layernorm"
        for role in (first, second, "self_attn.q_norm", "self_attn.k_norm"):
            if role in layer:
                for bug, detail, params in self._norm(layer.node(role)):
                    if bug != "norm-missing" or ".self_attn." not in layer.node(role).name:  # qk-norm-missing
                        yield bug, f"{role}: {detail}", {role: params}
        names = {role: layer.node(role).params["weight"] for role in (first, second)}
        yield "norm-swapped", "the two norms of the layer are exchanged", {
            first: {"weight": names[second]}, second: {"weight": names[first]}}  # fmt: skip
        for role in (first, second):
            yield "norm-swapped", f"{role} has the weight of model.norm", {role: {"weight": "model.norm.weight"}}
        if self.config.qk_norm:
            q, k = (layer.node(f"self_attn.{part}_norm").params["weight"] for part in "qk")
            yield "norm-swapped", "q_norm and k_norm are exchanged", {
                "self_attn.q_norm": {"weight": k}, "self_attn.k_norm": {"weight": q}}  # fmt: skip
        for role, source in ((first, layer.before), (second, layer.node(second).inputs[0])):
            readers = _LINEARS[:3] if role == first else _LINEARS[4:6]
            yield "norm-missing", f"{role}'s result is not used", {r: {"inputs": (source,)} for r in readers}

    def _norm(self, node: Node) -> Iterator[tuple[str, str, Params]]:
        eps = node.params["eps"]
        yield "norm-missing", "skipped", {"skip": True}
        yield "norm-offset", "1 + weight", {"offset": 1.0}
        yield "norm-weight", "no weight", {"no_weight": True}
        yield "norm-eps-outside", "eps outside the root", {"eps_outside": True}
        for other in _EPS:
            if other != eps:
                yield "norm-eps", f"eps {other:g} instead of {eps:g}", {"eps": other}
        yield from self._other_layers(node)

    def _residuals(self, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
        mid = "attention_residual"
        for role, block in ((mid, "attention"), ("layer", "MLP")):
            yield "residual-missing", f"only the {block}'s output is kept", {role: {"factors": (0, 1)}}
            yield "residual-missing", f"the {block}'s output is dropped", {role: {"factors": (1, 0)}}
            yield "residual-twice", f"the input of the {block} counts twice", {role: {"factors": (2, 1)}}
            yield "residual-twice", f"the {block}'s output counts twice", {role: {"factors": (1, 2)}}
        for role, norm in ((mid, "input_layernorm"), ("layer", "post_attention_layernorm")):
            block_output = layer.node(role).inputs[1]
            yield "residual-missing", f"taken after {norm}", {
                role: {"inputs": (layer.node(norm).name, block_output)}}  # fmt: skip
        yield "residual-missing", "the MLP's is the layer's input", {
            "layer": {"inputs": (layer.before, layer.node("mlp.down_proj").name)}}  # fmt: skip

    def _wiring(self, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
        yield "residual-missing", "the MLP reads the layer's input", {
            "post_attention_layernorm": {"inputs": (layer.before,)}}  # fmt: skip

    def _mlp(self, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
        act, gate, up = "mlp.act", "mlp.gate_proj", "mlp.up_proj"
        yield "gate-up-swapped", "up goes through the activation", {act: {"swapped": True}}
        params = {role: layer.node(role).params for role in (gate, up)}
        yield "gate-up-swapped", "the weights are exchanged", {
            gate: {key: params[up][key] for key in ("weight", "bias")},
            up: {key: params[gate][key] for key in ("weight", "bias")},
        }  # fmt: skip
        for name in ("gelu (erf)", "gelu (tanh)", "gelu (sigmoid)", "relu", "sigmoid", "tanh", "nothing"):
            yield "activation", name, {act: {"activation": name}}
        yield "activation", "up is not multiplied", {act: {"no_up": True}}

    def _other_layers(self, node: Node) -> Iterator[tuple[str, str, Params]]:
        """The same part of the other layers, with its bias if it has one."""
        for other in range(self.config.num_layers if node.layer is not None else 0):
            if other != node.layer:
                params = self.graph.by_role[other, node.role].params
                taken = {key: params[key] for key in ("weight", "bias") if params.get(key)}
                yield "layer-prefix", f"the weight of layer {other}", taken

    def _linears(self, node: Node) -> Iterator[tuple[str, str, Params]]:
        weight, role = node.params["weight"], node.role
        out_features, in_features = self.weights.shape(weight)
        if node.params.get("bias"):
            yield "bias-missing", "no bias", {"bias_factor": 0}
            for n in (2, 3, *DEGREES[1:]):
                yield "bias-times-tp", f"the bias is added {n} times", {"bias_factor": n}
        for how in ("as columns", "as rows"):
            yield "transposed", f"read {how}", {"effective": Effective("transposed", (weight,), (how,))}
        yield from self._other_layers(node)
        for n in DEGREES:
            if in_features % n == 0 and out_features % n == 0:
                kind = "row" if role.endswith(("o_proj", "down_proj")) else "column"
                yield "shard-dim", f"over {n} ranks", {"effective": Effective(f"{kind}-shards", (weight,), (n,))}
            if role.endswith(("o_proj", "down_proj")):
                if in_features % n == 0:
                    for rank in range(n):
                        yield "reduce-missing", f"only the part of rank {rank} of {n}", {"input_part": (rank, n)}
                bias = " (bias included)" if node.params.get("bias") else ""
                yield "reduce-missing", f"added up {n} times{bias}", {"output_factor": float(n)}
                if bias:
                    yield "reduce-missing", f"added up {n} times", {"output_factor": float(n), "bias_factor": 1 / n}
        for how, bug, detail in self._misreadings(weight):
            yield bug, detail, {"effective": Effective("bits", (weight,), (how,))}
        if role in ("self_attn.q_proj", "self_attn.k_proj"):
            for direction in ("to-pairs", "from-pairs"):
                params: Params = {"effective": Effective("permuted", (weight,), (self.config.head_dim, direction))}
                yield "gguf-permute", direction, params
                if bias_name := node.params.get("bias"):
                    both = {"effective_bias": Effective("permuted", (bias_name,), (self.config.head_dim, direction))}
                    yield "gguf-permute", f"{direction}, the bias too", {**params, **both}

    def _misreadings(self, weight: str | None = None) -> Iterator[tuple[str, str, str]]:
        """(how, bug, detail) of each way to read the bytes wrongly."""
        stored = self.weights.stored[weight or self.graph.nodes["lm_head"].params["weight"]].dtype
        if stored not in PLAIN_BYTES:
            return
        if stored == "F32":
            yield "truncated", "dtype-trunc", "cut to bfloat16"
            yield "rounded bfloat16", "dtype-narrow", "rounded to bfloat16"
            yield "rounded float16", "dtype-narrow", "rounded to float16"
        else:
            yield "misread", "dtype-misread", f"{stored} read as {'bfloat16' if stored == 'F16' else 'float16'}"
        yield "swapped", "byte-order", "big-endian"

    def _layer_wide(self, layer: Layer) -> Iterator[Variant]:
        """What a loader does to several tensors of a layer at once."""
        names = ("q", "k", "v")
        nodes = [layer.node(f"self_attn.{part}_proj") for part in names]
        if nodes[0].params.get("bias"):
            yield Variant("bias-missing", "q, k and v", {node.name: {"bias_factor": 0} for node in nodes})
            for part in (("q", "k"), ("k", "v"), ("q", "v")):
                edits: dict[str, Params] = {
                    node.name: {"bias_factor": 0} for name, node in zip(names, nodes, strict=True) if name in part
                }
                yield Variant("bias-missing", " and ".join(part), edits)
        reduced = [layer.node(role) for role in ("self_attn.o_proj", "mlp.down_proj")]
        if all(node.params.get("bias") for node in reduced):
            for n in DEGREES:
                yield Variant("bias-times-tp", f"o_proj and down_proj, {n} times", {
                    node.name: {"bias_factor": n} for node in reduced})  # fmt: skip
            yield Variant("bias-missing", "o_proj and down_proj", {node.name: {"bias_factor": 0} for node in reduced})
        weights = tuple(node.params["weight"] for node in nodes)
        biases = tuple(node.params["bias"] for node in nodes if node.params.get("bias"))
        for stored, cut in _cuts():
            edits = {}
            for index, node in enumerate(nodes):
                args = (stored, cut, index, self.config.head_dim)
                edits[node.name] = {"effective": Effective("fused", weights, args)}
                if biases:
                    edits[node.name]["effective_bias"] = Effective("fused", biases, args)
            yield Variant("qkv-split", f"stacked as {_named(stored)}, cut as {_named(cut)}", edits)
        for direction in ("to-pairs", "from-pairs"):
            edits = {}
            for node in nodes[:2]:
                how = (self.config.head_dim, direction)
                edits[node.name] = {"effective": Effective("permuted", (node.params["weight"],), how)}
                if bias_name := node.params.get("bias"):
                    edits[node.name]["effective_bias"] = Effective("permuted", (bias_name,), how)
            yield Variant("gguf-permute", f"q and k, {direction}", edits)
        for other in range(self.config.num_layers):
            if other != layer.index:
                edits = {}
                for role in (*_LINEARS, "input_layernorm", "post_attention_layernorm", "self_attn.q_norm",
                             "self_attn.k_norm"):  # fmt: skip
                    if role in layer:
                        params = self.graph.by_role[other, role].params
                        edits[layer.node(role).name] = {k: params[k] for k in ("weight", "bias") if params.get(k)}
                yield Variant("layer-prefix", f"all weights of layer {other}", edits)
        yield from self._siblings(layer)

    def _siblings(self, layer: Layer) -> Iterator[Variant]:
        """Weights of the same shape within the layer."""
        for role in _LINEARS:
            node = layer.node(role)
            for other_role in _LINEARS:
                other = layer.node(other_role)
                same = self.weights.shape(other.params["weight"]) == self.weights.shape(node.params["weight"])
                known = {"mlp.gate_proj", "mlp.up_proj"}, {"self_attn.k_proj", "self_attn.v_proj"}
                if role == other_role or not same or {role, other_role} in known:  # they have names of their own
                    continue
                params: Params = {"weight": other.params["weight"]}
                yield Variant("weight-swapped", f"{role} has the weight of {other_role}", {node.name: params})
                both = {key: other.params.get(key) for key in ("weight", "bias")}
                if both["bias"] is not None and node.params.get("bias"):
                    yield Variant("weight-swapped", f"{role} has weight and bias of {other_role}", {node.name: both})


def rope_mistakes(rope: RopeConfig) -> Iterator[tuple[str, RopeConfig]]:
    """Configurations that an engine takes for this one."""
    for theta in _THETAS:
        if theta != rope.theta:
            yield f"theta {theta:g} instead of {rope.theta:g}", replace(rope, theta=theta)
    if rope.rope_type != "default":
        yield f"{rope.rope_type} scaling ignored", RopeConfig(theta=rope.theta)
        if rope.rope_type != "linear":
            yield (
                "linear scaling instead of " + rope.rope_type,
                RopeConfig(theta=rope.theta, rope_type="linear", factor=rope.factor),
            )
    if rope.attention_factor != 1:
        yield "attention_factor ignored", replace(rope, attention_factor=1.0)
        yield "attention_factor without scaling", RopeConfig(theta=rope.theta, attention_factor=rope.attention_factor)
    if rope.rope_type == "yarn":
        yield "truncate the other way", replace(rope, truncate=not rope.truncate)
    else:
        for factor in (2.0, 4.0, 8.0):
            if rope.rope_type == "default":
                yield f"linear scaling by {factor:g} added", replace(rope, rope_type="linear", factor=factor)


def _overflow() -> Iterator[tuple[str, str, Params]]:
    yield "overflow-fp16", "the result is stored as float16", {"fp16_output": True}
    yield "overflow-fp16", "the sum overflows before the bias", {"fp16_sum": True}


def _cuts() -> Iterator[tuple[Any, Any]]:
    plain = (0, 1, 2)
    for order in permutations(plain):
        if order != plain:
            yield plain, order
    yield plain, "groups"
    yield "groups", plain


def _named(order: Any) -> str:
    return "groups of heads" if order == "groups" else ", ".join("qkv"[i] for i in order)
