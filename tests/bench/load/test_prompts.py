"""Prompts are new each time, have the lengths drawn for them, and are read from files as they are there."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from karat.bench.load.lengths import Lengths
from karat.bench.load.prompts import ConversationShape, RandomText, Supply, drawn, read_file
from karat.config import embedded_model_path
from karat.errors import UsageError
from karat.text import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(embedded_model_path())


def source(tokenizer: Tokenizer | None = None, *, as_ids: bool = True, seed: int = 1) -> RandomText:
    return RandomText(np.random.default_rng(seed), tokenizer, as_ids=as_ids)


def shape(**given: object) -> ConversationShape:
    lengths = {"prompt_tokens": Lengths.parse("uniform:4:9", ""), "answer_tokens": Lengths.parse("3", "")}
    return ConversationShape(**{**lengths, **given})  # type: ignore[arg-type]


def test_ids_are_new_ordinary_and_of_the_length_drawn(tokenizer: Tokenizer) -> None:
    found = list(islice(drawn(source(tokenizer), shape()), 50))
    prompts = [conversation.turns[0].prompt for conversation in found]
    assert len(set(prompts)) == 50 and {len(prompt) for prompt in prompts} == set(range(4, 10))
    assert all(set(prompt) <= tokenizer.ordinary_ids for prompt in prompts)
    assert {conversation.turns[0].max_tokens for conversation in found} == {3}


def test_the_same_seed_draws_the_same_and_another_does_not(tokenizer: Tokenizer) -> None:
    first, again, other = (list(islice(drawn(source(tokenizer, seed=n), shape()), 5)) for n in (1, 1, 2))
    assert first == again != other


def test_words_without_a_tokenizer() -> None:
    prompt = source().piece(12)
    assert isinstance(prompt, str) and len(prompt.split()) == 12


def test_text_has_about_the_tokens_wanted(tokenizer: Tokenizer) -> None:
    """Cut at a token, so never more; it may lose some where pieces join."""
    for _ in range(20):
        text = source(tokenizer, as_ids=False).piece(40)
        assert isinstance(text, str) and 20 <= len(tokenizer.encode(text, add_special_tokens=False)) <= 44


def test_shared_beginnings_come_in_turns(tokenizer: Tokenizer) -> None:
    found = list(islice(drawn(source(tokenizer), shape(prefix_tokens=6, num_prefixes=2)), 6))
    prefixes = [conversation.prefix for conversation in found]
    assert len(set(prefixes)) == 2 and prefixes[0] == prefixes[2] == prefixes[4] and len(prefixes[0] or ()) == 6


def test_the_most_tokens_of_a_conversation() -> None:
    assert shape(turns=2, prefix_tokens=5).most_tokens == 5 + 2 * (9 + 3)


TALKS = [
    {"id": "1", "conversations": [{"from": "human", "value": "Hi there"}, {"from": "gpt", "value": "Hello you"}]},
    {"conversations": [{"from": "gpt", "value": "out"}, {"from": "human", "value": "of order"}]},
    {
        "conversations": [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "a"},
            {"from": "gpt", "value": "b"},
            {"from": "human", "value": "c"},
            {"from": "gpt", "value": "d"},
        ]
    },
    {"conversations": [{"from": "human", "value": "never answered"}]},
    {"conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "x"}]},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(TALKS), encoding="utf-8")
    return path


def test_a_file_of_conversations(file: Path, tokenizer: Tokenizer) -> None:
    found = read_file(file, source(tokenizer, as_ids=False), shape())
    assert [conversation.turns[0].prompt for conversation in found] == ["Hi there", "a"]
    lengths = [len(tokenizer.encode(text, add_special_tokens=False)) for text in ("Hello you", "b")]
    assert [conversation.turns[0].max_tokens for conversation in found] == lengths
    (two,) = read_file(file, source(tokenizer, as_ids=False), shape(turns=2))
    assert [turn.prompt for turn in two.turns] == ["a", "c"]
    ids = read_file(file, source(tokenizer), shape())[0].turns[0].prompt
    assert list(ids) == tokenizer.encode("Hi there", add_special_tokens=False)


def test_without_a_tokenizer_answers_have_the_length_drawn(file: Path) -> None:
    assert [conversation.turns[0].max_tokens for conversation in read_file(file, source(), shape())] == [3, 3]


@pytest.mark.parametrize("content", ["", "{}", '[{"conversations": 1}]', "[]"])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UsageError, match=r"x\.json"):
        read_file(tmp_path / "x.json", source(), shape())
    with pytest.raises(UsageError, match="No such file"):
        read_file(tmp_path / "y.json", source(), shape())


def test_a_file_is_used_in_rounds_each_in_a_new_order(file: Path) -> None:
    supply = Supply(source(), shape(), file)
    taken = supply.take(6)
    assert supply.num_rounds == 3
    assert [sum(one == other for other in taken) for one in taken] == [3] * 6, "each round has each conversation once"
