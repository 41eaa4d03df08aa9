"""The two engines of the beginning, rebuilt: `python -m tools.zoo.origins FOLDER` writes a model and two traces.

The first forgot the biases of q, k and v; the second read lm_head column by column. The model has the shape of
Qwen2.5-0.5B (24 layers, hidden 896, 14 heads, 2 KV heads) with random weights and a vocabulary of 4,096.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from karat.check.record.executors import Steps
from karat.check.record.hf import record_hf
from karat.check.trace.writing import write_trace
from tests.support import random_models

CONFIG = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 4096,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}


def main(folder: Path, num_layers: int) -> None:
    transformers.logging.set_verbosity_error()
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | {"num_hidden_layers": num_layers}
    model = random_models.build(config, 1).to(torch.bfloat16).float()
    model.model.rotary_emb.inv_freq = type(model.model.rotary_emb)(model.config).inv_freq
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(
        {n: t.to(torch.bfloat16).contiguous() for n, t in model.state_dict().items()}, folder / "model.safetensors"
    )
    steps = Steps.chunked([9707, 11, 1879, 0, 358, 1079, 264, 2613, 4128, 1614, 382, 77], None)
    steps = Steps(tuple(i % 4096 for i in steps.prompt))

    kept = {name: p.detach().clone() for name, p in model.named_parameters() if name.endswith("_proj.bias")}
    for name in kept:
        model.get_parameter(name).data.zero_()
    write_trace(folder / "first.trace", record_hf(model, steps))
    for name, value in kept.items():
        model.get_parameter(name).data.copy_(value)

    head = model.lm_head.weight.data
    model.lm_head.weight = nn.Parameter(torch.as_strided(head, head.shape, (1, head.shape[0])).clone())
    write_trace(folder / "second.trace", record_hf(model, steps))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 24)
