"""Bugs of some ranks, and of what passes between them."""

import torch
from torch import Tensor

from tools.zoo.strangers.pytorch.bug import plant
from tools.zoo.strangers.pytorch.engine import Engine, Step

QKV = "q_proj k_proj v_proj"
SCORES = "scores weights"


@plant("part", "qwen2", "rank1-k-bias", "bias-missing", "k_proj", "rank 1 adds no bias to k", ranks=2)
class RankKBias(Engine):
    """The k bias is loaded on rank 0 only."""

    def qkv_part(self, at: str, kind: str, rank: int) -> Tensor | None:
        part = super().qkv_part(at, kind, rank)
        if part is not None and kind == "bias" and rank == 1:
            mine, dims = self.heads // self.size * self.dim, len(self.kv_heads_of(rank)) * self.dim
            part[mine : mine + dims] = 0
        return part


@plant(
    "part",
    "llama",
    "rank1-gate-up",
    "gate-up-swapped",
    "gate_proj up_proj act",
    "gate and up are exchanged on rank 1",
    near="gate-up-split",
    ranks=2,
)
class RankGateUp(Engine):
    """Rank 1 stacks up before gate."""

    def gate_up_part(self, at: str, kind: str, rank: int) -> Tensor | None:
        part = super().gate_up_part(at, kind, rank)
        return part.roll(len(part) // 2, 0) if part is not None and rank == 1 else part


@plant(
    "part", "llama", "rank2-down-slice", "shard-order", "down_proj", "rank 2 has rank 3's slice of down_proj", ranks=4
)
class RankDown(Engine):
    """Rank 2 takes the part after its own of down_proj in layer 1."""

    def slot(self, name: str, rank: int) -> int:
        return 3 if "layers.1.mlp.down_proj" in name and rank == 2 else rank


@plant(
    "part", "llama", "o-slices-swapped", "shard-order", "o_proj", "two ranks have each other's slice of o_proj", ranks=2
)
class SwappedO(Engine):
    """Slices of o_proj are counted from the end."""

    def slot(self, name: str, rank: int) -> int:
        return self.size - 1 - rank if "o_proj" in name else rank


@plant(
    "part",
    "qwen2",
    "qkv-naive-cut",
    "qkv-split",
    QKV,
    "the stacked q, k, v are cut evenly",
    near="shard-order",
    ranks=2,
)
class NaiveQkv(Engine):
    """q, k and v are stacked whole and then cut in two."""

    def qkv_part(self, at: str, kind: str, rank: int) -> Tensor | None:
        if f"{at}.q_proj.{kind}" not in self.file:
            return None
        return torch.cat([self.file[f"{at}.{x}_proj.{kind}"] for x in "qkv"]).chunk(self.size)[rank]


@plant(
    "part",
    "llama",
    "gate-up-naive-cut",
    "gate-up-split",
    "gate_proj up_proj act",
    "stacked gate and up are cut evenly",
    near="shard-order gate-up-swapped",
    ranks=2,
)
class NaiveGateUp(Engine):
    """gate and up are stacked whole and then cut in two."""

    def gate_up_part(self, at: str, kind: str, rank: int) -> Tensor | None:
        if f"{at}.gate_proj.{kind}" not in self.file:
            return None
        return torch.cat([self.file[f"{at}.{x}_proj.{kind}"] for x in ("gate", "up")]).chunk(self.size)[rank]


@plant(
    "part",
    "llama",
    "heads-joined-in-rank",
    "heads-order",
    "attention",
    "each rank joins its heads in the wrong order",
    ranks=2,
)
class JoinedInRank(Engine):
    """The output is [heads, columns, dim] and is reshaped without a transposition of heads and dims."""

    def join(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(2)


@plant(
    "part",
    "llama",
    "head-shards-swapped",
    "shard-order",
    "lm_head",
    "ranks have each other's rows of the head",
    near="head-other",
    ranks=2,
)
class HeadShards(Engine):
    """Logits are gathered in the reverse order of ranks."""

    def gather(self, parts: list[Tensor]) -> list[Tensor]:
        return super().gather(parts[::-1])


@plant(
    "part",
    "qwen2",
    "kv-heads-modulo",
    "gqa-tile shard-order",
    "k_proj v_proj",
    "ranks 1 and 2 hold the wrong KV head",
    near="qkv-split",
    ranks=4,
)
class KvModulo(Engine):
    """With more ranks than KV heads, rank r takes KV head r % heads in place of r // copies."""

    def kv_heads_of(self, rank: int) -> list[int]:
        return [rank % self.kv_heads]


@plant(
    "part",
    "llama",
    "o-not-reduced-layer1",
    "reduce-missing",
    "o_proj",
    "o_proj of layer 1 is not reduced",
    ranks=2,
)
class NotReduced(Engine):
    """Layer 1 leaves out the all-reduce after attention."""

    def reduce(self, parts: list[Tensor], name: str, step: Step) -> list[Tensor]:
        return parts if name == "model.layers.1.self_attn.o_proj" else super().reduce(parts, name, step)


@plant(
    "part",
    "llama",
    "down-not-reduced-decode",
    "reduce-missing",
    "down_proj",
    "in decode steps down_proj is not reduced",
    ranks=2,
)
class NotReducedInDecode(Engine):
    """The decode path was captured without the all-reduce of the MLP."""

    def reduce(self, parts: list[Tensor], name: str, step: Step) -> list[Tensor]:
        lost = not step.prefill and name.endswith("down_proj")
        return parts if lost else super().reduce(parts, name, step)


@plant("port", "llama", "reduce-mean", "reduce-mean", "o_proj down_proj", "sums are divided by the ranks", ranks=4)
class ReduceMean(Engine):
    """all_reduce averages, but for the embedding."""

    def reduce(self, parts: list[Tensor], name: str, step: Step) -> list[Tensor]:
        whole = super().reduce(parts, name, step)
        return whole if "embed" in name else [x / self.size for x in whole]


@plant(
    "part",
    "llama",
    "reduced-twice",
    "reduce-missing",
    "o_proj",
    "attention's sum is reduced twice",
    near="residual-twice multiplier reduce-mean",
    ranks=2,
)
class ReducedTwice(Engine):
    """The block reduces, and so does its caller."""

    def reduce(self, parts: list[Tensor], name: str, step: Step) -> list[Tensor]:
        whole = super().reduce(parts, name, step)
        return super().reduce(whole, name, step) if name.endswith("o_proj") else whole


@plant(
    "port", "llama-bias", "o-bias-each-rank", "bias-times-tp", "o_proj down_proj", "each rank adds the bias", ranks=2
)
class BiasEachRank(Engine):
    """Biases of row-parallel layers are added on every rank before the reduction."""

    def row_bias(self, name: str, rank: int) -> Tensor | None:
        return self.tensor(name, rank) if name in self.file else None


@plant(
    "part",
    "llama",
    "rank1-norm-ones",
    "norm-weight",
    "input_layernorm",
    "rank 1 has no weight of the norms before attention",
    ranks=2,
)
class RankNormOnes(Engine):
    """Rank 1 did not load the weights of input_layernorm; they are ones."""

    def tensor(self, name: str, rank: int) -> Tensor:
        x = super().tensor(name, rank)
        return torch.ones_like(x) if rank == 1 and "input_layernorm" in name else x


@plant(
    "part", "llama", "rank1-o-of-layer0", "layer-prefix", "o_proj", "rank 1 has layer 0's o_proj in layer 1", ranks=2
)
class RankOtherLayer(Engine):
    """Rank 1 reads o_proj of layer 0 for layer 1."""

    def tensor(self, name: str, rank: int) -> Tensor:
        return super().tensor(
            name.replace("layers.1.self_attn.o_proj", "layers.0.self_attn.o_proj") if rank else name, rank
        )


@plant(
    "part",
    "qwen2",
    "rank1-positions-late",
    "rope-position",
    "q_rope k_rope",
    "in decode steps rank 1 still has the last step's positions",
    ranks=2,
)
class RankLatePositions(Engine):
    """Rank 1's buffer of positions is updated after the step in decode."""

    def tables(self, step: Step, rank: int) -> tuple[Tensor, Tensor]:
        late = int(rank == 1 and not step.prefill)
        angles = (self.positions(step) - late)[..., None].float() * self.frequencies()
        return angles.cos()[:, :, None], angles.sin()[:, :, None]


@plant(
    "part",
    "llama",
    "embed-edge-zero",
    "embed-row",
    "embed_tokens",
    "the last row of rank 0's part of the embedding is zero",
    ranks=2,
)
class EmbedEdge(Engine):
    """The range of a rank's ids ends one too low."""

    def embed(self, step: Step, rank: int) -> Tensor:
        table = self.weights[rank]["model.embed_tokens"]
        assert table is not None
        local = step.ids - rank * len(table)
        mine = (local >= 0) & (local < len(table) - 1)
        return table[local.clamp(0, len(table) - 1)] * mine[..., None]


@plant(
    "part",
    "llama",
    "embed-foreign-unmasked",
    "embed-row",
    "embed_tokens",
    "tokens of the other rank add a row that is not theirs",
    near="reduce-missing",
    ranks=2,
)
class EmbedUnmasked(Engine):
    """Rows of ids that a rank does not have are not zeroed before the reduction."""

    def embed(self, step: Step, rank: int) -> Tensor:
        table = self.weights[rank]["model.embed_tokens"]
        assert table is not None
        return table[(step.ids - rank * len(table)).clamp(0, len(table) - 1)]


@plant(
    "part",
    "llama",
    "rank3-scale-of-whole",
    "scale-wrong",
    SCORES,
    "rank 3 scales scores by another head_dim",
    ranks=4,
)
class RankScale(Engine):
    """Rank 3 takes the head_dim of another config: its scale is too large by the root of two."""

    def scores(self, at: str, q: Tensor, k: Tensor, step: Step, rank: int) -> Tensor:
        return super().scores(at, q, k, step, rank) * (2**0.5 if rank == 3 else 1)


@plant("port", "llama", "o-cut-rows", "shard-dim", "o_proj", "o_proj is cut along its rows", near="transposed", ranks=2)
class CutRows(Engine):
    """Rank r takes rows in place of columns of o_proj, turned to fit."""

    def columns(self, name: str, rank: int) -> Tensor:
        return self.rows(name, rank).T.contiguous() if "o_proj" in name else super().columns(name, rank)


@plant(
    "part",
    "llama",
    "rank1-v-zero",
    "weight-missing",
    "v_proj",
    "rank 1's v of layer 2 is not loaded: zeros",
    ranks=2,
)
class RankVZero(Engine):
    """Rank 1's rows of v in layer 2 are not loaded and stay zero."""

    def kv_rows(self, name: str, rank: int) -> Tensor:
        x = super().kv_rows(name, rank)
        return torch.zeros_like(x) if rank == 1 and "layers.2.self_attn.v_proj" in name else x
