"""Ways to get attention wrong: masks, scales, heads, caches, RoPE, norms of q and k."""

from collections.abc import Iterator
from dataclasses import replace

from karat.check.mistakes.scope import CAPS, Layer, Params, Scope
from karat.check.model.tokens import CACHE_FAULTS
from karat.config import RopeConfig

_THETAS = (500.0, 1e4, 1e5, 5e5, 1e6, 1e7)


def masks(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    s, w = "self_attn.scores", "self_attn.weights"
    yield "mask-nan", "0 × -inf", {s: {"mask": "nan"}}
    for empty in ("nan", "zero", "uniform"):
        yield (
            "mask-off-by-one", f"a token does not see itself (a row of nothing becomes {empty})",
            {s: {"diagonal": -1}, w: {"empty": empty}},
        )  # fmt: skip
    yield (
        "mask-off-by-one",
        "a token does not see itself, unless it would see nothing",
        {s: {"diagonal": -1, "alone": True}},
    )
    yield "mask-off-by-one", "a token sees the one after it", {s: {"diagonal": 1}}
    yield "mask-missing", "every key of the step is visible", {s: {"causal": False}}
    if scope.tokens.num_steps > 1:
        yield "mask-misaligned", "rows count from the start of the step", {s: {"align": "top-left"}}
    window = layer.node(s).params["window"]
    others = {w for w in scope.config.layer_windows if w is not None}
    if window is not None:
        yield "mask-window", "the window is ignored", {s: {"window": None}}
        others |= {window - 1, window + 1}
    for other in sorted(others - {window, 0}):
        yield "mask-window", f"a window of {other}", {s: {"window": other}}


def scales(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    s = "self_attn.scores"
    d, config = scope.config.head_dim, scope.config
    yield "scale-missing", "scores are multiplied by 1", {s: {"scale": 1.0}}
    yield "scale-twice", "scores are multiplied by 1 / head_dim", {s: {"scale": 1.0 / d}}
    yield "scale-wrong", "multiplied by sqrt(head_dim)", {s: {"scale": d**0.5}}
    yield "scale-wrong", "hidden_size ** -0.5", {s: {"scale": config.hidden_size**-0.5}}
    if config.hidden_size // config.num_heads != d:
        yield "scale-wrong", "(hidden_size / heads) ** -0.5", {
            s: {"scale": (config.hidden_size / config.num_heads) ** -0.5}}  # fmt: skip
    for cap in CAPS:
        yield "softcap", f"scores capped at {cap:g}", {s: {"score_cap": cap}}
    for axis, name in ((-2, "queries"), (0, "heads")):
        yield "softmax-axis", f"over {name}", {"self_attn.weights": {"axis": axis}}
        if any(window is not None for window in config.layer_windows):
            yield "softmax-axis", f"over {name}, of the keys in a cache of the window", {
                "self_attn.weights": {"axis": axis, "window_cache": True}}  # fmt: skip


def heads(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    s, a = "self_attn.scores", "self_attn.attention"
    if 1 < scope.config.num_kv_heads < scope.config.num_heads:
        tile: Params = {"gqa": "tile"}
        yield "gqa-tile", "K and V", {s: tile, a: tile}
        yield "gqa-tile", "K", {s: tile}
        yield "gqa-tile", "V", {a: tile}
    yield "heads-order", "[tokens, head_dim, heads]", {a: {"head_order": "dim-major"}}
    yield "heads-order", "[heads, tokens, head_dim] flattened as it is", {a: {"head_order": "untransposed"}}
    yield "rope-on-v", "v is turned too", {a: {"rope_v": scope.config.rope}}


def caches(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    s, a = "self_attn.scores", "self_attn.attention"
    for fault, detail in CACHE_FAULTS.items():
        if scope.tokens.num_steps == 1 and not fault.startswith("slot"):
            continue
        found: Params = {"cache": fault}
        yield "kv-stale", detail, {s: found, a: found}
        yield "kv-stale", f"K only: {detail}", {s: found}
        yield "kv-stale", f"V only: {detail}", {a: found}
    if scope.tokens.num_steps > 1:
        yield "kv-stale", "a step does not see its own keys", {
            s: {"late_cache_hidden": True}, "self_attn.weights": {"empty": "zero"}}  # fmt: skip


def ropes(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    for detail, roles in (("q and k", ("q", "k")), ("q", ("q",)), ("k", ("k",))):
        for bug, what, params in _rope_params(scope):
            yield bug, f"{what} ({detail})", {f"self_attn.{part}_rope": params for part in roles}


def _rope_params(scope: Scope) -> Iterator[tuple[str, str, Params]]:
    rope, d = scope.config.rope, scope.config.head_dim
    yield "rope-pairing", "neighbours are turned", {"pairing": "interleaved"}
    yield "rope-missing-k", "not turned", {"skip": True}
    yield "rope-twice", "turned twice", {"times": 2}
    yield "rope-sign", "turned backwards", {"direction": -1}
    for shift in (-2, -1, 1, 2):
        yield "rope-position", f"positions shifted by {shift:+d}", {"positions": shift}
    kinds = {"restarted": "positions start anew in each step", "frozen": "every decode step has the same position",
             "frozen-last": "every decode step has the last position of the prompt"}  # fmt: skip
    if scope.tokens.num_steps > 1:
        for kind, detail in kinds.items():
            yield "rope-position", detail, {"positions": kind}
    if not scope.tokens.is_single:
        yield "rope-position", "positions go on from one sequence to the next", {"positions": "flat"}
    for detail, config in rope_mistakes(rope):
        yield "rope-theta", detail, {"rope": config}
    for part in (2, 4):
        if d % (2 * part) == 0:
            yield "rope-partial", f"only {d // part} of {d} dimensions", {"rotary_dim": d // part}
            yield "rope-partial", f"only {d // part} of {d} dimensions, frequencies of {d}", {
                "rotary_dim": d // part, "table_dim": d}  # fmt: skip
    other = scope.config.hidden_size // scope.config.num_heads
    for size in sorted({other, 2 * d, d // 2} - {d}):
        if size % 2 == 0 and size > 1:
            yield "rope-partial", f"frequencies of head_dim {size}", {
                "rotary_dim": min(size, d), "table_dim": size}  # fmt: skip


def qk_norms(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    if "self_attn.q_norm" not in layer:
        return
    q, k = "self_attn.q_norm", "self_attn.k_norm"
    for detail, roles in (("q and k", (q, k)), ("q", (q,)), ("k", (k,))):
        yield "qk-norm-missing", f"{detail} not normalised", {role: {"skip": True} for role in roles}
    rope = scope.config.rope
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
