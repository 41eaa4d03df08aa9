"""Tokenizers give the ids and the text transformers gives, from the same folder."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from karat.errors import RequestError, TemplateError, TokenizerError
from karat.text import Tokenizer
from tests.support.drawn import examples
from tests.text.conversations import TURN, WEATHER, system, user

FOLDERS = ["stories260k", "checkpoint", "tokenizers/torchtitan_tiny"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SPELLED = st.sampled_from(
    ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "▁", " ", "\n", "a"]
)


class Pair:
    """The same folder in Karat and in transformers."""

    def __init__(self, folder: Path) -> None:
        transformers = pytest.importorskip("transformers")
        self.ours = Tokenizer.from_folder(folder)
        self.theirs: Any = transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))


@pytest.fixture(scope="module", params=FOLDERS)
def pair(request: pytest.FixtureRequest, data_dir: Path) -> Pair:
    return Pair(data_dir / request.param)


@pytest.fixture(scope="module", params=FOLDERS)
def tokenizer(request: pytest.FixtureRequest, data_dir: Path) -> Tokenizer:
    return Tokenizer.from_folder(data_dir / request.param)


@settings(max_examples=examples(100))
@given(text=TEXT | st.lists(SPELLED, max_size=8).map("".join), add=st.booleans(), skip=st.booleans())
def test_ids_and_text_are_those_of_transformers(pair: Pair, text: str, add: bool, skip: bool) -> None:
    ids = pair.ours.encode(text, add_special_tokens=add)
    assert ids == pair.theirs.encode(text, add_special_tokens=add)
    assert pair.ours.decode(ids, skip_special_tokens=skip) == pair.theirs.decode(ids, skip_special_tokens=skip)


@settings(max_examples=examples(100))
@given(data=st.data(), skip=st.booleans())
def test_text_of_random_ids_is_that_of_transformers(pair: Pair, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, pair.ours.vocab_size - 1), max_size=20))
    assert pair.ours.decode(ids, skip_special_tokens=skip) == pair.theirs.decode(ids, skip_special_tokens=skip)


def test_vocabulary_is_that_of_transformers(pair: Pair) -> None:
    ours, theirs = pair.ours, pair.theirs
    assert ours.vocab_size == len(theirs)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.special_tokens == theirs.special_tokens_map
    assert set(theirs.all_special_ids) <= ours.special_ids
    for token_id in range(ours.vocab_size):
        assert (
            ours.token_to_id(ours.id_to_token(token_id))
            == token_id
            == theirs.convert_tokens_to_ids(ours.id_to_token(token_id))
        )
        assert (ours.decode([token_id]) == "") == (theirs.decode([token_id], skip_special_tokens=True) == "")


def test_automatic_classes_agree(data_dir: Path) -> None:
    # AutoTokenizer picks a class by the folder's config; for these folders it must not matter.
    transformers = pytest.importorskip("transformers")
    for folder in FOLDERS:
        theirs = transformers.AutoTokenizer.from_pretrained(str(data_dir / folder))
        for text in ("Once upon a time, there was a fox.", "  two  spaces\n\n\tGrüße 👩‍👩‍👧", ""):
            assert Tokenizer.from_folder(data_dir / folder).encode(text) == theirs.encode(text)


def special_tokens_of(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Matches what the tokenizer reads as a special token; none begins within another."""
    return re.compile("|".join(re.escape(tokenizer.id_to_token(i)) for i in tokenizer.special_ids))


@settings(max_examples=examples(150))
@given(text=TEXT)
def test_round_trip(data_dir: Path, text: str) -> None:
    for folder in ("checkpoint", "stories260k"):
        tokenizer = Tokenizer.from_folder(data_dir / folder)
        assume(not special_tokens_of(tokenizer).search(text))  # hypothesis finds them in our sources
        # SentencePiece marks a space with U+2581, which therefore comes back as a space.
        expected = text if tokenizer.is_byte_level else text.replace("▁", " ")
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == expected


@settings(max_examples=examples(150))
@given(data=st.data(), pieces=st.lists(TEXT, max_size=5))
def test_special_tokens_in_a_text(tokenizer: Tokenizer, data: st.DataObject, pieces: list[str]) -> None:
    """Each that is spelled becomes its id, in order; decoding skips it, or gives it back."""
    special = sorted(map(tokenizer.id_to_token, tokenizer.special_ids))
    text = "".join(piece + data.draw(st.sampled_from(special)) for piece in pieces)
    spelled = special_tokens_of(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = [tokenizer.id_to_token(i) for i in ids if i in tokenizer.special_ids]
    assert found == spelled.findall(text)
    if tokenizer.is_byte_level and tokenizer.token_to_id("Ġ") is not None:  # the tiny one cannot write a space
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert tokenizer.decode(ids, skip_special_tokens=True) == spelled.sub("", text)


def test_bos_is_added_to_text_once(data_dir: Path) -> None:
    tokenizer = Tokenizer.from_folder(data_dir / "stories260k")
    assert tokenizer.encode("Once").count(1) == 1
    assert tokenizer.encode("Once", add_special_tokens=False).count(1) == 0
    assert tokenizer.encode("Once")[0] == tokenizer.bos_token_id == 1


def test_bytes_of_tokens_make_the_text(tokenizer: Tokenizer) -> None:
    text = "Once upon a time 👩‍👩‍👧 there was a café."
    ids = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.decode(ids) == text:
        assert b"".join(map(tokenizer.token_bytes, ids)).decode().strip() == text
    for token_id in tokenizer.special_ids:
        assert tokenizer.token_bytes(token_id).decode() == tokenizer.id_to_token(token_id)
    assert tokenizer.token_bytes(tokenizer.vocab_size + 7) == b""


def test_unknown_ids_and_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_to_id("no such token") is None
    assert not tokenizer.has_token(tokenizer.vocab_size)
    assert tokenizer.decode([tokenizer.vocab_size]) == ""
    with pytest.raises(TokenizerError, match=f"no token {tokenizer.vocab_size}"):
        tokenizer.id_to_token(tokenizer.vocab_size)


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"character 2 of the text is half a surrogate pair \('\\ud83d'\)"):
        tokenizer.encode("ab\ud83d")


def test_chat_ids_are_those_of_transformers(data_dir: Path) -> None:
    pair = Pair(data_dir / "tokenizers/torchtitan_tiny")
    for messages in ([user("Hello")], [system("Be brief."), *TURN], [user("<|begin_of_text|>twice<|end_of_text|>")]):
        for add_generation_prompt in (True, False):
            options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt}
            expected = pair.theirs.apply_chat_template(messages, return_dict=False, **options)
            assert pair.ours.encode_chat(messages, **options) == expected
            assert pair.ours.render_chat(messages, **options) == pair.theirs.apply_chat_template(
                messages, tokenize=False, **options
            )


def test_bos_cannot_be_doubled_in_chat(data_dir: Path) -> None:
    # The template writes BOS and the tokenizer would add one.
    tokenizer = Tokenizer.from_folder(data_dir / "stories260k")
    template = "{{ bos_token }}{{ messages[0].content }}"
    with_template = type(tokenizer)(tokenizer_files(data_dir / "stories260k", {"default": template}))
    assert with_template.encode_chat([user("Once")]) == tokenizer.encode("Once")
    assert with_template.encode("<s>Once").count(1) == 2  # what encoding a rendered prompt as text would do


def tokenizer_files(folder: Path, templates: dict[str, str]) -> Any:
    from karat.text.tokenizer_files import read_tokenizer_files

    return read_tokenizer_files(folder)._replace(templates=templates)


def test_tools_have_a_template_of_their_own(data_dir: Path) -> None:
    templates = {"default": "plain", "tool_use": "tools", "rag": "rag"}
    tokenizer = Tokenizer(tokenizer_files(data_dir / "checkpoint", templates))
    assert tokenizer.render_chat(TURN) == "plain"
    assert tokenizer.render_chat(TURN, tools=[WEATHER]) == tokenizer.render_chat(TURN, tools=[]) == "tools"
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.render(TURN) == "plain"


def test_a_missing_or_broken_template_stops_chat_only(data_dir: Path) -> None:
    tokenizer = Tokenizer.from_folder(data_dir / "checkpoint")
    assert tokenizer.chat_template is None
    with pytest.raises(TemplateError, match="has no chat template; expected one"):
        tokenizer.encode_chat(TURN)
    tokenizer = Tokenizer(tokenizer_files(data_dir / "checkpoint", {"rag": "", "tool_use": "tools"}))
    with pytest.raises(TemplateError, match="has no chat template but those named rag, tool_use"):
        tokenizer.encode_chat(TURN)
    tokenizer = Tokenizer(tokenizer_files(data_dir / "checkpoint", {"default": "{% if %}"}))
    assert tokenizer.encode("Once")
    with pytest.raises(TemplateError, match="line 1, fails"):
        tokenizer.encode_chat(TURN)


@pytest.mark.parametrize("wrong", [-1, 2**32, 1.5, "1", None, [1]])
def test_what_is_no_id_is_refused(tokenizer: Tokenizer, wrong: Any) -> None:
    """Wherever ids come in: the library would raise OverflowError or TypeError."""
    for asked in (tokenizer.id_to_token, tokenizer.has_token, tokenizer.token_bytes):
        with pytest.raises(RequestError, match="no token id; expected integers from 0"):
            asked(wrong)
    for ids in ([wrong], [5, wrong], [wrong, 5]):
        with pytest.raises(RequestError, match="no token id; expected integers from 0"):
            tokenizer.decode(ids)
        with pytest.raises(RequestError, match="no token id; expected integers from 0"):
            tokenizer.decode_continuation(ids)
