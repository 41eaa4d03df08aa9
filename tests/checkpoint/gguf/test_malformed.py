"""Files that are wrong in one place each end in one clear error; so does whatever a flip of bytes makes.

Covers: karat.checkpoint.gguf.header, karat.checkpoint.gguf.values.
"""

import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from karat.checkpoint.gguf import read_header
from karat.checkpoint.gguf.header import (
    _OTHER_TYPES,
    MAX_ITEMS,
    MAX_NESTED,
    MAX_PAIRS,
    MAX_TENSORS,
    PLAIN_TYPES,
)
from karat.errors import CheckpointError, ConfigError, KaratError
from karat.models.opening import open_gguf
from karat.models.registry import find_weights, read_config
from karat.quant import GGML_FORMATS
from karat.text import Tokenizer
from tests.checkpoint.gguf.builders import (
    ARCH,
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U32,
    U64,
    Tensor,
    array,
    build,
    header,
    info,
    kv,
    pair,
    pairs,
    tensors,
    text,
    tiny,
)
from tests.support.drawn import examples

TINY = tiny()
HUGE = (1 << 64) - 1


def with_tensor(name: str, dims: list[int], kind: int = 0, data: bytes = b"") -> bytes:
    """The tiny model with one tensor in another form."""
    changed: list[Tensor] = [(name, dims, kind, data) if item[0] == name else item for item in tensors()]
    return build(pairs(), changed)


def infos(*raw: bytes, data: int = 256) -> bytes:
    """A file of one metadata pair and these tensor infos."""
    head = header(len(raw), 1) + ARCH + b"".join(raw)
    return head + bytes(-len(head) % 32) + bytes(data)


def nested(depth: int) -> bytes:
    return text("x") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", U8, 0)


def at(offset: int, new: bytes, content: bytes = TINY) -> bytes:
    return content[:offset] + new + content[offset + len(new) :]


def shift_offset(by: int) -> bytes:
    """The tiny model, whose second tensor is said to lie elsewhere."""
    old = info("blk.0.attn_norm.weight", [8], 0, 192)
    assert TINY.count(old) == 1
    return TINY.replace(old, info("blk.0.attn_norm.weight", [8], 0, 192 + by))


# Content, and what the error says of it.
MALFORMED: dict[str, tuple[bytes, str]] = {
    # the header
    "empty": (b"", "has 0 bytes; expected GGUF and a header"),
    "magic only": (b"GGUF", "has 4 bytes; expected GGUF and a header"),
    "magic of zeros": (at(0, bytes(4)), "it is truncated or no GGUF file"),
    "magic in lower case": (at(0, b"gguf"), "it is truncated or no GGUF file"),
    **{
        f"old file, {magic!r}": (at(0, magic), "it is an old GGML file of before August 2023: convert the original")
        for magic in (b"tjgg", b"lmgg", b"fmgg", b"algg", b"ggjt", b"ggml", b"ggla")
    },
    "a Modelfile": (b"FROM ./model.gguf\nPARAMETER temperature 0\n", "it is an Ollama Modelfile: give the file that"),
    "reversed magic": (at(0, b"FUGG"), "it is a big-endian GGUF file"),
    "a web page": (b"<!doctype html><html>", "it looks like a web page"),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"),
    "a pickle": (b"PK\x03\x04" + bytes(60), "it is a PyTorch (pickle) archive"),
    "version 0": (at(4, struct.pack("<I", 0)), "is GGUF version 0; expected 2 or 3"),
    "version 1": (at(4, struct.pack("<I", 1)), "is GGUF version 1, of 2023"),
    "version 4": (at(4, struct.pack("<I", 4)), "is GGUF version 4; expected 2 or 3: is there a newer Karat?"),
    "big-endian": (at(4, struct.pack(">I", 3)), "is big-endian"),
    "header cut in the version": (TINY[:6], "has 6 bytes; expected GGUF and a header"),
    "header cut in the counts": (TINY[:20], "which is truncated"),
    "too many tensors": (header(MAX_TENSORS + 1, 1) + ARCH, f"states {MAX_TENSORS + 1} tensors"),
    "2**64 - 1 tensors": (header(HUGE, 1) + ARCH, f"states {HUGE} tensors"),
    "too many keys": (header(0, MAX_PAIRS + 1) + ARCH, f"states {MAX_PAIRS + 1} metadata keys"),
    "2**63 keys": (header(0, 1 << 63) + ARCH, f"states {1 << 63} metadata keys"),
    "fewer keys than stated": (kv(ARCH, count=9), "metadata key 1 of 9 reaches byte"),
    # metadata
    "no architecture": (tiny({"general.architecture": None}), "has no general.architecture"),
    "key cut": (kv(ARCH[:12]), "which is truncated"),
    "key beyond the file": (kv(struct.pack("<Q", 1000) + b"x"), "which is truncated"),
    "key of 2**64 - 1 bytes": (kv(struct.pack("<Q", HUGE)), f"has a text of {HUGE} bytes; expected at most 1024"),
    "key too long": (kv(pair("x" * 1025, U8, 0)), "has a text of 1025 bytes; expected at most 1024"),
    "key that is not UTF-8": (kv(pair(b"\xff\xfe", U8, 0)), "has a text that is not UTF-8"),
    "key twice": (kv(ARCH, ARCH), "has the metadata key 'general.architecture' twice"),
    "type 13": (kv(text("x") + struct.pack("<I", 13)), "the value of 'x' has the type 13; expected 0 to 12"),
    "type 2**32 - 1": (kv(text("x") + struct.pack("<I", 0xFFFFFFFF)), "has the type 4294967295"),
    "value cut": (kv(text("x") + struct.pack("<IB", U32, 0)), "the value of 'x' reaches byte"),
    "truth value 2": (kv(text("x") + struct.pack("<IB", BOOL, 2)), "is the truth value 2; expected 0 or 1"),
    "truth values 0, 1, 9": (kv(array(BOOL, 3, b"\0\1\x09")), "holds truth values other than 0 and 1"),
    "string beyond the file": (kv(text("x") + struct.pack("<IQ", STRING, 99)), "which is truncated"),
    "string of 2**64 - 1 bytes": (kv(text("x") + struct.pack("<IQ", STRING, HUGE)), f"has a text of {HUGE} bytes"),
    "string of 2**63 - 1 bytes": (kv(text("x") + struct.pack("<IQ", STRING, HUGE >> 1)), "has a text of"),
    "string that is not UTF-8": (kv(pair("x", STRING, b"a\xc0")), "has a text that is not UTF-8"),
    "array of type 13": (kv(array(13, 1)), "is an array of the type 13"),
    "array of numbers beyond the file": (kv(array(U64, 9, bytes(71))), "which is truncated"),
    "array of 2**64 - 1 numbers": (kv(array(U32, HUGE)), "which is truncated"),
    "array whose bytes overflow 64 bits": (kv(array(U64, 1 << 61)), "which is truncated"),
    "array of strings beyond the file": (kv(array(STRING, 3, text("a") + text("b"))), "which is truncated"),
    "array with a string beyond the file": (kv(array(STRING, 1, struct.pack("<Q", HUGE))), "which is truncated"),
    "array of 2**40 strings": (kv(array(STRING, 1 << 40)), f"to more than {MAX_ITEMS}"),
    "array of 2**40 arrays": (kv(array(ARRAY, 1 << 40)), f"to more than {MAX_NESTED}"),
    "arrays nested too deep": (kv(nested(4)), "nests arrays 5 deep; expected at most 4"),
    "array of arrays of type 99": (kv(array(ARRAY, 1, struct.pack("<IQ", 99, 0))), "is an array of the type 99"),
    "alignment 0": (tiny({"general.alignment": (U32, 0)}), "general.alignment is 0; expected a power of 2"),
    "alignment 3": (tiny({"general.alignment": (U32, 3)}), "general.alignment is 3"),
    "alignment 2**31": (tiny({"general.alignment": (U32, 1 << 31)}), "general.alignment is 2147483648"),
    "alignment that is text": (tiny({"general.alignment": (STRING, "32")}), "general.alignment is '32'"),
    "alignment that is true": (tiny({"general.alignment": (BOOL, True)}), "general.alignment is True"),
    # tensors
    "tensor infos cut": (header(2, 1) + ARCH + info("a", [4], 0, 0), "tensor 1 of 2 reaches byte"),
    "name cut": (header(1, 1) + ARCH + struct.pack("<Q", 60) + b"ab", "which is truncated"),
    "name too long": (infos(info("x" * 65, [4], 0, 0)), "has a text of 65 bytes; expected at most 64"),
    "name that is not UTF-8": (infos(info(b"\x80", [4], 0, 0)), "has a text that is not UTF-8"),
    "name twice": (infos(info("a", [8], 0, 0), info("a", [8], 0, 32)), "has the tensor 'a' twice"),
    "no dimensions": (infos(info("a", [], 0, 0)), "has 0 dimensions; expected 1 to 4"),
    "5 dimensions": (infos(info("a", [1] * 5, 0, 0)), "has 5 dimensions; expected 1 to 4"),
    "2**32 - 1 dimensions": (infos(text("a") + struct.pack("<I", 0xFFFFFFFF)), "has 4294967295 dimensions"),
    "a dimension of 0": (infos(info("a", [4, 0], 0, 0)), "has the dimensions [4, 0]"),
    "a dimension of 2**64 - 1": (infos(info("a", [HUGE], 0, 0)), f"has the dimensions [{HUGE}]"),
    "dimensions that overflow": (infos(info("a", [1 << 32, 1 << 32], 0, 0)), "expected 1 to 2**63 - 1 elements"),
    "dimensions that overflow to 0": (infos(info("a", [1 << 32, 1 << 31, 2], 0, 0)), "expected 1 to 2**63 - 1"),
    "bytes that overflow": (infos(info("a", [1 << 62], 0, 0)), "which is truncated"),
    "type 4": (infos(info("a", [32], 4, 0)), "has the type 4, Q4_2, which ggml has dropped"),
    "type of integers": (infos(info("a", [32], 26, 0)), "has the type 26, I32, integers"),
    "type of activations": (infos(info("a", [32], 9, 0)), "has the type 9, Q8_1, which is for activations"),
    "type 99": (infos(info("a", [32], 99, 0)), "has the type 99, which is unknown; Karat reads F32, F16"),
    "rows that are no blocks": (infos(info("a", [33, 2], 2, 0)), "is Q4_0 with rows of 33; expected a multiple of 32"),
    "rows that are no K blocks": (infos(info("a", [896], 12, 0)), "is Q4_K with rows of 896"),
    "first offset not 0": (infos(info("a", [8], 0, 32)), "begins at offset 32 of the data; expected 0"),
    "offset not aligned": (shift_offset(4), "begins at offset 196 of the data; expected 192"),
    "offset one too far": (shift_offset(32), "begins at offset 224 of the data; expected 192"),
    "offset that overlaps": (shift_offset(-32), "begins at offset 160 of the data; expected 192"),
    "offset of another tensor": (shift_offset(-192), "begins at offset"),
    "offset of 2**64 - 32": (shift_offset((1 << 64) - 32 - 192), "begins at offset"),
    "data cut by a byte": (TINY[:-1], "which is truncated"),
    "data missing": (TINY[: TINY.index(tensors()[0][3])], "which is truncated"),
    "data shorter than its blocks": (infos(info("a", [256], 12, 0), data=143), "which is truncated"),
    # what the model is
    "another architecture": (tiny({"general.architecture": (STRING, "gpt2")}), "general.architecture='gpt2' is not"),
    "architecture that is a number": (tiny({"general.architecture": (U32, 1)}), "general.architecture is 1"),
    "an adapter": (tiny({"general.type": (STRING, "adapter")}), "general.type='adapter'"),
    "no tensors": (build(pairs()), "has no tensors: it is a vocabulary"),
    "no layers": (tiny({"llama.block_count": (U32, 0)}), "llama.block_count=0"),
    "2**32 - 1 layers": (tiny({"llama.block_count": (U32, 0xFFFFFFFF)}), "llama.block_count=4294967295"),
    "no context length": (tiny({"llama.context_length": None}), "has no llama.context_length"),
    "length that is text": (tiny({"llama.embedding_length": (STRING, "8")}), "is '8'; expected an integer"),
    "heads that do not divide": (tiny({"llama.attention.head_count": (U32, 3)}), "does not divide by"),
    "no heads": (tiny({"llama.attention.head_count": (U32, 0)}), "does not divide by"),
    "heads that differ": (
        tiny({"llama.attention.head_count": (ARRAY, (I32, [1, 2]))}),
        "is 1, 2; expected one number for all layers",
    ),
    "heads for no layer": (tiny({"llama.attention.head_count": (ARRAY, (I32, []))}), "expected one number for all"),
    "odd heads": (tiny({"llama.attention.key_length": (U32, 3)}), "a head of 3 values; expected an even number"),
    "value heads of another size": (tiny({"llama.attention.value_length": (U32, 8)}), "value_length=8 is not"),
    "rotary on a part of a head": (tiny({"llama.rope.dimension_count": (U32, 2)}), "dimension_count=2 is not"),
    "scaled experts": (tiny({"llama.expert_weights_scale": (F32, 2.5)}), "llama.expert_weights_scale=2.5"),
    "a window in words": (tiny({"llama.attention.sliding_window": (STRING, "9")}), "llama.attention.sliding_window"),
    "no context": (tiny({"llama.context_length": (U32, 0)}), "llama.context_length=0: expected a number above 0"),
    "eps of NaN": (
        tiny({"llama.attention.layer_norm_rms_epsilon": (F32, math.nan)}),
        "llama.attention.layer_norm_rms_epsilon=nan: expected a finite number above 0",
    ),
    "a base of infinity": (tiny({"llama.rope.freq_base": (F32, math.inf)}), "llama.rope.freq_base=inf: expected"),
    "an unknown key": (tiny({"llama.attention.frob": (F32, 0.5)}), "say --override llama.attention.frob=null"),
    "an unknown array": (tiny({"llama.frob": (ARRAY, (F32, [1, 2]))}), "llama.frob=[2 FLOAT32]"),
    "unknown RoPE scaling": (tiny({"llama.rope.scaling.type": (STRING, "longrope")}), "'longrope' is not supported"),
    "an attention factor": (tiny({"llama.rope.scaling.attn_factor": (F32, 2.0)}), "attn_factor=2.0 is not supported"),
    "another quantisation version": (tiny({"general.quantization_version": (U32, 1)}), "expected 2"),
    "more tokens than rows": (with_tensor("token_embd.weight", [8, 5], data=bytes(160)), "the embedding has 5 rows"),
    "a vocabulary of another size": (tiny({"llama.vocab_size": (U32, 7)}), "llama.vocab_size is 7"),
    "an unknown tensor": (
        build(pairs(), [*tensors(), ("blk.0.ffn_gate_inp.weight", [8], 0, bytes(32))]),
        "has 1 tensors that no llama model has: 'blk.0.ffn_gate_inp.weight' [8]",
    ),
    "factors that speed up": (
        build(pairs(), [*tensors(), ("rope_freqs.weight", [2], 0, struct.pack("<ff", 2, 0.9))]),
        "rope_freqs.weight has values from 0.9; expected finite ones of at least 1",
    ),
    "factors of another size": (
        build(pairs(), [*tensors(), ("rope_freqs.weight", [8], 0, bytes(32))]),
        "rope_freqs.weight has the shape [8]",
    ),
    "part 2 of a split": (
        tiny({"split.no": (U32, 1), "split.count": (U32, 2)}),
        "is part 2 of 2 of a split; expected the first part",
    ),
    "a split of 65535 parts": (tiny({"split.count": (U32, 65535)}), "is part 1 of 65535 of a split"),
}
# Read as a model, these miss or misshape what the metadata announces.
UNFIT: dict[str, tuple[bytes, str]] = {
    "a tensor too few": (build(pairs(), tensors()[:-1]), "1 missing"),
    "a transposed tensor": (with_tensor("blk.0.ffn_down.weight", [8, 32], data=bytes(1024)), "1 of another shape"),
    "a query of another size": (with_tensor("blk.0.attn_q.weight", [8, 7], data=bytes(224)), "1 of another shape"),
    "more layers than tensors": (tiny({"llama.block_count": (U32, 2)}), "9 missing"),
}


def refused(path: Path, content: bytes, function: Callable[[Path], object] = open_gguf) -> str:
    path.write_bytes(content)
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        function(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert len(message) < len(str(path)) + 600
    return message


def used(path: Path) -> None:
    """All that is read of a file before weights are loaded."""
    checkpoint = open_gguf(path)
    config = read_config(checkpoint.config)
    for weight in find_weights(config, checkpoint).values():
        assert weight.data.nbytes == weight.num_bytes
    tokenizer = Tokenizer.of(checkpoint)
    tokenizer.encode("a b", add_special_tokens=True)


def test_there_are_at_least_sixty() -> None:
    assert len(MALFORMED) >= 60


def test_the_tiny_model_is_right(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(TINY)
    used(tmp_path / "a.gguf")


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str, tmp_path: Path) -> None:
    content, expected = MALFORMED[name]
    message = refused(tmp_path / "a.gguf", content)
    assert expected in message
    assert message.isprintable()


@pytest.mark.parametrize("name", UNFIT)
def test_unfit(name: str, tmp_path: Path) -> None:
    content, expected = UNFIT[name]
    assert expected in refused(tmp_path / "a.gguf", content, used)


def test_what_is_said_of_other_types_is_of_none_that_is_read() -> None:
    assert not set(_OTHER_TYPES) & (set(GGML_FORMATS) | set(PLAIN_TYPES))


def test_truncated_anywhere(tmp_path: Path) -> None:
    """At every byte of the header, and at some of the data."""
    path = tmp_path / "a.gguf"
    start = TINY.index(tensors()[0][3])
    for length in [*range(start), *range(start, len(TINY), 97)]:
        refused(path, TINY[:length])


REWRITTEN = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(300)
)


class TestFlips:
    @REWRITTEN
    @given(flips=st.lists(st.tuples(st.integers(0, len(TINY) - 1), st.integers(0, 255)), min_size=1, max_size=4))
    @example(flips=[(4, 0)])
    def test_bytes(self, flips: list[tuple[int, int]], tmp_path: Path) -> None:
        """What is not refused gives weights of the sizes stated, and a tokenizer."""
        content = bytearray(TINY)
        for place, new in flips:
            content[place] = new
        try_to_use(tmp_path / "a.gguf", bytes(content))

    @REWRITTEN
    @given(cut=st.integers(0, len(TINY)), length=st.integers(0, 40), new=st.binary(max_size=40))
    def test_pieces(self, cut: int, length: int, new: bytes, tmp_path: Path) -> None:
        """Bytes taken out and put in."""
        try_to_use(tmp_path / "a.gguf", TINY[:cut] + new + TINY[cut + length :])

    @REWRITTEN
    @given(
        place=st.integers(8, len(TINY) - 8),
        number=st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, HUGE, HUGE - 31]),
    )
    def test_numbers(self, place: int, number: int, tmp_path: Path) -> None:
        """Every place may hold a count, a length or an offset at its limits."""
        try_to_use(tmp_path / "a.gguf", at(place, struct.pack("<Q", number)))


def try_to_use(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        used(path)
    except KaratError:
        return
    assert read_header(path).version in (2, 3)
