"""The test that garbage cannot pass: the shipped model tells stories with words drawn at run time.

The words were never requested in training (training/reserved.py keeps them out), so a story that has one shows that
the request went through tokenizer, template, every layer, cache and sampler unharmed. KARAT_SEED draws the same
words again.
"""

import json
import math
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

from karat import LLM, SamplingParams
from karat.config import embedded_model_path
from tests.support.seed import SEED
from training.words import article, contains

IS_LONG = "KARAT_LONG" in os.environ
NUM_WORDS = 100 if IS_LONG else 40
WINDOW = 256  # of the card's definition of held-out loss

RESERVED = Path(__file__).parents[1] / "data" / "reserved_words.json"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(max_num_seqs=32)


def test_stories_contain_the_words_asked_for(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    """At least 80 of 100 stories have their word and end by themselves, drawn by the model's own defaults.

    Of 40 at least 29. The card has a share of about 92 %, measured on 600: fewer are less likely than one in ten
    thousand. An engine that loses the request, or garbles it, gets next to none of the words. One story in 300 has at
    most 100 characters: more than three of 100, or two of 40, are less likely than one in a thousand.
    """
    bands: dict[str, list[str]] = json.loads(RESERVED.read_text())
    assert set(bands) == {"common", "medium", "rare"}
    rng, counts = random.Random(int(SEED)), (34, 33, 33) if IS_LONG else (14, 13, 13)
    asked = [(band, word) for band, count in zip(bands, counts, strict=True) for word in rng.sample(bands[band], count)]
    assert len(asked) == NUM_WORDS
    chats = [[{"role": "user", "content": f"Tell me a story about {article(w)} {w}."}] for _, w in asked]
    outputs = [output.outputs[0] for output in llm.chat(chats)]
    hits = dict.fromkeys(bands, 0)
    for (band, word), output in zip(asked, outputs, strict=True):
        hits[band] += contains(output.text, word) and output.finish_reason == "stop"
    with capsys.disabled():
        print(f"\n  words in stories (seed {SEED}): {sum(hits.values())} of {NUM_WORDS}, by band {hits}")
    assert sum(hits.values()) >= (80 if IS_LONG else 29)
    assert sum(output.finish_reason != "stop" for output in outputs) <= (5 if IS_LONG else 3)
    lengths = sorted(len(output.text) for output in outputs)
    assert lengths[3 if IS_LONG else 2] > 100 and lengths[10] > 200
    assert len({output.text for output in outputs}) == NUM_WORDS


def on_card(pattern: str) -> float:
    """A figure of the model card."""
    found = re.search(pattern, (embedded_model_path() / "README.md").read_text(), re.MULTILINE)
    assert found, f"the card has no line like {pattern}"
    return float(found.group(1))


@pytest.mark.long
def test_held_out_perplexity_is_the_cards(llm: LLM, data_dir: Path) -> None:
    """Within 1 % of the figure on the model card, by the card's definition, computed by Karat."""
    from training.data import END_OF_TEXT, load_documents, split

    _, held_out = split(load_documents(data_dir / "corpus"))
    total, count = 0.0, 0
    for document in held_out:
        ids = [*llm.tokenizer.encode(document.text, add_special_tokens=False), END_OF_TEXT]
        for start in range(0, len(ids), WINDOW):
            piece = ids[start : start + WINDOW]
            if len(piece) > 1:
                logits = llm.logits(piece[:-1]).astype(np.float64)
                top = logits.max(axis=-1)
                norm = top + np.log(np.exp(logits - top[:, None]).sum(axis=-1))
                total += float((norm - logits[np.arange(len(logits)), piece[1:]]).sum())
                count += len(logits)
    assert math.exp(total / count) == pytest.approx(on_card(r"^\| all 200 \|.*\| ([\d.]+) \|$"), rel=0.01)


def test_greedy_story_is_a_story(llm: LLM) -> None:
    (output,) = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=300))
    assert output.outputs[0].finish_reason == "stop"
    words = re.findall(r"[a-z]+", output.outputs[0].text.lower())
    assert len(words) > 40
    assert len(set(words)) > 0.3 * len(words), "it repeats itself"


def test_the_goal_of_80_words() -> None:
    """The bar of the project, judged by the share on the card, which 600 stories measured."""
    assert on_card(r"^\| all \| \| ([\d.]+)% \|$") >= 80
