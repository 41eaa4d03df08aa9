"""A Qwen2 decoder for training: plain torch, Hugging Face weight names, one full causal forward, no cache.

Kept apart from the engine on purpose: the engine must not import torch, and training needs gradients.
`tests/training/test_model.py` shows that it computes what transformers' Qwen2ForCausalLM computes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from training.strangers import Strangers


@dataclass(frozen=True)
class ModelConfig:
    """The shape of the model; field names are Hugging Face's. Embeddings are always tied."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `config.json` of a Hugging Face folder (Qwen2, tied, full attention, default RoPE); anything else
        raises.
        """
        raw = json.loads((folder / "config.json").read_text())
        rope = raw.get("rope_parameters") or {"rope_theta": raw["rope_theta"], "rope_type": "default"}
        expected = {
            "model_type": "qwen2",
            "tie_word_embeddings": True,
            "hidden_act": "silu",
            "use_sliding_window": False,
        }
        for key, value in expected.items():
            if raw.get(key) != value:
                raise ValueError(f"{folder}/config.json: {key} is {raw.get(key)!r}; training supports only {value!r}")
        if rope["rope_type"] != "default":
            raise ValueError(f"{folder}/config.json: rope_type {rope['rope_type']!r}; training supports only 'default'")
        names = [name for name in cls.__dataclass_fields__ if name != "rope_theta"]
        return cls(rope_theta=rope["rope_theta"], **{name: raw[name] for name in names})


def rope_tables(config: ModelConfig, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine, float32 [length, head_dim], in Hugging Face's half-split layout."""
    half = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32)
    angles = torch.outer(torch.arange(length, device=device).float(), config.rope_theta ** (-half / config.head_dim))
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, length, head_dim]; tables [length, head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * self.head_dim)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * self.head_dim)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * self.head_dim)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        bias = torch.cat((self.q_proj.bias, self.k_proj.bias, self.v_proj.bias))
        qkv = F.linear(x, weight, bias).view(batch, length, -1, self.head_dim).transpose(1, 2)
        num_kv = self.k_proj.out_features // self.head_dim
        q, k, v = qkv.split([qkv.shape[1] - 2 * num_kv, num_kv, num_kv], dim=1)
        groups = q.shape[1] // num_kv
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, torch.cat((self.gate_proj.weight, self.up_proj.weight))).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """`model.*` of a Hugging Face checkpoint: embedding, layers, final norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, token_ids: Tensor, table: Tensor | None = None) -> Tensor:
        """token_ids [batch, length] -> hidden states, float32 [batch, length, hidden]. `table` [at least vocab, hidden]
        is read instead of the embedding.
        """
        cos, sin = rope_tables(self.config, token_ids.shape[1], token_ids.device)
        x = F.embedding(token_ids, self.embed_tokens.weight if table is None else table)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class StoryModel(nn.Module):
    """Qwen2 with tied embeddings; its state dict has the names of a tied Hugging Face checkpoint."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def logits(self, token_ids: Tensor) -> Tensor:
        """token_ids [batch, length] -> logits [batch, length, vocab]."""
        return F.linear(self.model(token_ids), self.model.embed_tokens.weight)

    def loss(
        self,
        token_ids: Tensor,
        targets: Tensor,
        weights: Tensor,
        strangers: Strangers | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """Weighted sum of cross entropies in nats; targets and weights [batch, length], targets already shifted and
        -100 where nothing is to be learned. With `strangers`, ids from the vocabulary's end on are theirs, and
        `embeddings` [COUNT, hidden] what they are now.
        """
        table, targets, weights = self.model.embed_tokens.weight, targets.flatten(), weights.flatten()
        if embeddings is not None:
            table = torch.cat((table, embeddings))
        logits = F.linear(self.model(token_ids, table).flatten(0, 1), table).float()  # [batch * length, table]
        if strangers is not None:
            logits = strangers.masked(logits, targets, weights)
        return (F.cross_entropy(logits, targets, ignore_index=-100, reduction="none") * weights).sum()

    @classmethod
    def from_folder(cls, folder: Path) -> StoryModel:
        """Load a Hugging Face folder in float32; missing or unexpected tensors raise."""
        model = cls(ModelConfig.from_folder(folder))
        weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
        if "lm_head.weight" in weights and torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"]):
            del weights["lm_head.weight"]
        model.load_state_dict(weights, strict=True)
        return model
