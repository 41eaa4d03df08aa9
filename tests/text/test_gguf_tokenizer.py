"""Tokenizers from GGUF metadata: llama.cpp's test vectors, and the models' own tokenizers on random Unicode.

Covers: karat.text.pre_tokenizers, karat.text.gguf_vocabulary, karat.text.sentence_piece.
"""

import math
import os
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from karat.checkpoint.gguf import read_header
from karat.checkpoint.gguf.writer import string, write_gguf
from karat.errors import CheckpointError, TokenizerError
from karat.text import IncrementalDetokenizer, Tokenizer
from karat.text.pre_tokenizers import PRE_TOKENIZERS
from tests.checkpoint.gguf.builders import ARRAY, BOOL, F32, I32, STRING, U32, tiny
from tests.support.seed import SEED

VOCABULARIES = ("deepseek-llm", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "qwen35")
NUM_STRINGS = 10_000 if "KARAT_LONG" in os.environ else 2_500
_MARK = "\n__ggml_vocab_test__\n"


def loaded(path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(read_header(path).metadata, path)


def random_strings(num: int) -> list[str]:
    """Strings of words, spaces, digits, scripts, marks and emoji; every plane, no surrogates."""
    print(f"KARAT_SEED={SEED}")
    rng = random.Random(SEED)
    words = (
        "the I'll DON'T 1 2024 3.14 é e\u0301 ﬁ 中文 日本 한국 русский ไทย हिन्दी 🙂 … !? () /* == ² Ⅷ ǅ ß İ <0x41> ▁"
    )
    spaces = [" of", "\n", "\r\n", "\t", "  ", "   ", " ", "\u200b", "\u3000", "\x00", "\x7f", "\u0300"]
    pieces = words.split() + spaces
    ranges = [
        (0x20, 0x7E),
        (0xA0, 0x24F),
        (0x300, 0x36F),
        (0x370, 0x52F),
        (0x590, 0x6FF),
        (0x900, 0xDFF),
        (0x2000, 0x2BFF),
        (0x3000, 0x9FFF),
        (0xAC00, 0xD7A3),
        (0xE000, 0xFFFD),
        (0x10000, 0x1FFFF),
        (0x20000, 0x10FFFF),
    ]

    def piece() -> str:
        return rng.choice(pieces) if rng.random() < 0.6 else chr(rng.randint(*rng.choice(ranges)))

    return ["".join(piece() for _ in range(rng.randint(0, 24))) for _ in range(num)]


def assert_same(got: Callable[[str], list[int]], expected: Callable[[str], list[int]], strings: list[str]) -> None:
    different = [text for text in strings if got(text) != expected(text)]
    assert not different, f"{len(different)} of {len(strings)}, for example {different[0]!a}"


@pytest.mark.parametrize("name", VOCABULARIES)
class TestVectors:
    @pytest.mark.drawn(3)
    def test_llama_cpp(self, name: str, data_dir: Path) -> None:
        """Each text gives llama.cpp's ids, except that it never normalises: there the ids are of the NFC text."""
        path = data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf"
        tokenizer = loaded(path)
        texts = Path(f"{path}.inp").read_text(encoding="utf-8").split(_MARK)
        lines = Path(f"{path}.out").read_text().split("\n")
        assert len(texts) <= len(lines) and len(texts) >= 46 and not any(lines[len(texts) :])
        num_compared = 0
        for text, line in zip(texts, lines, strict=False):
            ids = tokenizer.encode(text, add_special_tokens=False)
            if name in ("qwen2", "qwen35") and not unicodedata.is_normalized("NFC", text):
                assert ids == tokenizer.encode(unicodedata.normalize("NFC", text), add_special_tokens=False)
                continue
            assert ids == [int(number) for number in line.split()], ascii(text)
            num_compared += 1
        assert num_compared >= 46

    @pytest.mark.drawn(2)
    def test_round_trips(self, name: str, data_dir: Path) -> None:
        tokenizer = loaded(data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf")
        for text in random_strings(500):
            normal = unicodedata.normalize("NFC", text) if name.startswith("qwen") else text
            if "▁" in text and not tokenizer.is_byte_level:
                continue  # SentencePiece's own sign for a space
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == normal
            stream = IncrementalDetokenizer(tokenizer)
            assert "".join(map(stream.push, ids)) + stream.finish() == normal

    @pytest.mark.slow
    def test_added_letters_are_text(self, name: str, data_dir: Path) -> None:
        """DeepSeek LLM has letters of a byte-level alphabet among its added tokens; as bytes they would be no UTF-8."""
        tokenizer = loaded(data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf")
        letters = "øöúÿõ÷ûýÀùÁþü"
        assert (set(letters) <= set(tokenizer.added_tokens.values())) == (name == "deepseek-llm")
        for text in (letters, "Möbel für alle", "smørrebrød"):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == text
            assert not tokenizer.is_byte_level or tokenizer.decode_continuation(ids) == text


def renamed(name: str, vocabulary: str, data_dir: Path, folder: Path) -> Path:
    """A file with the tokens of another, that states this pre-tokenizer."""
    source = read_header(data_dir / "tokenizers" / f"ggml-vocab-{vocabulary}.gguf").metadata
    pairs = [(key, source.stored(key)) for key in source.values if key != "tokenizer.ggml.pre"]
    path = folder / f"{name}.gguf"
    write_gguf(path, [*pairs, ("tokenizer.ggml.pre", string(name))], [])
    return path


class TestOwnTokenizers:
    """Random strings, as the tokenizer of the same model that other code builds or loads."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("qwen2", "Qwen2Tokenizer"),
            ("qwen35", "Qwen3_5Tokenizer"),
            ("gemma-4", "GemmaTokenizer"),
            ("gpt-2", "GPT2Tokenizer"),
            ("olmo", "GPTNeoXTokenizer"),
        ],
    )
    def test_transformers(self, name: str, kind: str, data_dir: Path, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        path = data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf"
        if not path.exists():
            path = renamed(name, "gpt-2", data_dir, tmp_path)
        values = read_header(path).metadata.values
        tokens: Any = values["tokenizer.ggml.tokens"]
        merges: Any = values["tokenizer.ggml.merges"]
        expected = getattr(transformers, kind)(
            vocab={token: index for index, token in enumerate(tokens.strings())},
            merges=[tuple(merge.split(" ")) for merge in merges.strings()],
        )
        ours = loaded(path)
        assert_same(
            lambda text: ours.encode(text, add_special_tokens=False),
            lambda text: expected.encode(text, add_special_tokens=False),
            random_strings(NUM_STRINGS),
        )

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["llama-bpe", "phi-3"])
    def test_transformers_reading_gguf(self, name: str, data_dir: Path) -> None:
        """Where no class of transformers says it all, what it builds from the same file."""
        pytest.importorskip("torch", reason="transformers needs it to read GGUF")
        reading = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
        path = data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf"
        architecture, facts, _ = reading.get_gguf_tokenizer(str(path))
        expected, _ = reading.convert_gguf_tokenizer(architecture, facts)
        ours = loaded(path)
        assert_same(
            lambda text: ours.encode(text, add_special_tokens=False),
            lambda text: expected.encode(text, add_special_tokens=False).ids,
            random_strings(NUM_STRINGS),
        )

    @pytest.mark.peers
    def test_sentencepiece(self, data_dir: Path) -> None:
        """Llama 2's, by the sentencepiece library."""
        sentencepiece = pytest.importorskip("sentencepiece")
        folder = data_dir / "tokenizers"
        expected = sentencepiece.SentencePieceProcessor(str(folder / "llama2-sentencepiece" / "tokenizer.model"))
        ours = loaded(folder / "ggml-vocab-llama-spm.gguf")
        strings = [text for text in random_strings(NUM_STRINGS) if "\x00" not in text]
        assert_same(lambda text: ours.encode(text, add_special_tokens=False), expected.encode, strings)

    def test_stories(self, data_dir: Path) -> None:
        folder = data_dir / "stories260k"
        expected = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        ours = loaded(folder / "stories260k-f32.gguf")
        assert_same(ours.encode, lambda text: expected.encode(text).ids, random_strings(NUM_STRINGS))
        other = Tokenizer.from_folder(folder)
        assert (ours.special_ids, ours.vocab_size) == (other.special_ids, other.vocab_size)
        for ids in ([5, 300, 301], [1, 400, 2], [200, 3, 4], []):
            assert ours.decode(ids) == other.decode(ids)


def test_patterns_are_those_of_transformers() -> None:
    """By the name that files give, as far as it knows them."""
    reading = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    compared = [name for name in PRE_TOKENIZERS if name in reading.GGUF_PRE_TOKENIZER_SPLITS]
    assert len(compared) >= 9 and {"gpt-4o", "lfm2"} <= {*compared}
    for name in compared:
        assert PRE_TOKENIZERS[name].patterns == [reading.GGUF_PRE_TOKENIZER_SPLITS[name]], name


def test_released_files_of_every_family() -> None:
    """The names in the GGUF files that people have, as llama.cpp's converter writes them for these models."""
    written = {
        "gpt-oss-20b": "gpt-4o",
        "OLMoE-1B-7B": "olmo",
        "Seed-OSS-36B": "seed-coder",
        "Qwen3-30B-A3B": "qwen2",
        "Llama-3.2-1B": "llama-bpe",
        "Mistral-Small-3.2": "tekken",
        "granite-3.3-2b": "refact",
        "granite-4.0-micro": "dbrx",
        "SmolLM3-3B": "smaug-bpe",
        "SmolLM2-135M": "smollm",
        "DeepSeek-R1-Distill-Qwen-1.5B": "deepseek-r1-qwen",
    }
    assert {model: name for model, name in written.items() if name not in PRE_TOKENIZERS} == {}


def differs_in_llama_cpp(path: Path) -> Callable[[str], bool]:
    """Whether llama.cpp and we, given the vocabulary of a file, make other tokens of a text."""
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    from tools.peers.llama import tokeniser

    theirs, ours = tokeniser(path), loaded(path)
    return lambda text: theirs(text) != ours.encode(text, add_special_tokens=False)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("name", "vocabulary"),
    [
        ("dbrx", "llama-bpe"),
        ("smaug-bpe", "llama-bpe"),
        ("deepseek-r1-qwen", "qwen2"),
        ("refact", "gpt-2"),
        ("starcoder", "gpt-2"),
        ("smollm", "gpt-2"),
        ("olmo", "gpt-2"),
        ("gpt-4o", "gpt-2"),
        ("lfm2", "llama-bpe"),
        ("seed-coder", "qwen2"),
    ],
)
def test_other_names_on_a_vocabulary_that_is_here(name: str, vocabulary: str, data_dir: Path, tmp_path: Path) -> None:
    """Live: llama.cpp cuts as we do under names of which no vocabulary is here."""
    path = renamed(name, vocabulary, data_dir, tmp_path)
    strings = [text for text in random_strings(600) if unicodedata.is_normalized("NFC", text)]
    different = [*filter(differs_in_llama_cpp(path), strings)]
    assert not different, f"{len(different)} of {len(strings)}, for example {different[0]!a}"


@pytest.mark.peers
@pytest.mark.parametrize("name", VOCABULARIES)
def test_where_llama_cpp_differs(name: str, data_dir: Path) -> None:
    """Live: only Qwen's texts that are not NFC, and a few of DeepSeek LLM's (docs/gguf.md)."""
    differs = differs_in_llama_cpp(data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf")
    strings = random_strings(600)
    if name.startswith("qwen"):
        strings = [text for text in strings if unicodedata.is_normalized("NFC", text)]
    different = [*filter(differs, strings)]
    assert len(different) <= (len(strings) // 100 if name == "deepseek-llm" else 0), ascii(different[:3])


@pytest.mark.peers
@pytest.mark.parametrize("name", VOCABULARIES)
def test_where_llama_cpp_differs_on_special_tokens(name: str, data_dir: Path) -> None:
    """Live: only Qwen's </s>, which is an ordinary token, and spaces after Phi-3's (docs/gguf.md)."""
    path = data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf"
    differs, ours = differs_in_llama_cpp(path), loaded(path)
    tokens = [ours.id_to_token(token_id) or "" for token_id in sorted(ours.special_ids)]
    assert [token for token in tokens if differs(f"x{token}y")] == []
    spaced = {token for token in tokens if differs(f"x{token}  y")}
    if name == "phi-3":
        assert "<|end|>" in spaced and not spaced & {"<unk>", "<s>", "<|endoftext|>"}
    else:
        assert not spaced
    assert differs("a</s>b") == name.startswith("qwen")
    if name.startswith("qwen"):
        pieces = [ours.id_to_token(token_id) for token_id in ours.encode("a</s>", add_special_tokens=False)]
        assert pieces == ["a", "</", "s", ">"]


def refused(tmp_path: Path, changes: dict[str, Any], error: type[Exception] = TokenizerError) -> str:
    path = tmp_path / "a.gguf"
    path.write_bytes(tiny(changes))
    with pytest.raises(error) as caught:
        loaded(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


BPE: dict[str, Any] = {
    "tokenizer.ggml.model": (STRING, "gpt2"),
    "tokenizer.ggml.pre": (STRING, "qwen2"),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, ["<|end|>", "a", "b", "ab", "<tool>", "[unused]"])),
    "tokenizer.ggml.token_type": (ARRAY, (I32, [3, 1, 1, 1, 4, 5])),
    "tokenizer.ggml.merges": (ARRAY, (STRING, ["a b"])),
}


class TestRules:
    def test_added_control_and_unused_tokens(self, tmp_path: Path) -> None:
        (tmp_path / "a.gguf").write_bytes(tiny(BPE))
        tokenizer = loaded(tmp_path / "a.gguf")
        assert tokenizer.encode("ab<|end|>a<tool>b") == [3, 0, 1, 4, 2]
        assert tokenizer.special_ids == {0}
        assert tokenizer.decode([3, 0, 4]) == "ab<tool>"
        assert not tokenizer.has_token(5)
        assert tokenizer.special_tokens == {"bos_token": "a", "eos_token": "b", "unk_token": "<|end|>"}

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, [1, 5]),  # SentencePiece begins with BOS unless the file says otherwise
            ({"tokenizer.ggml.add_bos_token": (BOOL, False)}, [5]),
            ({"tokenizer.ggml.add_eos_token": (BOOL, True)}, [1, 5, 2]),
            ({"tokenizer.ggml.add_space_prefix": (BOOL, False)}, [1, 4]),
        ],
    )
    def test_bos_eos_and_prefix(self, changes: dict[str, Any], expected: list[int], tmp_path: Path) -> None:
        (tmp_path / "a.gguf").write_bytes(tiny(changes))
        tokenizer = loaded(tmp_path / "a.gguf")
        assert tokenizer.encode("a") == expected
        assert tokenizer.decode(expected) == "a"

    def test_pre_tokenizers_begin_with_bos_as_their_models_do(self, tmp_path: Path) -> None:
        for name, expected in (("llama-bpe", [1, 3]), ("tekken", [1, 3]), ("qwen2", [3]), ("smollm", [3])):
            (tmp_path / "a.gguf").write_bytes(tiny(BPE | {"tokenizer.ggml.pre": (STRING, name)}))
            assert loaded(tmp_path / "a.gguf").encode("ab") == expected

    def test_names_are_no_keys(self, tmp_path: Path) -> None:
        """BOS and EOS are put by their ids, whatever else has their texts."""
        tokens = ["<unk>", "<s>", "</s>", "a", "</s>", "<s>", "▁"]
        changes = {
            "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
            "tokenizer.ggml.token_type": (ARRAY, (I32, [2, 5, 5, 1, 3, 3, 1])),
            "tokenizer.ggml.bos_token_id": (U32, 5),
            "tokenizer.ggml.eos_token_id": (U32, 4),
            "tokenizer.ggml.scores": (ARRAY, (F32, [0.0] * 7)),
            "tokenizer.ggml.add_eos_token": (BOOL, True),
            "tokenizer.ggml.add_space_prefix": (BOOL, False),
        }
        (tmp_path / "a.gguf").write_bytes(tiny(changes))
        tokenizer = loaded(tmp_path / "a.gguf")
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (5, 4)
        assert tokenizer.encode("a") == [5, 3, 4]
        assert tokenizer.encode("<s>a</s>", add_special_tokens=False) == [5, 3, 4]
        assert tokenizer.special_ids == {0, 4, 5}
        # One text for both roles.
        changes |= {"tokenizer.ggml.token_type": (ARRAY, (I32, [2, 3, 3, 1, 3, 3, 1]))}
        (tmp_path / "b.gguf").write_bytes(tiny(changes | {"tokenizer.ggml.eos_token_id": (U32, 1)}))
        tokenizer = loaded(tmp_path / "b.gguf")
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (5, 1)
        assert tokenizer.encode("a") == [5, 3, 1]

    def test_doubled_and_empty_tokens(self, tmp_path: Path) -> None:
        """Of several ids with one text the last is made, as in llama.cpp; the others are that text too."""
        tokens = ["<|end|>", "a", "b", "ab", "a", "", "ab"]
        changes = {
            "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
            "tokenizer.ggml.token_type": (ARRAY, (I32, [3, 1, 1, 1, 1, 1, 1])),
            "tokenizer.ggml.bos_token_id": (U32, 0),
            "tokenizer.ggml.eos_token_id": (U32, 0),
        }
        (tmp_path / "a.gguf").write_bytes(tiny(BPE | changes))
        tokenizer = loaded(tmp_path / "a.gguf")
        assert tokenizer.encode("aab") == [4, 6]
        assert tokenizer.decode([1, 3, 5, 2, 4, 6]) == "aabbaab"
        assert [tokenizer.token_bytes(i) for i in (1, 4, 3, 5)] == [b"a", b"a", b"ab", b""]
        assert tokenizer.id_to_token(3) == "ab" and tokenizer.has_token(1) and not tokenizer.has_token(5)
        assert tokenizer.notes[:2] == (
            "2 tokens have the text of another: 'a' (1: read as 4), 'ab' (3: read as 6)",
            "1 tokens are empty; they stand for no text",
        )
        stream = IncrementalDetokenizer(tokenizer)
        assert "".join(map(stream.push, [1, 3, 2])) + stream.finish() == "aabb"

    @pytest.mark.parametrize("name", ["padding", "seperator", "mask"])
    def test_an_id_that_nothing_needs_may_name_no_token(self, name: str, tmp_path: Path) -> None:
        key = f"tokenizer.ggml.{name}_token_id"
        (tmp_path / "a.gguf").write_bytes(tiny({key: (U32, 4294967294)}))
        tokenizer = loaded(tmp_path / "a.gguf")
        assert tokenizer.notes == (f"{key}=4294967294 names no token (there are 6); nothing needs one",)
        (tmp_path / "a.gguf").write_bytes(tiny())
        assert tokenizer.encode("a") == loaded(tmp_path / "a.gguf").encode("a")

    @pytest.mark.parametrize("name", ["bos", "unknown"])
    def test_a_byte_level_vocabulary_needs_no_such_id(self, name: str, tmp_path: Path) -> None:
        key = f"tokenizer.ggml.{name}_token_id"
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        without: dict[str, Any] = BPE | {
            "tokenizer.ggml.tokens": (ARRAY, (STRING, alphabet)),
            "tokenizer.ggml.token_type": None,
            "tokenizer.ggml.merges": (ARRAY, (STRING, [])),
            "tokenizer.ggml.add_bos_token": (BOOL, False),
            key: None,
        }
        (tmp_path / "a.gguf").write_bytes(tiny(without))
        expected = loaded(tmp_path / "a.gguf")
        (tmp_path / "a.gguf").write_bytes(tiny(without | {key: (U32, 99999)}))
        found = loaded(tmp_path / "a.gguf")
        assert found.encode("a b") == expected.encode("a b") and "99999 names no token" in " ".join(found.notes)

    @pytest.mark.parametrize(
        "used",
        [
            {"tokenizer.ggml.bos_token_id": (U32, 99999), "tokenizer.ggml.add_bos_token": (BOOL, True)},
            {"tokenizer.ggml.bos_token_id": (U32, 99999), "tokenizer.chat_template": (STRING, "{{ bos_token }}")},
            {"tokenizer.ggml.model": (STRING, "llama"), "tokenizer.ggml.unknown_token_id": (U32, 99999)},
        ],
        ids=str,
    )
    def test_an_id_that_is_used_must_name_a_token(self, used: dict[str, Any], tmp_path: Path) -> None:
        no_bos: dict[str, Any] = {"tokenizer.ggml.add_bos_token": (BOOL, False)}
        kind = {} if "tokenizer.ggml.model" in used else BPE
        assert "99999; expected an id below 6" in refused(tmp_path, kind | no_bos | used)

    @pytest.mark.parametrize("name", ["bos", "unknown", "eot", "eom"])
    def test_minus_one_as_an_unsigned_number_is_no_id(self, name: str, tmp_path: Path) -> None:
        key = f"tokenizer.ggml.{name}_token_id"
        without: dict[str, Any] = {"tokenizer.ggml.add_bos_token": (BOOL, False), key: None}
        (tmp_path / "a.gguf").write_bytes(tiny(without))
        expected = loaded(tmp_path / "a.gguf").encode("aab")
        (tmp_path / "a.gguf").write_bytes(tiny(without | {key: (U32, 2**32 - 1)}))
        assert loaded(tmp_path / "a.gguf").encode("aab") == expected

    def test_keys_that_are_not_read_are_named(self, tmp_path: Path) -> None:
        changes = {
            "tokenizer.ggml.escape_whitespaces": (BOOL, False),
            "tokenizer.ggml.merges": (ARRAY, (STRING, ["a b"])),
            "tokenizer.ggml.fim_pre_token_id": (U32, 0),
        }
        (tmp_path / "a.gguf").write_bytes(tiny(changes))
        (note,) = loaded(tmp_path / "a.gguf").notes
        assert note.endswith("for this tokenizer: tokenizer.ggml.escape_whitespaces, tokenizer.ggml.merges")

    @pytest.mark.parametrize("stated", [None, "default", ""])
    def test_without_a_pre_tokenizer_it_is_llama_cpps(self, stated: str | None, tmp_path: Path) -> None:
        """Runs of punctuation, then GPT-2's words, then digits in threes: llama.cpp's rule where a file names none."""
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        changes = {
            "tokenizer.ggml.pre": None if stated is None else (STRING, stated),
            "tokenizer.ggml.tokens": (ARRAY, (STRING, [*alphabet, "12", "34", "123", ".1", "!?", "?!", "Ġa", "a!"])),
            "tokenizer.ggml.token_type": None,
            "tokenizer.ggml.merges": (ARRAY, (STRING, ["1 2", "3 4", "12 3", ". 1", "! ?", "? !", "Ġ a", "a !"])),
        }
        (tmp_path / "a.gguf").write_bytes(tiny(BPE | changes))
        tokenizer = loaded(tmp_path / "a.gguf")
        pieces = [tokenizer.id_to_token(i) for i in tokenizer.encode(" a!?. 1234.1")]
        assert pieces == ["Ġa", "!?", ".", "Ġ", "123", "4", ".", "1"]
        (note,) = tokenizer.notes
        told = {None: "missing", "": "empty"}.get(stated, stated)
        assert f"tokenizer.ggml.pre is {told}: texts are cut as llama.cpp does then" in note

    def test_templates(self, tmp_path: Path) -> None:
        template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}"
        changes = {"tokenizer.chat_template": (STRING, template), "tokenizer.chat_template.tool_use": (STRING, "tools")}
        (tmp_path / "a.gguf").write_bytes(tiny(changes))
        tokenizer = loaded(tmp_path / "a.gguf")
        assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "hi</s>"
        assert tokenizer.render_chat([{"role": "user", "content": "hi"}], tools=[{}]) == "tools"

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"tokenizer.ggml.model": None}, "has no tokenizer.ggml.model"),
            ({"tokenizer.ggml.model": (STRING, "no_vocab")}, "has no tokenizer.ggml.model"),
            ({"tokenizer.ggml.model": (STRING, "bert")}, "tokenizer.ggml.model is 'bert'"),
            (BPE | {"tokenizer.ggml.pre": (STRING, "gpt-5")}, "tokenizer.ggml.pre is 'gpt-5'"),
            (BPE | {"tokenizer.ggml.merges": None}, "has no tokenizer.ggml.merges"),
            (BPE | {"tokenizer.ggml.merges": (ARRAY, (STRING, ["a c"]))}, "has the merge 'a c'"),
            (BPE | {"tokenizer.ggml.merges": (ARRAY, (STRING, ["ab"]))}, "has the merge 'ab'"),
            ({"tokenizer.ggml.tokens": None}, "has no tokenizer.ggml.tokens"),
            ({"tokenizer.ggml.tokens": (ARRAY, (STRING, []))}, "has no tokenizer.ggml.tokens"),
            ({"tokenizer.ggml.tokens": (ARRAY, (STRING, [b"\xff", "a", "b", "c", "d", "e"]))}, "is not UTF-8"),
            ({"tokenizer.ggml.token_type": (ARRAY, (I32, [1, 2]))}, "has 2 token types for 6 tokens"),
            ({"tokenizer.ggml.token_type": (ARRAY, (I32, [1, 1, 1, 1, 1, 7]))}, "has a token of the type 7"),
            ({"tokenizer.ggml.bos_token_id": (U32, 6)}, "tokenizer.ggml.bos_token_id is 6; expected an id below 6"),
            ({"tokenizer.ggml.bos_token_id": None}, "add_bos_token is in force without tokenizer.ggml.bos_token_id"),
            ({"tokenizer.ggml.remove_extra_whitespaces": (BOOL, True)}, "remove_extra_whitespaces is set"),
            ({"tokenizer.ggml.scores": (ARRAY, (F32, [1.0]))}, "has 1 tokenizer.ggml.scores for 6 tokens"),
            ({"tokenizer.ggml.scores": (ARRAY, (F32, [0.0, 1.0, math.nan, 3.0, 4.0, 5.0]))}, "score of token 2 is NaN"),
            (
                {
                    "tokenizer.ggml.tokens": (ARRAY, (STRING, ["<unk>", "<s>", "a", "b", "ab", "ba"])),
                    "tokenizer.ggml.scores": (ARRAY, (F32, [-1000.0] * 6)),
                },
                "all scores of tokens are -1000, so that nothing says which are merged first",
            ),
            ({"tokenizer.ggml.scores": None}, "has no tokenizer.ggml.scores for 6 tokens"),
            ({"tokenizer.ggml.precompiled_charsmap": (ARRAY, (I32, [1]))}, "has a tokenizer.ggml.precompiled_charsmap"),
        ],
    )
    def test_what_is_refused(self, changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
        assert expected in refused(tmp_path, changes)

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"tokenizer.ggml.model": (U32, 1)}, "tokenizer.ggml.model is 1; expected a text"),
            ({"tokenizer.ggml.tokens": (STRING, "a")}, "tokenizer.ggml.tokens is 'a'; expected an array of STRING"),
            ({"tokenizer.ggml.bos_token_id": (STRING, "1")}, "tokenizer.ggml.bos_token_id is '1'; expected an integer"),
        ],
    )
    def test_wrong_metadata(self, changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
        assert expected in refused(tmp_path, changes, CheckpointError)
