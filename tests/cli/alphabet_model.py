"""A model whose every answer is known: each token has one successor, whatever came before it.

Attention and MLP add nothing, the embedding gives each token a random direction, and the head's row of a token is the
direction of its predecessor. Greedily, and almost surely at temperature 1, a → b → … → z → end; A → … → Z → A goes on
for ever; a line break is followed by a, so that a chat is answered with the alphabet; the end, if ignored, by A.
"""

import json
import string
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 64, 2, 4, 2, 16, 48
CONTEXT_LEN = 20_000
ALPHABET = string.ascii_lowercase
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(folder: Path, *, template: bool = True, **changes: Any) -> Path:
    """Makes the folder; `changes` go into config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab_size = tokenizer.get_vocab_size()
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT_LEN,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    generation = {"temperature": 0.5, "top_p": 0.9, "do_sample": True, "eos_token_id": config["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    tokenizer_config = {"eos_token": "<|im_end|>"} | ({"chat_template": TEMPLATE} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    weights = _weights(tokenizer)
    if config["model_type"] != "qwen2":
        weights = {name: array for name, array in weights.items() if not name.endswith(".bias")}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def _weights(tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    vocab_size = tokenizer.get_vocab_size()
    directions = np.random.default_rng(1).standard_normal((vocab_size, HIDDEN)).astype(np.float32)
    successor = {token_id: (token_id + 1) % vocab_size for token_id in range(vocab_size)}
    chains = [[*ALPHABET, "<|im_end|>"], ["<|im_end|>", *string.ascii_uppercase, "A"], ["Ċ", "a"]]
    for chain in chains:
        ids = [tokenizer.token_to_id(token) for token in chain]
        successor |= dict(pairwise(ids))
    head = np.zeros((vocab_size, HIDDEN), np.float32)
    for token_id, following in successor.items():
        head[following] += directions[token_id]
    weights = {"model.embed_tokens.weight": directions, "lm_head.weight": head}
    weights["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    sizes = {
        "self_attn.q_proj": HEADS * HEAD_DIM,
        "self_attn.k_proj": KV_HEADS * HEAD_DIM,
        "self_attn.v_proj": KV_HEADS * HEAD_DIM,
        "self_attn.o_proj": HIDDEN,
        "mlp.gate_proj": INTERMEDIATE,
        "mlp.up_proj": INTERMEDIATE,
        "mlp.down_proj": HIDDEN,
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
        for part, size in sizes.items():
            inputs = (
                HEADS * HEAD_DIM if part.endswith("o_proj") else INTERMEDIATE if part == "mlp.down_proj" else HIDDEN
            )
            weights[f"{name}.{part}.weight"] = np.zeros((size, inputs), np.float32)
            if part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
                weights[f"{name}.{part}.bias"] = np.zeros(size, np.float32)
    return weights
