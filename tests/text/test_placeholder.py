"""The tokenizer of models that have none: a token for each id, and nothing that would end or frame a text."""

import pytest

from karat.text.placeholder import placeholder_tokenizer


@pytest.mark.parametrize("vocab_size", [1, 100, 256, 4096, 151_936])
def test_every_id_has_a_token_and_none_is_special(vocab_size: int) -> None:
    tokenizer = placeholder_tokenizer(vocab_size)
    assert tokenizer.vocab_size == vocab_size and tokenizer.has_token(vocab_size - 1)
    assert not tokenizer.special_ids and tokenizer.eos_token_id is None and tokenizer.chat_template is None
    last = [vocab_size - 1, 0, vocab_size // 2]
    assert len({tokenizer.id_to_token(i) for i in last}) == len(set(last))


def test_text_comes_back() -> None:
    tokenizer = placeholder_tokenizer(300)
    assert tokenizer.decode(tokenizer.encode("Ein Füchslein, 狐.")) == "Ein Füchslein, 狐."
