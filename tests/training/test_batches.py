"""What the model is trained on, as token ids, against the shipped template and tokenizer."""

import itertools
import random
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")

from tokenizers import Tokenizer

from training.batches import MAX_TOKENS, MULTIPLE, SETTLE, Corpus, SampleMaker, asked_spans, collate
from training.data import IM_END, IM_START, Document
from training.requests import Turn, chatml
from training.words import Lexicon

EMBEDDED = Path(__file__).resolve().parents[2] / "src" / "karat" / "embedded"


@pytest.fixture(scope="session")
def maker(documents: tuple[list[Document], list[Document]], lexicon: Lexicon) -> SampleMaker:
    stories = [d for d in documents[0] if d.source == "tinystories" and len(d.text) < 1500]
    corpus = Corpus(stories, stories[:9], stories[:9], stories[:9], documents[1], lexicon)
    return SampleMaker(corpus, Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")), SETTLE)


def test_training_format_is_the_rendered_template() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED)
    turns = [
        Turn("system", "Be kind."),
        Turn("user", "Tell me a story about a fox."),
        Turn("assistant", '"Hi," said\nthe fox.'),
    ]
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    trained = [tokenizer.encode(text, add_special_tokens=False) for text, _ in chatml(turns)]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert "".join(text for text, _ in chatml(turns)) + "\n" == rendered
    newline = tokenizer.encode("\n", add_special_tokens=False)
    assert [*itertools.chain(*trained), *newline] == tokenizer.encode(rendered, add_special_tokens=False)
    prompt = tokenizer.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert tokenizer.encode(prompt, add_special_tokens=False) == [*itertools.chain(*trained[:-1])]


@pytest.mark.slow
def test_a_chunk_is_reproducible_and_within_limits(maker: SampleMaker) -> None:
    first, again, other = (maker.chunk(seed, 3, 1024) for seed in (1, 1, 2))
    assert all(a.token_ids.equal(b.token_ids) and a.targets.equal(b.targets) for a, b in zip(first, again, strict=True))
    assert not all(a.token_ids.equal(b.token_ids) for a, b in zip(first, other, strict=False))
    for batch in first:
        assert batch.token_ids.shape == batch.targets.shape
        assert batch.token_ids.shape[1] % MULTIPLE == 0
        assert batch.token_ids.shape[1] <= MAX_TOKENS + MULTIPLE


def test_targets_are_the_next_tokens_and_the_end_is_learned(maker: SampleMaker) -> None:
    rng = random.Random(1)
    rows = maker.encode([maker.pieces(rng) for _ in range(40)], rng)
    for row in rows:
        batch = collate([row])
        for position, target in enumerate(batch.targets[0].tolist()[: len(row.ids) - 1]):
            assert target in (-100, row.ids[position + 1])
        if row.ids[0] == IM_START and row.ids[-1] == IM_END:
            assert row.targets[-1] == IM_END
            assert row.targets[0] == -100


def test_the_first_use_of_an_asked_word_weighs_more(maker: SampleMaker) -> None:
    story = "There was a fox. The fox had a lantern."
    chat = chatml([Turn("user", "Tell me a story about a fox."), Turn("assistant", story)])
    (row,) = maker.encode([chat], random.Random(0))
    heavy = [token for token, weight in zip(row.ids, row.weights, strict=True) if weight != 1.0]
    assert maker.tokenizer.decode(heavy) == " fox"  # two tokens, so never a stranger
    assert asked_spans("A lantern and a fox", story) == [(12, 15), (31, 38)]
