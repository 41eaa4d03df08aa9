"""Strangers: where they may be, what they are made of, and that reserved words are not pushed down."""

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch")

# ruff: noqa: E402 (after the skip)
from tokenizers import Tokenizer

from training.batches import Row, introduce
from training.model import ModelConfig, StoryModel
from training.strangers import COUNT, SHARE, Strangers
from training.words import Lexicon, is_reserved

EMBEDDED = Path(__file__).resolve().parents[2] / "src" / "karat" / "embedded"
TOKENIZER = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
VOCAB = TOKENIZER.get_vocab_size()


@pytest.fixture(scope="module")
def strangers(lexicon: Lexicon) -> Strangers:
    return Strangers.of(TOKENIZER, lexicon)


def test_tables_hold_nouns_of_one_token(strangers: Strangers) -> None:
    nouns = [TOKENIZER.id_to_token(i) for i in strangers.nouns.tolist()]
    reserved = [TOKENIZER.id_to_token(i) for i in strangers.reserved.nonzero().flatten().tolist()]
    assert nouns and all(token.startswith("Ġ") and not is_reserved(token[1:]) for token in nouns)
    assert all(token.startswith("Ġ") and is_reserved(token[1:]) for token in reserved)
    assert not set(nouns) & set(reserved)


def test_a_stranger_takes_a_nouns_place_everywhere_and_nothing_else_changes() -> None:
    ids, weights = [5, 40, 6, 41, 40, 7, 41, 8], [1.0, 1, 1, 1, 6, 1, 6, 1]
    row = Row(ids, [-100, -100, 6, 41, 40, 7, 41, 8], weights)
    seen = set()
    for seed in range(200):
        new = introduce(row, frozenset({40, 9}), VOCAB, random.Random(seed))
        changed = {i for i, (a, b) in enumerate(zip(ids, new.ids, strict=True)) if a != b}
        assert changed in (set(), {1, 4}) and new.weights == weights
        assert all(VOCAB <= new.ids[i] < VOCAB + COUNT for i in changed) and len({new.ids[i] for i in changed}) <= 1
        assert new.targets == [-100 if old == -100 else token for old, token in zip(row.targets, new.ids, strict=True)]
        seen.add(bool(changed))
    assert seen == {True, False} and 0 < SHARE < 1


def test_embeddings_are_distributed_as_those_of_nouns(strangers: Strangers) -> None:
    """Mean and deviation, of as many draws as make a tenth of it unlikely to be chance."""
    torch.manual_seed(0)
    embedding = torch.randn(VOCAB, 6) * torch.tensor([1.0, 2, 3, 0.5, 1, 1]) + 4
    nouns = embedding[strangers.nouns]
    drawn = torch.cat([strangers.draw(embedding, seed) for seed in range(200)])
    assert drawn.shape == (200 * COUNT, 6)
    assert ((drawn.mean(0) - nouns.mean(0)).abs() < 0.1 * nouns.std(0)).all()
    assert ((drawn.std(0) / nouns.std(0) - 1).abs() < 0.1).all()
    assert torch.equal(strangers.draw(embedding, 5), strangers.draw(embedding, 5))
    assert not torch.equal(strangers.draw(embedding, 5), strangers.draw(embedding, 6))


def test_reserved_words_are_left_out_only_where_an_asked_word_begins() -> None:
    reserved, begins = (torch.zeros(10, dtype=torch.bool) for _ in range(2))
    reserved[[2, 3]] = True
    begins[[2, 3, 4]] = True
    table = Strangers(reserved, torch.tensor([4]), begins)
    targets = torch.tensor([4, 4, 5, 2, -100])
    weights = torch.tensor([6.0, 1, 6, 6, 6])
    masked = table.masked(torch.zeros(5, 10), targets, weights)
    left_out = [sorted((row == float("-inf")).nonzero().flatten().tolist()) for row in masked]
    assert left_out == [[2, 3], [], [], [3], []]


def test_strangers_are_read_and_predicted() -> None:
    """As by a model whose vocabulary has them."""
    torch.manual_seed(0)
    model = StoryModel(ModelConfig(64, 32, 48, 1, 4, 2))
    larger = StoryModel(ModelConfig(64 + COUNT, 32, 48, 1, 4, 2))
    strangers = Strangers(
        torch.zeros(64 + COUNT, dtype=torch.bool), torch.arange(10, 40), torch.ones(64 + COUNT, dtype=torch.bool)
    )
    ids, targets = torch.randint(0, 64 + COUNT, (2, 2, 8)).unbind()
    embedding = model.model.embed_tokens.weight
    drawn = strangers.draw(embedding, 1)
    loss = model.loss(ids, targets, torch.ones(2, 8), strangers, drawn)
    larger.load_state_dict(model.state_dict() | {"model.embed_tokens.weight": torch.cat((embedding, drawn))})
    assert torch.allclose(loss, larger.loss(ids, targets, torch.ones(2, 8)))
    with pytest.raises(IndexError):
        model.loss(ids, targets, torch.ones(2, 8))
