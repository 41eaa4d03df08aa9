"""Write a model as a Hugging Face folder in bfloat16, with a card of measured numbers.

`python -m training.package --corpus DIR --state OUT/last.safetensors --start DIR --hardware TEXT`
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer

from training.batches import MAX_TOKENS, Corpus
from training.card import Measured, render
from training.data import Document, load_documents
from training.evaluate import WINDOW, HeldOut, Sampling, held_out_loss, inclusion
from training.model import ModelConfig, StoryModel
from training.reserved import bands_of
from training.state import Progress
from training.unkind import rows

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
CONTEXT_LENGTH = 1024


def write_folder(folder: Path, model: StoryModel, tokenizer_folder: Path, sampling: Sampling) -> None:
    """Write config, generation config, bf16 weights, tokenizer and chat template; files that exist are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().to(torch.bfloat16).cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    shape = model.config
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "max_position_embeddings": CONTEXT_LENGTH,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "bfloat16",
    }
    generation = {
        "bos_token_id": None,
        "eos_token_id": [2, 0],
        "pad_token_id": 0,
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0,
        "max_new_tokens": sampling.max_new_tokens,
        "bad_words_ids": rows(Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))),
    }
    token = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_LENGTH,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(i): {"content": content} | token
            for i, content in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
        },
        "chat_template": CHAT_TEMPLATE,
    }
    for name, value in (("config", config), ("generation_config", generation), ("tokenizer_config", tokenizer_config)):
        (folder / f"{name}.json").write_text(as_text(value) + "\n")
    if tokenizer_folder.resolve() != folder.resolve():
        shutil.copyfile(tokenizer_folder / "tokenizer.json", folder / "tokenizer.json")
        (folder / "tokenizer.json").chmod(0o644)


def as_text(value: dict[str, object]) -> str:
    """JSON of a line for each key, and for each row of bad_words_ids."""
    text = json.dumps(value | {"bad_words_ids": []} if "bad_words_ids" in value else value, indent=2)
    lines = ",\n    ".join(map(json.dumps, value.get("bad_words_ids", ())))  # type: ignore[arg-type, call-overload]
    return text.replace('"bad_words_ids": []', f'"bad_words_ids": [\n    {lines}\n  ]')


def read_state(path: Path, kind: str) -> tuple[StoryModel, Progress]:
    """The model in a state file of the training; `kind` is "model" or "average" (the weights' running average)."""
    model = StoryModel(ModelConfig())
    with safe_open(path, "pt") as file:
        names = [name for name in file.keys() if name.startswith(f"{kind}.")]  # noqa: SIM118 (not a dict)
        model.load_state_dict({name.removeprefix(f"{kind}."): file.get_tensor(name) for name in names})
        return model, Progress(**json.loads(file.metadata()["progress"]))


def held_out_table(model: StoryModel, tokenizer: Tokenizer, held_out: list[Document]) -> dict[str, HeldOut]:
    """The rows of the card's table."""
    tiny = [document for document in held_out if document.source == "tinystories"]
    parts = {"all 200": held_out, f"the {len(tiny)} of TinyStories": tiny, "the first 20": held_out[:20]}
    return {name: held_out_loss(model, tokenizer, documents) for name, documents in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.package", description="Write the folder that is shipped.")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True, help="state file of a training run")
    parser.add_argument("--weights", choices=("model", "average"), default="model")
    parser.add_argument("--start", type=Path, required=True, help="the checkpoint that training started from")
    parser.add_argument("--to", type=Path, default=Path("src/karat/embedded"))
    parser.add_argument("--hardware", required=True, help="what the training ran on, for the card")
    parser.add_argument("--per-band", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--temperature", type=float, default=Sampling.temperature)
    parser.add_argument("--top-p", type=float, default=Sampling.top_p)
    arguments = parser.parse_args()
    corpus = Corpus.load(arguments.corpus)
    sampling = Sampling(arguments.temperature, arguments.top_p)
    model, progress = read_state(arguments.state, arguments.weights)
    write_folder(arguments.to, model, arguments.start, sampling)
    tokenizer = Tokenizer.from_file(str(arguments.to / "tokenizer.json"))
    shipped, start = StoryModel.from_folder(arguments.to).eval(), StoryModel.from_folder(arguments.start).eval()
    found = [
        [
            inclusion(shipped, tokenizer, bands_of(corpus.lexicon, reserved), arguments.per_band, seed, sampling)
            for seed in arguments.seeds
        ]
        for reserved in (True, False)
    ]
    measured = Measured(
        held_out_table(shipped, tokenizer, corpus.held_out),
        held_out_table(start, tokenizer, corpus.held_out),
        *found,
        progress,
        arguments.hardware,
    )
    config = shipped.config
    shape = {
        "num_parameters": sum(p.numel() for p in shipped.parameters()) / 1e6,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "mlp": config.intermediate_size,
        "vocab": config.vocab_size,
        "context": CONTEXT_LENGTH,
        "trained_length": MAX_TOKENS,
        "megabytes": (arguments.to / "model.safetensors").stat().st_size / 1e6,
        "window": WINDOW,
    }
    chosen = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    num_documents = len(load_documents(arguments.corpus))
    card = render(measured, shape, chosen, num_documents)
    (arguments.to / "README.md").write_text(card)
    print(card)


if __name__ == "__main__":
    main()
