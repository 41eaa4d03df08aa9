"""Self-attention with grouped KV heads, rotary positions and a paged cache."""

from karat.config import LayerShape
from karat.kv.groups import Keep, Keys, SharedKeys
from karat.layers.linear import ColumnParallelLinear, RowParallelLinear
from karat.layers.merged import QKVParallelLinear
from karat.layers.mixer import Mixer, RopeTables, Rotation
from karat.layers.norm import AllHeadsNorm, RMSNorm, RowLayer, UnitNorm
from karat.layers.place import Place
from karat.layers.shards import Cut, own_groups, own_heads, own_kv_heads, rows_of
from karat.ops.api import Cache, Ops, Step, Tensor


class Attention(Mixer):
    """Attention over x [tokens, hidden], with the heads, the window and the RoPE of `shape`.

    With `qk_norm_eps` each head of q and k is normalised (RMSNorm) before the rotation, or all of them together
    (`norms_all_heads`: `AllHeadsNorm`). Scores are multiplied by `scale`, or else by head_dim^-½, and bounded by a
    `cap`. With `has_sinks` each head has a sink (both: `PagedAttention`). With `gated`
    q_proj has for each head rows of q and then those of a gate, whose sigmoid multiplies what o_proj reads; with
    `gate_proj` the gate has a matrix of its own. `plus_one` is of the norms of q and k; with `q_factor` they have no
    weights, and q is multiplied by that. With `v_norm_eps` each head of v is normalised, without a weight. With
    `k_is_v` there is no v_proj: v is what k_proj gives, before its norm. With `kv_layer` there is neither: K and V are
    those that this earlier layer keeps.
    `heads` and `kv_heads` are this rank's.
    """

    def __init__(
        self,
        place: Place,
        hidden_size: int,
        shape: LayerShape,
        *,
        qkv_bias: bool = False,
        o_bias: bool = False,
        qk_norm_eps: float | None = None,
        norms_all_heads: bool = False,
        scale: float | None = None,
        cap: float | None = None,
        has_sinks: bool = False,
        gated: bool = False,
        gate_proj: bool = False,
        plus_one: bool = False,
        q_factor: float | None = None,
        v_norm_eps: float | None = None,
        k_is_v: bool = False,
        kv_layer: int | None = None,
    ) -> None:
        self.name = place.name
        num_heads, num_kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self._scale, self._cap = head_dim**-0.5 if scale is None else scale, cap
        self.qkv = QKVParallelLinear(
            place,
            hidden_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            bias=qkv_bias,
            rows_per_head=2 * head_dim if gated else head_dim,
            parts="q" if kv_layer is not None else "qk" if k_is_v else "qkv",
        )
        self._gated, self._head_dim = gated, head_dim
        unit, group = place.units[Cut(num_heads * head_dim, head_dim)] // head_dim, place.group
        self.heads = own_heads(num_heads, unit, group)
        self.kv_heads = start, stop = own_kv_heads(num_heads, num_kv_heads, unit, group)
        own = (self.heads,) if group.size > 1 else None
        self.sinks = (place / "sinks").values(num_heads, own) if has_sinks else None
        self._window = shape.window
        own_keys = Keys(stop - start, head_dim, head_dim, shape.window)
        self.keeps: Keep = own_keys if kv_layer is None else SharedKeys(kv_layer)
        rotary_dim = head_dim if shape.rotary_dim is None else shape.rotary_dim
        self.rotations = ()
        if shape.rope is not None:  # of q and of k
            self.rotations = (Rotation(shape.rope, rotary_dim, shape.growth), Rotation(shape.rope, rotary_dim))
        self._groups = own_groups(num_heads, num_kv_heads, unit, group)
        self.gate_proj: ColumnParallelLinear | None = None
        if gate_proj:
            pieces = (rows_of(self.heads, head_dim),) if group.size > 1 else None
            at = place / "gate_proj"
            self.gate_proj = ColumnParallelLinear(at, num_heads * head_dim, hidden_size, bias=False, pieces=pieces)
        self.qk_norm: AllHeadsNorm | None = None
        self.q_norm: RowLayer | None = None
        self.k_norm: RowLayer | None = None
        if qk_norm_eps is not None and norms_all_heads:
            self.qk_norm = AllHeadsNorm(place, shape, qk_norm_eps)
        elif qk_norm_eps is not None and q_factor is not None:
            self.q_norm, self.k_norm = (
                UnitNorm(f"{self.name}.{part}_normed", head_dim, qk_norm_eps, factor)
                for part, factor in (("q", q_factor), ("k", 1.0))
            )
        elif qk_norm_eps is not None:
            self.q_norm, self.k_norm = (
                None
                if part == "k" and kv_layer is not None
                else RMSNorm(place / f"{part}_norm", head_dim, qk_norm_eps, plus_one=plus_one)
                for part in ("q", "k")
            )
        self.v_norm = None if v_norm_eps is None else UnitNorm(f"{place.name}.v_norm", head_dim, v_norm_eps)
        self.o_proj = RowParallelLinear(
            place / "o_proj", hidden_size, num_heads * head_dim, bias=o_bias, whole=head_dim
        )
        self.cuts = self.o_proj.cuts

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        q, *kept = self.qkv(ops, x)
        gate = None if self.gate_proj is None else self.gate_proj(ops, x)
        if self._gated:
            num_heads = self.heads[1] - self.heads[0]
            shapes = ((num_heads, self._head_dim), (num_heads * self._head_dim,))
            q, gate = ops.split(q, shapes, num_heads, names=(f"{self.name}.q", f"{self.name}.gate"))
        q = q if self.q_norm is None else self.q_norm(ops, q)
        if kept:
            k, v = kept[0], kept[-1]
            if self.qk_norm is not None:
                q, k = self.qk_norm(ops, q, k)
            k = k if self.k_norm is None else self.k_norm(ops, k)
            v = v if self.v_norm is None else self.v_norm(ops, v)
        if self.rotations:
            q = ops.rope(q, ropes[self.rotations[0]], step, name=f"{self.name}.q_rope")
        if self.rotations and kept:
            k = ops.rope(k, ropes[self.rotations[1]], step, name=f"{self.name}.k_rope")
        if kept:
            ops.kv_write(k, v, cache, step)
        out = ops.paged_attention(
            q,
            cache,
            step,
            scale=self._scale,
            window=self._window,
            name=f"{self.name}.attention",
            groups=self._groups,
            sinks=self.sinks,
            cap=self._cap,
        )
        out = out if gate is None else ops.sigmoid_mul(out, gate, name=f"{self.name}.gated")
        return self.o_proj(ops, out)
