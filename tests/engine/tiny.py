"""Writes a small random model as a Hugging Face folder: config, weights, a tokenizer of bytes, a chat template."""

import json
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file

import karat
from karat import LLM, SamplingParams
from karat.engine.scheduling.scheduler import Chunk
from karat.engine.scheduling.step_budget import StepBudget
from karat.models.decoder import weight_specs
from karat.models.registry import read_config

# Token ids: the 256 bytes, then these.
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|other_end|>")
ENDOFTEXT, IM_START, IM_END, OTHER_END = range(256, 260)
VOCAB = 264  # four rows without a token, as real models have

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ prefix }}{% endif %}"
)
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "eos_token_id": None,
    "bos_token_id": None,
}

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=20, ignore_eos=True, seed=7, top_p=0.95, logprobs=3)
PROMPTS = ["Once upon a time", "a", "The quick brown fox jumps over the lazy dog, and " * 2, "ÄÖÜ ☃"]


def write_model(
    folder: Path,
    *,
    generation_config: dict[str, Any] | None = None,
    chat_template: str | None = CHATML,
    eos_token: str | None = None,
    add_bos: bool = False,
    seed: int = 0,
    **config: Any,
) -> Path:
    """`config` replaces values of CONFIG. Weights are large enough that logits have a deviation above 1.

    With add_bos the tokenizer starts every text with <|endoftext|>.
    """
    raw = CONFIG | config
    rng = np.random.default_rng(seed)
    weights = {}
    for spec in weight_specs(read_config(raw)):
        shape = spec.stored[0] if spec.stored else spec.shape
        noise = rng.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            weights[spec.source] = (1 + 0.3 * noise) if "norm" in spec.source else 0.5 * noise
        else:
            weights[spec.source] = noise * 2 / np.float32(np.sqrt(shape[-1]))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    write(folder / "config.json", raw)
    if generation_config is not None:
        write(folder / "generation_config.json", generation_config)
    tokens = {"chat_template": chat_template, "eos_token": eos_token, "tokenizer_class": "PreTrainedTokenizerFast"}
    write(folder / "tokenizer_config.json", {name: value for name, value in tokens.items() if value is not None})
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    if add_bos:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", ENDOFTEXT)]
        )
    backend.save(str(folder / "tokenizer.json"))
    return folder


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def at_rest(llm: LLM) -> bool:
    llm.engine.scheduler.check()
    return llm.engine.scheduler.blocks.num_free == llm.engine.scheduler.blocks.num_blocks and not llm.engine.has_work


def preempt_often(llm: LLM) -> None:
    """Where windows leave so much room that no sequence is preempted for lack of it."""
    scheduler, calls = llm.engine.scheduler, count()
    schedule = scheduler.schedule

    def preempting(budget: StepBudget, in_flight: Collection[int] = (), *, beside: bool | None = None) -> list[Chunk]:
        if next(calls) % 9 == 8 and not in_flight:
            scheduler.preempt_all()
        return schedule(budget, in_flight, beside=beside)

    scheduler.schedule = preempting  # type: ignore[method-assign]


def tokens(outputs: list[karat.RequestOutput]) -> list[tuple[int, ...]]:
    return [choice.token_ids for output in outputs for choice in output.outputs]
