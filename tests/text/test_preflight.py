"""What the tokenizers library panics on is told before; what models have is not refused."""

import base64
import json
import os
import struct
import tempfile
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from karat.text.pre_tokenizers import PRE_TOKENIZERS
from karat.text.preflight import has_damaged_table, is_damaged, lacks_prefix, may_give_up, stderr_held_back

O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"  # a class in a class


@pytest.mark.parametrize(
    "pattern",
    [
        O200K,
        BLOOM,
        " {2,}",
        r"(?=(\d{3})+(?!\d))",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
        r"[)(|*+]+[]a]+",
        r"\(\|+",
        r"(?#a|b)+",
        "",
        *(pattern for kind in PRE_TOKENIZERS.values() for pattern in kind.patterns),
    ],
)
def test_the_expressions_of_models_do_not_give_up(pattern: str) -> None:
    assert not may_give_up(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|a)*$",
        "(?:x{2,})+",
        "((a|b)c)*",
        "([a-z]*[0-9])+",
        "a*a*a*a*b",
        "(?:a|b){1,100}",
        "(?>a+)*?",
        r"(\p{L}+)*+",
        "[]a](b+)+",
    ],
)
def test_repeats_of_repeats_may(pattern: str) -> None:
    assert may_give_up(pattern)


def small_table(units: dict[int, int], texts: bytes = b"b\0") -> str:
    trie = struct.pack("<256I", *(units.get(i, 0) for i in range(256)))
    return base64.b64encode(len(trie).to_bytes(4, "little") + trie + texts).decode()


def node(label: int, offset: int, *, has_leaf: bool = False) -> int:
    return offset << 10 | has_leaf << 8 | label


ROOT, NODE, LEAF = {0: node(0, 1)}, 1 ^ ord("A"), 1 << 31


def test_a_right_table_is_taken_and_one_that_leads_out_is_damaged() -> None:
    right = ROOT | {NODE: node(ord("A"), NODE ^ 7, has_leaf=True), 7: LEAF}
    encoded = small_table(right)
    assert not is_damaged(encoded)
    assert normalizers.Precompiled(base64.b64decode(encoded)).normalize_str("xAy") == "xby"
    for wrong in (
        small_table(right | {7: LEAF | 3}),  # a text behind the last
        small_table(right, "é\0".encode()[1:]),  # the middle of a character
        small_table(right | {NODE: node(ord("A"), 256, has_leaf=True)}),
        small_table({0: node(0, 1 << 20)}),
        base64.b64encode(b"\x10\0\0\0abc").decode(),
        "",
        "?",
        None,
        3,
    ):
        assert is_damaged(wrong)
        assert has_damaged_table(json.dumps({"normalizer": [{"precompiled_charsmap": wrong}]}).encode())
    assert not has_damaged_table(json.dumps({"precompiled_charsmap": encoded}).encode())
    assert not has_damaged_table(b'{"precompiled_charsmap":')


def test_a_merge_without_the_prefix_is_found() -> None:
    backend = Tokenizer(models.BPE({"a": 0, "##b": 1, "ab": 2}, [("a", "##b")], continuing_subword_prefix="##"))
    data = backend.to_str().encode()
    assert lacks_prefix(data) is None
    assert lacks_prefix(data.replace(b'"##b"]', b'"b"]')) == "b"
    assert lacks_prefix(b'{"continuing_subword_prefix": "x", "model": 3}') is None


def test_stderr_is_kept_and_lost_only_where_something_raises(capfd: pytest.CaptureFixture[str]) -> None:
    with stderr_held_back():
        os.write(2, b"a warning\n")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "a warning\n"
    with pytest.raises(BaseException, match="retry-limit") as caught, stderr_held_back():
        pre_tokenizers.Split(Regex("(a+)+$"), "isolated").pre_tokenize_str("a" * 50 + " !")
    assert type(caught.value).__name__ == "PanicException"
    assert capfd.readouterr().err == ""
    os.write(2, b"here again\n")
    assert capfd.readouterr().err == "here again\n"


def test_a_closed_stderr_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(fd: int) -> Any:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(os, "dup", closed)
    with stderr_held_back(), tempfile.TemporaryFile() as file:
        assert file.fileno() > 2
