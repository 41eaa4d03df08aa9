"""Measure a model: held-out loss, whether stories contain the words asked for, and whether they end by themselves.

`python -m training.evaluate --model DIR --corpus DIR` prints JSON; `training.package` writes the card from it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from training.batches import Corpus
from training.data import END_OF_TEXT, IM_END, Document
from training.model import StoryModel
from training.requests import Turn, chatml
from training.reserved import bands_of
from training.words import article, contains

WINDOW = 256
BATCH = 100


@dataclass(frozen=True)
class HeldOut:
    """Mean negative log likelihood in nats per predicted token, its exponential, and how many tokens were predicted."""

    loss: float
    perplexity: float
    num_tokens: int


@dataclass(frozen=True)
class Inclusion:
    """Share of stories with the word asked for, by band; share that ended by itself; (request, story) samples."""

    shares: dict[str, float]
    per_band: int
    num_stories: int
    ended: float
    mean_tokens: float
    samples: list[tuple[str, str]]
    missed: list[str]


@dataclass(frozen=True)
class Sampling:
    """How stories are drawn; temperature 0 is greedy."""

    temperature: float = 0.6
    top_p: float = 0.95
    max_new_tokens: int = 400


@torch.no_grad()
def held_out_loss(model: StoryModel, tokenizer: Tokenizer, documents: list[Document], window: int = WINDOW) -> HeldOut:
    """Each document's ids and one <|endoftext|>, in consecutive windows of `window`; every token but a window's first
    is predicted.
    """
    total, count = 0.0, 0
    device = next(model.parameters()).device
    for document in documents:
        ids = [*tokenizer.encode(document.text, add_special_tokens=False).ids, END_OF_TEXT]
        for start in range(0, len(ids), window):
            piece = torch.tensor([ids[start : start + window]], device=device)
            if piece.shape[1] > 1:
                total += F.cross_entropy(model.logits(piece[:, :-1])[0].float(), piece[0, 1:], reduction="sum").item()
                count += piece.shape[1] - 1
    return HeldOut(total / count, math.exp(total / count), count)


def as_transformers(model: StoryModel) -> Qwen2ForCausalLM:
    """The same weights as a transformers model (for its batched generation)."""
    config = model.config
    shape = {name: getattr(config, name) for name in config.__dataclass_fields__ if name != "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    other = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True, rope_parameters=rope))
    other.load_state_dict(model.state_dict(), strict=False)
    other.tie_weights()
    return other.eval().to(next(model.parameters()).device)


def tell(
    model: Qwen2ForCausalLM, tokenizer: Tokenizer, asked: list[str], seed: int, sampling: Sampling
) -> list[list[int]]:
    """New token ids for each request (one chat turn each, one batch), up to and with the first end token."""
    prompts = ["".join(text for text, _ in chatml([Turn("user", one), Turn("assistant", "")])) for one in asked]
    ids = [tokenizer.encode(p.removesuffix("<|im_end|>"), add_special_tokens=False).ids for p in prompts]
    width = max(map(len, ids))
    padded = torch.tensor([[END_OF_TEXT] * (width - len(row)) + row for row in ids], device=model.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids], device=model.device)
    torch.manual_seed(seed)
    drawn = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
    out = model.generate(
        padded,
        attention_mask=mask,
        max_new_tokens=sampling.max_new_tokens,
        eos_token_id=[IM_END, END_OF_TEXT],
        pad_token_id=END_OF_TEXT,
        **(drawn if sampling.temperature else {"do_sample": False}),
    )
    stories = []
    for row in out[:, width:].tolist():
        end = next((i for i, token in enumerate(row) if token in (IM_END, END_OF_TEXT)), len(row) - 1)
        stories.append(row[: end + 1])
    return stories


def inclusion(
    model: StoryModel,
    tokenizer: Tokenizer,
    bands: dict[str, list[str]],
    per_band: int,
    seed: int,
    sampling: Sampling | None = None,
    wording: str = "Tell me a story about {}.",
) -> Inclusion:
    """Ask for one word a story, `per_band` words drawn by `seed` from each band; {} is the word."""
    rng = random.Random(seed)
    words = [(band, word) for band in bands for word in rng.sample(bands[band], min(per_band, len(bands[band])))]
    rng.shuffle(words)
    other = as_transformers(model)
    hits: dict[str, list[bool]] = {band: [] for band in bands}
    ended, num_tokens, samples, missed = 0, 0, [], []
    for start in range(0, len(words), BATCH):
        part = words[start : start + BATCH]
        asked = [wording.replace("{}", f"{article(word)} {word}") for _, word in part]
        stories = tell(other, tokenizer, asked, seed + start, sampling or Sampling())
        for (band, word), request, story in zip(part, asked, stories, strict=True):
            text = tokenizer.decode(story)
            hits[band].append(contains(text, word))
            missed += [] if hits[band][-1] else [word]
            ended += story[-1] in (IM_END, END_OF_TEXT)
            num_tokens += len(story)
            samples.append((request, text))
    shares = {band: sum(found) / len(found) for band, found in hits.items()}
    return Inclusion(shares, per_band, len(words), ended / len(words), num_tokens / len(words), samples, missed)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description="Measure a folder; prints JSON.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--per-band", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--temperature", type=float, default=Sampling.temperature)
    parser.add_argument("--top-p", type=float, default=Sampling.top_p)
    parser.add_argument("--wording", default="Tell me a story about {}.", help="the request; {} is the word")
    parser.add_argument("--samples", type=int, default=3, help="how many stories to show")
    arguments = parser.parse_args()
    model = StoryModel.from_folder(arguments.model).eval()
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    corpus = Corpus.load(arguments.corpus)
    sampling = Sampling(arguments.temperature, arguments.top_p)
    result: dict[str, object] = {"sampling": asdict(sampling), "wording": arguments.wording}
    result["held_out"] = asdict(held_out_loss(model, tokenizer, corpus.held_out))
    bands = bands_of(corpus.lexicon)
    for seed in arguments.seeds:
        found = inclusion(model, tokenizer, bands, arguments.per_band, seed, sampling, arguments.wording)
        result[f"seed {seed}"] = asdict(found) | {"samples": found.samples[: arguments.samples]}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
