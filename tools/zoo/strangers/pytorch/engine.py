"""Qwen2 and Llama in PyTorch: tensor-parallel ranks in lockstep, a contiguous cache, batches padded on the left.

A batch is a matrix of ids, [sequences, columns]; a shorter prompt has padding before it. Prefill takes some columns at
a time, decode one. The cache has a slot for each column of each sequence, padding included. A bug is a subclass of
Engine that overrides one of its methods.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from tools.zoo.strangers.recorder import Recorder, write_trace

MASKED = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Setting:
    ranks: int = 1
    chunk: int = 4  # columns of a prefill step
    prompts: tuple[int, ...] = (11, 7)
    decode: int = 4
    kv_dtype: str = "float32"
    all_logits: bool = True
    states: tuple[str, ...] = ()  # what else the trace states
    kind: str = "full"


@dataclass
class Run:
    setting: Setting
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    logit_rows: list[int] = field(default_factory=list)
    generated: dict[int, list[int]] = field(default_factory=dict)  # what was fed
    greatest: dict[int, list[int]] = field(default_factory=dict)  # the argmax of all logits

    def write(self, path: Path) -> None:
        info: dict[str, Any] = {
            "token_ids": self.ids,
            "dtype": "float32",
            "kv_dtype": self.setting.kv_dtype,
            "activations": "none",
            "sequences": self.sequences,
            "steps": self.steps,
            "ranks": self.setting.ranks,
            "executor": "plain PyTorch",
        }
        if not self.setting.all_logits:
            names = ["lm_head"] if self.setting.ranks == 1 else [f"lm_head@{r}" for r in range(self.setting.ranks)]
            info["rows"] = dict.fromkeys(names, self.logit_rows)
        if "positions" in self.setting.states:
            info["positions"] = self.positions
        if "generated" in self.setting.states:
            info |= {"generated": self.generated[0], "sampling": {"temperature": 0}}
        write_trace(path, self.arrays, **info)


@dataclass(frozen=True)
class Step:
    """Some columns of the batch."""

    number: int
    first: int  # column
    ids: Tensor  # [sequences, columns]
    pads: Tensor  # [sequences]: columns of padding before each
    prefill: bool

    @property
    def end(self) -> int:
        return self.first + self.ids.shape[1]

    @property
    def columns(self) -> Tensor:
        return torch.arange(self.first, self.end)

    @property
    def real(self) -> Tensor:
        """[sequences, columns]: whether it is no padding."""
        return self.columns >= self.pads[:, None]


class Engine:
    def __init__(self, folder: Path, setting: Setting) -> None:
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.file = load_file(folder / "model.safetensors")
        self.setting, self.size = setting, setting.ranks
        self.layers: int = self.config["num_hidden_layers"]
        self.heads: int = self.config["num_attention_heads"]
        self.kv_heads: int = self.config["num_key_value_heads"]
        self.dim: int = self.config["hidden_size"] // self.heads
        self.recorders = [Recorder(setting.kind) for _ in range(self.size)]
        self.weights = [self.load(rank) for rank in range(self.size)]

    # Weights.

    def load(self, rank: int) -> dict[str, Tensor | None]:
        """All that a rank holds. q, k and v are one matrix, so are gate and up."""
        held: dict[str, Tensor | None] = {
            "model.embed_tokens": self.rows("model.embed_tokens.weight", rank),
            "lm_head": self.rows(self.head_name(), rank),
            "model.norm": self.tensor("model.norm.weight", rank),
        }
        for i in range(self.layers):
            at = f"model.layers.{i}"
            for kind in ("weight", "bias"):
                bias = kind == "bias"
                held[f"{at}.self_attn.qkv.{kind}"] = self.qkv_part(f"{at}.self_attn", kind, rank)
                held[f"{at}.mlp.gate_up.{kind}"] = self.gate_up_part(f"{at}.mlp", kind, rank)
                for name in (f"{at}.self_attn.o_proj", f"{at}.mlp.down_proj"):
                    whole = f"{name}.{kind}"
                    held[whole] = self.row_bias(whole, rank) if bias else self.columns(whole, rank)
            for norm in ("input_layernorm", "post_attention_layernorm"):
                held[f"{at}.{norm}"] = self.tensor(f"{at}.{norm}.weight", rank)
        return held

    def tensor(self, name: str, rank: int) -> Tensor:
        return self.file[name]

    def slot(self, name: str, rank: int) -> int:
        """Which part of a tensor a rank takes."""
        return rank

    def rows(self, name: str, rank: int) -> Tensor:
        return self.tensor(name, rank).chunk(self.size)[self.slot(name, rank)]

    def columns(self, name: str, rank: int) -> Tensor:
        return self.tensor(name, rank).chunk(self.size, dim=1)[self.slot(name, rank)]

    def row_bias(self, name: str, rank: int) -> Tensor | None:
        """Of a matrix that is cut along its columns: it is added once."""
        return self.tensor(name, rank) if name in self.file and rank == 0 else None

    def head_name(self) -> str:
        return "model.embed_tokens.weight" if self.config["tie_word_embeddings"] else "lm_head.weight"

    def kv_heads_of(self, rank: int) -> list[int]:
        """The KV heads that a rank's query heads read."""
        share = self.heads // self.kv_heads
        mine = self.heads // self.size
        return sorted({head // share for head in range(rank * mine, (rank + 1) * mine)})

    def kv_rows(self, name: str, rank: int) -> Tensor:
        of_heads = self.tensor(name, rank).unflatten(0, (self.kv_heads, self.dim))
        return of_heads[self.kv_heads_of(rank)].flatten(0, 1)

    def qkv_part(self, at: str, kind: str, rank: int) -> Tensor | None:
        if f"{at}.q_proj.{kind}" not in self.file:
            return None
        q = self.rows(f"{at}.q_proj.{kind}", rank)
        return torch.cat([q, *(self.kv_rows(f"{at}.{x}_proj.{kind}", rank) for x in "kv")])

    def gate_up_part(self, at: str, kind: str, rank: int) -> Tensor | None:
        if f"{at}.gate_proj.{kind}" not in self.file:
            return None
        return torch.cat([self.rows(f"{at}.{x}_proj.{kind}", rank) for x in ("gate", "up")])

    # Between ranks.

    def reduce(self, parts: list[Tensor], name: str, step: Step) -> list[Tensor]:
        whole = torch.stack(parts).sum(0)
        return [whole] * self.size

    def gather(self, parts: list[Tensor]) -> list[Tensor]:
        return [torch.cat(parts, -1)] * self.size

    # Ops. `name` is the trace's name of the result.

    def embed(self, step: Step, rank: int) -> Tensor:
        table = self.weights[rank]["model.embed_tokens"]
        assert table is not None
        local = step.ids - rank * len(table)
        mine = (local >= 0) & (local < len(table))
        return table[local.clamp(0, len(table) - 1)] * mine[..., None]

    def eps(self, name: str) -> float:
        return self.config["rms_norm_eps"]

    def norm(self, name: str, x: Tensor, rank: int, step: Step) -> Tensor:
        return self.normalised(name, x) * self.weights[rank][name]

    def normalised(self, name: str, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps(name))

    def linear(self, name: str, x: Tensor, rank: int, step: Step) -> Tensor:
        return functional.linear(x, self.weights[rank][f"{name}.weight"], self.weights[rank][f"{name}.bias"])

    def positions(self, step: Step) -> Tensor:
        return (step.columns - step.pads[:, None]).clamp(min=0)

    def frequencies(self) -> Tensor:
        """Of each pair of a head, in radians a token."""
        theta = self.config["rope_theta"]
        plain = theta ** -(torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)
        return self.scaled(plain).float()

    def scaled(self, plain: Tensor) -> Tensor:
        scaling = self.config.get("rope_scaling")
        if scaling is None:
            return plain
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * plain / (2 * torch.pi)
        smooth = ((turns - low) / (high - low)).clamp(0, 1)
        return plain * (smooth + (1 - smooth) / scaling["factor"])

    def tables(self, step: Step, rank: int) -> tuple[Tensor, Tensor]:
        angles = self.positions(step)[..., None].float() * self.frequencies()
        return angles.cos()[:, :, None], angles.sin()[:, :, None]

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        one, two = x.chunk(2, -1)
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    def rope(self, name: str, x: Tensor, step: Step, rank: int) -> Tensor:
        return self.turn(x, *self.tables(step, rank))

    def qkv(self, at: str, x: Tensor, rank: int, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """Each [sequences, columns, heads, dim]."""
        heads = self.linear(f"{at}.qkv", x, rank, step).unflatten(-1, (-1, self.dim))
        mine = self.heads // self.size
        of_kv = (heads.shape[2] - mine) // 2
        q, k, v = heads.split([mine, of_kv, of_kv], 2)
        return q, k, v

    def store(self, at: str, rank: int, step: Step, k: Tensor, v: Tensor) -> None:
        for cache, x in zip(self.cache[rank][at], (k, v), strict=True):
            cache[:, step.first : step.end] = x.to(cache.dtype)

    def stored(self, at: str, rank: int, step: Step) -> tuple[Tensor, Tensor]:
        k, v = self.cache[rank][at]
        return k[:, : step.end].float(), v[:, : step.end].float()

    def spread(self, x: Tensor, rank: int) -> Tensor:
        """KV heads to query heads: [sequences, heads, keys, dim]."""
        return x.repeat_interleave(self.heads // self.size // x.shape[2], 2).transpose(1, 2)

    def scale(self, step: Step) -> float:
        return self.dim**-0.5

    def mask(self, step: Step) -> Tensor:
        """[sequences, 1, columns, keys]: whether a column sees a key."""
        keys = torch.arange(step.end)
        return ((keys <= step.columns[:, None]) & (keys >= step.pads[:, None, None]))[:, None]

    def scores(self, at: str, q: Tensor, k: Tensor, step: Step, rank: int) -> Tensor:
        return q.transpose(1, 2) @ k.transpose(2, 3) * self.scale(step)

    def masked(self, scores: Tensor, step: Step) -> Tensor:
        return scores.masked_fill(~self.mask(step), MASKED)

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def join(self, x: Tensor) -> Tensor:
        """From [sequences, heads, columns, dim]."""
        return x.transpose(1, 2).flatten(2)

    def attention(self, at: str, x: Tensor, rank: int, step: Step) -> Tensor:
        q, k, v = self.qkv(at, x, rank, step)
        for name, y in (("q_proj", q), ("k_proj", k), ("v_proj", v)):
            self.note(f"{at}.{name}", y, rank, step)
        q, k = self.rope(f"{at}.q_rope", q, step, rank), self.rope(f"{at}.k_rope", k, step, rank)
        self.note(f"{at}.q_rope", q, rank, step)
        self.note(f"{at}.k_rope", k, rank, step)
        self.store(at, rank, step, k, v)
        keys, values = (self.spread(y, rank) for y in self.stored(at, rank, step))
        scores = self.masked(self.scores(at, q, keys, step, rank), step)
        self.note_keys(f"{at}.scores", scores, rank, step, -np.inf)
        weights = self.softmax(scores)
        self.note_keys(f"{at}.weights", weights, rank, step, 0.0)
        joined = self.join(weights @ values)
        self.note(f"{at}.attention", joined, rank, step)
        return self.linear(f"{at}.o_proj", joined, rank, step)

    def activation(self, gate: Tensor) -> Tensor:
        return functional.silu(gate)

    def mlp(self, at: str, x: Tensor, rank: int, step: Step) -> Tensor:
        gate, up = self.linear(f"{at}.gate_up", x, rank, step).chunk(2, -1)
        act = self.activation(gate) * up
        for name, y in (("gate_proj", gate), ("up_proj", up), ("act", act)):
            self.note(f"{at}.{name}", y, rank, step)
        return self.linear(f"{at}.down_proj", act, rank, step)

    def add(self, name: str, x: Tensor, y: Tensor, normed: Tensor, step: Step) -> Tensor:
        """The residual, and what a block gives. `normed`: what the block read."""
        return x + y

    def layer(self, at: str, x: list[Tensor], step: Step) -> list[Tensor]:
        for norm, block, last, result in (
            ("input_layernorm", self.attention, "self_attn.o_proj", f"{at}.attention_residual"),
            ("post_attention_layernorm", self.mlp, "mlp.down_proj", at),
        ):
            normed = [self.norm(f"{at}.{norm}", y, r, step) for r, y in enumerate(x)]
            self.note_all(f"{at}.{norm}", normed, step)
            parts = [block(f"{at}.{last.partition('.')[0]}", y, r, step) for r, y in enumerate(normed)]
            given = self.reduce(parts, f"{at}.{last}", step)
            self.note_all(f"{at}.{last}", given, step)
            x = [self.add(result, *of_rank, step) for of_rank in zip(x, given, normed, strict=True)]
            self.note_all(result, x, step)
        return x

    def last_norm(self, x: list[Tensor], step: Step) -> list[Tensor]:
        normed = [self.norm("model.norm", y, r, step) for r, y in enumerate(x)]
        self.note_all("model.norm", normed, step)
        return normed

    def head(self, x: Tensor, rank: int, step: Step) -> Tensor:
        weight = self.weights[rank]["lm_head"]
        assert weight is not None
        return functional.linear(x, weight)

    def forward(self, step: Step) -> Tensor:
        x = self.reduce([self.embed(step, r) for r in range(self.size)], "model.embed_tokens", step)
        self.note_all("model.embed_tokens", x, step)
        for i in range(self.layers):
            x = self.layer(f"model.layers.{i}", x, step)
        logits = self.gather([self.head(y, r, step) for r, y in enumerate(self.last_norm(x, step))])
        for rank, y in enumerate(logits):
            if self.setting.all_logits:
                self.note("lm_head", y, rank, step)
            elif step.end >= self.prompt_end:
                self.recorders[rank].add("lm_head", y[:, -1].numpy())
        return logits[0]

    # A run.

    def choose(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)

    def run(self, prompts: list[list[int]], forced: dict[int, list[int]] | None = None) -> Run:
        run = Run(self.setting)
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        end = self.prompt_end = int(lengths.max())
        pads = end - lengths
        batch = torch.tensor([[0] * int(pad) + prompt for pad, prompt in zip(pads, prompts, strict=True)])
        kept = len(prompts), end + self.setting.decode
        self.cache = [self.empty_cache(*kept, rank) for rank in range(self.size)]
        first = 0
        while first < end + self.setting.decode - 1:
            width = min(self.setting.chunk, end - first) if first < end else 1
            step = Step(len(run.steps), first, batch[:, first : first + width], pads, first < end)
            self.account(run, step)
            with torch.no_grad():
                last = self.forward(step)[:, -1]
            first = step.end
            if first >= end:
                chosen = self.choose(last)
                for i, best in enumerate(last.argmax(-1).tolist()):
                    run.greatest.setdefault(i, []).append(best)
                    known = forced[i][len(run.greatest[i]) - 1] if forced else int(chosen[i])
                    run.generated.setdefault(i, []).append(known)
                batch = torch.cat([batch, torch.tensor([run.generated[i][-1:] for i in range(len(prompts))])], 1)
        for rank, recorder in enumerate(self.recorders):
            of_rank = "" if self.size == 1 else f"@{rank}"
            run.arrays |= {f"{name}{of_rank}": x for name, x in recorder.arrays().items()}
        return run

    def empty_cache(self, sequences: int, columns: int, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
        shape = sequences, columns, len(self.kv_heads_of(rank)), self.dim
        dtype = getattr(torch, self.setting.kv_dtype)
        names = [f"model.layers.{i}.self_attn" for i in range(self.layers)]
        return {name: (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for name in names}

    def account(self, run: Run, step: Step) -> None:
        run.steps.append(len(run.ids))
        sequence = torch.arange(len(step.ids))[:, None].expand(step.ids.shape)
        run.ids += step.ids[step.real].tolist()
        run.sequences += sequence[step.real].tolist()
        run.positions += self.positions(step)[step.real].tolist()
        if step.end >= self.prompt_end:
            ends = step.real.sum(1).cumsum(0) - 1
            run.logit_rows += (run.steps[-1] + ends).tolist()

    # The trace.

    def note(self, name: str, x: Tensor, rank: int, step: Step) -> None:
        """Rows of all tokens: sequence 0, then 1. Padding is left out."""
        self.recorders[rank].add(name, x[step.real].numpy())

    def note_all(self, name: str, of_ranks: list[Tensor], step: Step) -> None:
        for rank, x in enumerate(of_ranks):
            self.note(name, x, rank, step)

    def note_keys(self, name: str, x: Tensor, rank: int, step: Step, fill: float) -> None:
        """Keys of a sequence, without padding."""
        spans = [y[:, real][..., int(pad) :].numpy() for y, real, pad in zip(x, step.real, step.pads, strict=True)]
        self.recorders[rank].add_keys(name, [y for y in spans if y.shape[1]], fill)
