"""How much text a token can stand for: a bound that no text breaks, and none where there is none."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from karat.errors import CapacityError, RequestError, TemplateError
from karat.text import Tokenizer
from karat.text.token_length import MAX_SHRINKING, MAX_UNMEASURED_CHARS, MAX_UNMEASURED_MESSAGES, max_token_chars
from karat.text.tokenizer import MAX_LOCKED_CHARS
from tests.support.drawn import examples

ALPHABET = "".join(sorted(pre_tokenizers.ByteLevel.alphabet()))
TEXT = st.text(st.sampled_from(" \n\ta1\u03b1\u0313\u0300\u0345\u1100\u1161\u11a8é☃"), max_size=60) | st.text(
    max_size=40
)


def byte_level(*, normalizer: Any = None, cut: Any = None, added: Any = None, alphabet: str = ALPHABET) -> Any:
    """Byte-level BPE whose longest token is `aaa`."""
    vocab = {token: i for i, token in enumerate([*alphabet, "aa", "aaa"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("a", "a"), ("aa", "a")]))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = last if cut is None else pre_tokenizers.Sequence([cut, last])
    if normalizer is not None:
        backend.normalizer = normalizer
    if added is not None:
        backend.add_tokens([added])
    return backend


def pieces(**model: Any) -> Any:
    vocab = {token: i for i, token in enumerate(["<unk>", "a", "aa", *(f"<0x{byte:02X}>" for byte in range(256))])}
    return tokenizers.Tokenizer(models.BPE(vocab, [("a", "a")], unk_token="<unk>", **model))


BOUNDED = {
    "byte level": (byte_level(), 3),
    "composing": (byte_level(normalizer=normalizers.NFC()), 12),
    "digits": (byte_level(cut=pre_tokenizers.Digits(individual_digits=True)), 3),
    "longer": (byte_level(normalizer=normalizers.Replace(" ", "__")), 3),
    "added": (byte_level(added=AddedToken("<added>")), 7),
    "byte fallback": (pieces(byte_fallback=True, fuse_unk=True), 6),
    "one unknown token a character": (pieces(), 6),
}
UNBOUNDED = {
    "shorter": byte_level(normalizer=normalizers.Replace("  ", " ")),
    "pattern": byte_level(normalizer=normalizers.Replace(tokenizers.Regex(" +"), " ")),
    "strip": byte_level(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])),
    "spaces that are dropped": byte_level(cut=pre_tokenizers.Whitespace()),
    "cuts that are dropped": byte_level(cut=pre_tokenizers.Split(" ", "removed")),
    "spaces that a token takes": byte_level(added=AddedToken("<added>", rstrip=True)),
    "bytes without a token": byte_level(alphabet=ALPHABET[1:]),
    "unknown characters as one": pieces(fuse_unk=True),
    "unigram": tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0)),
}


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=examples(100))
@given(text=TEXT)
def test_no_text_has_fewer_tokens(name: str, text: str) -> None:
    backend, longest = BOUNDED[name]
    assert max_token_chars(backend, ALPHABET) == longest
    assert len(text) <= longest * len(backend.encode(text).ids)


@pytest.mark.parametrize("name", UNBOUNDED)
def test_where_there_is_no_bound_none_is_stated(name: str) -> None:
    assert max_token_chars(UNBOUNDED[name], ALPHABET) is None


@pytest.mark.parametrize("folder", ["stories260k", "checkpoint"])
def test_real_tokenizers(data_dir: Path, folder: str) -> None:
    tokenizer = Tokenizer.from_folder(data_dir / folder)
    with pytest.raises(CapacityError, match="the prompt has 1000000 characters, and the context of 100 tokens"):
        tokenizer.encode("x" * 10**6, max_tokens=100)
    assert tokenizer.encode("Once upon a time" * 5, max_tokens=40)


def test_a_tokenizer_that_drops_text_takes_a_long_prompt_but_not_any(tmp_path: Path) -> None:
    for name in "spaces that are dropped", "unknown characters as one":
        backend = UNBOUNDED[name]
        backend.decoder = decoders.ByteLevel()
        backend.save(str(tmp_path / "tokenizer.json"))
        tokenizer = Tokenizer.from_folder(tmp_path)
        assert len(tokenizer.encode("a" + " " * 50_000, max_tokens=100)) < 100
        expected = f"has {MAX_UNMEASURED_CHARS + 1} characters; expected at most {MAX_UNMEASURED_CHARS} for a context"
        with pytest.raises(CapacityError, match=expected):
            tokenizer.encode(" " * (MAX_UNMEASURED_CHARS + 1), max_tokens=100)


@pytest.mark.parametrize("folder", ["stories260k", "checkpoint"])
def test_a_long_text_is_tokenised_without_the_interpreters_lock(data_dir: Path, folder: str) -> None:
    """`encode` of the library keeps the lock, and a server's event loop waits; `encode_batch` gives it back."""

    class Watched:
        def __init__(self, backend: Any) -> None:
            self.backend, self.locked = backend, 0

        def encode(self, text: str, **options: Any) -> Any:
            self.locked = max(self.locked, len(text))
            return self.backend.encode(text, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.backend, name)

    tokenizer = Tokenizer.from_folder(data_dir / folder)
    watched = tokenizer._backend = Watched(tokenizer._backend)  # type: ignore[assignment]
    text = "Once upon a time, there was a little girl.\n  \u00e9\u4f60 <s>" * 200
    for add in (True, False):
        assert (
            tokenizer.encode(text, add_special_tokens=add) == watched.backend.encode(text, add_special_tokens=add).ids
        )
    assert tokenizer.encode("Once") == watched.backend.encode("Once").ids
    assert 0 < watched.locked <= MAX_LOCKED_CHARS
    with pytest.raises(RequestError, match=f"character {len(text)} of the text is half a surrogate pair"):
        tokenizer.encode(text + "\ud800")


def test_a_conversation_far_too_long_is_refused_before_the_template(data_dir: Path) -> None:
    tokenizer, rendered = Tokenizer.from_folder(data_dir / "checkpoint"), []
    tokenizer.render_chat = lambda messages, **_: rendered.append(messages) or "Once"  # type: ignore[method-assign]
    template = "{{ messages[0].content }}"
    tokenizer._templates = {"default": template}
    turn = {"role": "user", "content": "a"}
    refused = [
        ([turn] * (MAX_UNMEASURED_MESSAGES + 1), {}, f"has {MAX_UNMEASURED_MESSAGES + 1} messages; expected at most"),
        ([{"role": "user", "content": "a " * MAX_UNMEASURED_CHARS}], {}, r"has \d+ characters; expected at most"),
        ([turn], {"tools": [{"name": "a" * (MAX_UNMEASURED_CHARS * MAX_SHRINKING)}]}, r"has \d+ characters; expected"),
    ]
    for sanitize in (True, False):
        options = {"sanitize_control_tokens": sanitize, "max_tokens": 100}
        for messages, others, expected in refused:
            with pytest.raises(CapacityError, match=f"the conversation {expected}"):
                tokenizer.chat_prompt(messages, **others, **options)
        assert rendered == []
        deep: Any = "a"
        for _ in range(5000):
            deep = [deep]
        with pytest.raises(TemplateError, match="nested too deeply"):
            tokenizer.chat_prompt([turn], tools=deep, **options)
        tokenizer.chat_prompt([turn] * MAX_UNMEASURED_MESSAGES, **options)
        assert len(rendered.pop()) == MAX_UNMEASURED_MESSAGES
