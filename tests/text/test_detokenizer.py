"""Streaming text out of tokens: the pieces add up to `decode`, and none has half a character."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from karat.text import IncrementalDetokenizer, Tokenizer
from karat.text.tokenizer_files import TokenizerFiles
from tests.support.drawn import examples

# Byte-level BPE, and SentencePiece with byte fallback: both can write every byte.
COMPLETE = {"byte level": "checkpoint", "byte fallback": "stories260k"}
FOLDERS = COMPLETE | {"byte level, 22 special tokens": "tokenizers/torchtitan_tiny"}


@pytest.fixture(scope="module", params=FOLDERS.values(), ids=FOLDERS)
def tokenizer(request: pytest.FixtureRequest, data_dir: Path) -> Tokenizer:
    return Tokenizer.from_folder(data_dir / request.param)


@pytest.fixture(scope="module", params=COMPLETE.values(), ids=COMPLETE)
def complete(request: pytest.FixtureRequest, data_dir: Path) -> Tokenizer:
    return Tokenizer.from_folder(data_dir / request.param)


def stream(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True, prompt: list[int] | None = None) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip, prompt_ids=prompt or [])
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """Ids of single bytes, whatever the tokenizer would join them to."""
    all_ids = range(tokenizer.vocab_size)
    of_bytes = {tokenizer.token_bytes(i): i for i in all_ids if len(tokenizer.token_bytes(i)) == 1}
    of_bytes |= {bytes([byte]): i for i in all_ids if (byte := tokenizer.fallback_byte(i)) is not None}
    return [of_bytes[data[i : i + 1]] for i in range(len(data))]


@settings(max_examples=examples(150))
@given(data=st.data(), skip=st.booleans())
def test_random_ids_add_up(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    # Ids beyond the vocabulary too: an embedding may have rows without a token.
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=30))
    assert "".join(stream(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=examples(150))
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_text_arrives_whole_and_early(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = stream(tokenizer, ids, skip=False)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)
    if "\ufffd" not in text and "".join(pieces) == text:
        assert "\ufffd" not in "".join(pieces)
        assert tokenizer.fallback_byte(ids[-1]) is not None if pieces[-1] else True


@settings(max_examples=examples(100))
@given(data=st.binary(max_size=24))
def test_random_bytes_add_up(complete: Tokenizer, data: bytes) -> None:
    ids = byte_ids(complete, data)
    assert "".join(stream(complete, ids)) == complete.decode(ids)


def test_half_a_character_waits(complete: Tokenizer) -> None:
    ids = [*byte_ids(complete, "€".encode()), *complete.encode("!", add_special_tokens=False)]
    pieces = stream(complete, ids)
    assert pieces[:2] == ["", ""]
    assert "".join(pieces).strip() in ("€!", "€ !")


def test_a_character_cut_short_shows_at_the_end_only(complete: Tokenizer) -> None:
    ids = byte_ids(complete, "€".encode()[:2])
    *pushed, last = stream(complete, ids)
    assert set(pushed) == {""}
    assert last == complete.decode(ids)
    assert set(last) == {"\ufffd"}


def test_byte_level_text_goes_out_with_its_token(data_dir: Path) -> None:
    tokenizer = Tokenizer.from_folder(data_dir / "checkpoint")
    ids = tokenizer.encode("Once upon a time")
    assert stream(tokenizer, ids) == [*(tokenizer.decode([i]) for i in ids), ""]


def test_sentencepiece_space_is_kept_after_a_prompt_only(data_dir: Path) -> None:
    tokenizer = Tokenizer.from_folder(data_dir / "stories260k")
    ids = tokenizer.encode("there was", add_special_tokens=False)
    assert "".join(stream(tokenizer, ids)) == "there was"
    assert "".join(stream(tokenizer, ids, prompt=tokenizer.encode("Once"))) == " there was"
    assert "".join(stream(tokenizer, ids, prompt=[1])) == "there was"  # the prompt is a skipped <s>
    assert "".join(stream(tokenizer, ids, prompt=[1], skip=False)) == " there was"


@settings(max_examples=examples(100))
@given(prompt=st.text(max_size=8), rest=st.text(min_size=1, max_size=8))
def test_a_prompt_and_its_stream_add_up(tokenizer: Tokenizer, prompt: str, rest: str) -> None:
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    ids = tokenizer.encode(rest, add_special_tokens=False)
    whole = tokenizer.decode([*prompt_ids, *ids], skip_special_tokens=False)
    start = tokenizer.decode(prompt_ids, skip_special_tokens=False)
    assert start + "".join(stream(tokenizer, ids, skip=False, prompt=prompt_ids)) == whole


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_begun_by_the_prompt_is_completed(complete: Tokenizer, cut: int) -> None:
    ids = byte_ids(complete, "é👩".encode())  # 2 and 4 bytes
    prompt = [*complete.encode("So"), *ids[: 2 + cut]]
    assert "".join(stream(complete, ids[2 + cut :], prompt=prompt)) == "👩"


def test_cost_is_linear(complete: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of bytes, then ordinary tokens: each is decoded once, and not its stream anew at every token."""
    ids = byte_ids(complete, "é".encode() * 1000) + random.Random(0).choices(range(3, complete.vocab_size), k=1000)
    want = complete.decode(ids)
    decoded = 0

    def counted(method: Callable[..., str]) -> Callable[..., str]:
        def call(tokenizer: Tokenizer, given: int | Sequence[int], **options: bool) -> str:
            nonlocal decoded
            decoded += 1 if isinstance(given, int) else len(given)
            return method(tokenizer, given, **options)

        return call

    for name in ("token_bytes", "decode", "decode_continuation"):
        monkeypatch.setattr(Tokenizer, name, counted(getattr(Tokenizer, name)))
    assert "".join(stream(complete, ids)) == want
    assert len(ids) - 50 <= decoded <= 2 * len(ids)


OTHER_DECODERS = {
    "none": None,
    "Metaspace": decoders.Metaspace(),
    "Metaspace, no prefix": decoders.Metaspace(prepend_scheme="never"),
    "WordPiece": decoders.WordPiece(prefix="##", cleanup=True),
    "no strip": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "unfused": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    "byte level, fused": decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]),
}


def small_tokenizer(decoder: object) -> Tokenizer:
    words = ["ab", "▁", "▁ab", "##s", "n't", ".", "c", "d", "▁▁", "Ġe", "é", "<0xC3>", "<0xA9>", "<0xFF>", "<s>"]
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="ab"))
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    if decoder is not None:
        backend.decoder = decoder
    return Tokenizer(TokenizerFiles(backend, {}, {}, None))


@pytest.mark.parametrize("decoder", OTHER_DECODERS.values(), ids=OTHER_DECODERS)
@settings(max_examples=examples(150))
@given(ids=st.lists(st.integers(0, 15), max_size=10), skip=st.booleans())
def test_other_decoders_add_up(decoder: object, ids: list[int], skip: bool) -> None:
    tokenizer = small_tokenizer(decoder)
    assert "".join(stream(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)
