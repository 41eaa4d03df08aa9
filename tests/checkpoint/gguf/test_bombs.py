"""What a small or sparse file can ask for: refused in one clear error, in less than 256 MB."""

import math
import struct
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from karat.checkpoint.gguf.header import (
    MAX_HEADER_BYTES,
    MAX_ITEMS,
    MAX_PAIRS,
    MAX_STRING_BYTES,
    MAX_TENSORS,
)
from karat.text.gguf_tokenizer import MAX_MERGES, MAX_TEXT_BYTES, MAX_TOKENS
from tests.checkpoint.gguf.builders import (
    ARCH,
    ARRAY,
    BOOL,
    F32,
    STRING,
    U8,
    U16,
    U32,
    array,
    build,
    header,
    info,
    kv,
    pair,
    pairs,
    tensors,
    text,
)
from tests.checkpoint.memory import refused_within_limit


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "content",
    [
        kv(array(STRING, MAX_ITEMS - 1, bytes(8 * (1 << 20)))),
        header(0, 20) + b"".join(pair(f"x{n}", STRING, "é" * (MAX_STRING_BYTES // 8)) for n in range(20)),
        header(0, MAX_PAIRS) + b"".join(pair(f"{n:05}" + "🙂" * 250, U8, 0) for n in range(MAX_PAIRS - 1)),
        header(MAX_TENSORS, 1) + ARCH + b"".join(info(f"{n:064}", [8], 0, 32 * n) for n in range(MAX_TENSORS)),
        kv(array(ARRAY, 1 << 20, struct.pack("<IQ", U8, 0) * (1 << 20))),
        kv(
            pair("text", STRING, "🙂" + "x" * (MAX_STRING_BYTES - 99)),
            array(BOOL, 31 << 20, bytes(31 << 20), "a"),
            array(STRING, 1 << 21, bytes(16 << 20), "b"),
            count=4,
        ),
    ],
    ids=["strings", "texts", "keys", "tensors", "arrays", "together"],
)
def test_small(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    refused_within_limit(path, "open_gguf")


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (kv(array(STRING, MAX_ITEMS - 1)), "expected a header of at most"),  # empty strings all along
        (header(0, MAX_PAIRS) + array(U8, 1 << 40), f"expected a header of at most {MAX_HEADER_BYTES} bytes"),
        (header(0, MAX_PAIRS) + array(STRING, 1 << 23, struct.pack("<Q", 1 << 39)), "expected a header of at most"),
        (
            build(
                pairs({"llama.attention.head_count": (U32, 1 << 31), "llama.attention.key_length": (U32, 64)}),
                [("blk.0.attn_q.weight", [1, 1 << 37], 0, b"")],
            ),
            "",
        ),
        (
            build(
                pairs({"llama.attention.key_length": (U32, 1 << 31)}),
                [tensors()[-1], ("rope_freqs.weight", [1 << 30], 0, b"")],
            ),
            "expected at most 65536",
        ),
    ],
)
def test_sparse(head: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(1 << 40)  # a terabyte
    message = refused_within_limit(path, "open_gguf")
    assert expected in message


@pytest.mark.parametrize("missing", [True, False])
def test_parts(missing: bool, tmp_path: Path) -> None:
    """Sparse ones, each with all the truth values that fit; the last is missing, or has too many tensors."""
    length = MAX_HEADER_BYTES - (1 << 16)
    for number in range(12 - missing):
        typed = {"split.no": (U16, number), "split.count": (U16, 12)}
        keys = [pair(key, *value) for key, value in typed.items()]
        with (tmp_path / f"a-{number + 1:05}-of-00012.gguf").open("wb") as file:
            file.write(header(0, 3) + b"".join(keys) + array(BOOL, length))
            file.truncate(1 << 27)
    message = refused_within_limit(tmp_path / "a-00001-of-00012.gguf", "open_gguf")
    assert ("expected 'a-00012-of-00012.gguf' beside it" if missing else "no general.architecture") in message


@pytest.mark.slow
def test_names_of_many_parts(tmp_path: Path) -> None:
    """More tensors in all than a file may have, and texts in every part."""
    texts = "🙂" + "x" * (MAX_STRING_BYTES - 9999)
    for number in range(5):
        keys = [pair("split.no", U16, number), pair("split.count", U16, 5), pair("x", STRING, texts)]
        made = [info(f"{number}.{n}", [8], 0, 32 * n) for n in range(MAX_TENSORS // 4)]
        head = header(len(made), len(keys)) + b"".join(keys + made)
        path = tmp_path / f"a-{number + 1:05}-of-00005.gguf"
        path.write_bytes(head + bytes(-len(head) % 32 + 32 * len(made)))
    message = refused_within_limit(tmp_path / "a-00001-of-00005.gguf", "open_gguf")
    assert f"brings the tensors of all parts to more than {MAX_TENSORS}" in message


def with_tokens(path: Path, tokens: Sequence[bytes], keys: list[bytes], kind: str, without: Sequence[str] = ()) -> None:
    """A file with a vocabulary that fits the embedding, which is sparse."""
    replaced = ("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type", *without)
    kept = [pair(*item) for item in pairs({"tokenizer.ggml.model": (STRING, kind)}) if item[0] not in replaced]
    kept += [array(STRING, len(tokens), b"".join(map(text, tokens)), "tokenizer.ggml.tokens"), *keys]
    made, offset = [], 0
    for name, dims, _, _ in tensors():
        dims = [8, len(tokens)] if name == "token_embd.weight" else dims
        made.append(info(name, dims, 0, offset))
        offset += 4 * math.prod(dims)
    with path.open("wb") as file:
        file.write(header(len(made), len(kept)) + b"".join(kept + made))
        file.truncate(file.tell() + offset + 32)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("count", "size", "kind", "expected"),
    [
        (MAX_TOKENS, 8, "llama", "has no tokenizer.ggml.scores for"),
        (MAX_TOKENS, 8, "gpt2", "has no tokenizer.ggml.merges"),
        (MAX_TOKENS, 8, "gpt2 with merges", "has the merge 'x'"),
        (MAX_TOKENS, 8, "gpt2 with many merges", f"expected at most {MAX_MERGES}"),
        (MAX_TOKENS + 1, 8, "llama", f"expected at most {MAX_TOKENS}"),
        (MAX_TEXT_BYTES // 128 + 1, 128, "llama", f"has tokens of more than {MAX_TEXT_BYTES} bytes"),
    ],
)
def test_tokens(count: int, size: int, kind: str, expected: str, tmp_path: Path) -> None:
    keys = []
    if "merges" in kind:
        num = MAX_MERGES + ("many" in kind)
        keys = [
            pair("tokenizer.ggml.pre", STRING, "gpt-2"),
            array(STRING, num, text("x") * num, "tokenizer.ggml.merges"),
        ]
    with_tokens(tmp_path / "a.gguf", [b"%0*d" % (size, n) for n in range(count)], keys, kind.split()[0])
    assert expected in refused_within_limit(tmp_path / "a.gguf", "tokenizer")


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("longest", "without", "expected"),
    [
        (17, (), f"in more than {MAX_MERGES} ways"),
        (17, ("tokenizer.ggml.bos_token_id",), "add_bos_token is in force without"),
        (13, ("tokenizer.ggml.unknown_token_id",), "has neither a token for unknown text nor one for every byte"),
    ],
)
def test_cuts(longest: int, without: Sequence[str], expected: str, tmp_path: Path) -> None:
    """All strings over two letters: every cut of each is a merge of SentencePiece's."""
    words = [bytes(word) for n in range(1, longest + 1) for word in product(b"ab", repeat=n)]
    tokens = [b"<unk>", b"<s>", b"</s>", *words]
    scores = array(F32, len(tokens), struct.pack(f"<{len(tokens)}f", *range(len(tokens))), "tokenizer.ggml.scores")
    with_tokens(tmp_path / "a.gguf", tokens, [scores], "llama", without)
    assert expected in refused_within_limit(tmp_path / "a.gguf", "tokenizer")


@pytest.mark.slow
def test_merges_of_which_the_last_is_wrong(tmp_path: Path) -> None:
    words = [bytes(word) for n in range(1, 16) for word in product(b"ab", repeat=n)]
    merges = [word[:cut] + b" " + word[cut:] for word in words for cut in range(1, len(word))]
    merges = [*(merges * (MAX_MERGES // len(merges) + 1))[: MAX_MERGES - 1], b"x"]
    keys = [
        pair("tokenizer.ggml.pre", STRING, "gpt-2"),
        array(STRING, len(merges), b"".join(map(text, merges)), "tokenizer.ggml.merges"),
    ]
    tokens = words + [b"%08d" % n for n in range(MAX_TOKENS - len(words))]
    with_tokens(tmp_path / "a.gguf", tokens, keys, "gpt2")
    assert "has the merge 'x'" in refused_within_limit(tmp_path / "a.gguf", "tokenizer")
