"""Damaged and absurd safetensors files: read as the format's own reader does, or refused, with little memory."""

from collections.abc import Callable, Iterable
from itertools import chain, repeat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize

from karat.checkpoint import read_safetensors
from karat.checkpoint.safetensors import MAX_TENSORS
from karat.errors import CheckpointError
from tests.checkpoint.builders import NAMES, REWRITTEN, f32, official, raw
from tests.checkpoint.memory import numbered, refused_within_limit


def outcome(path: Path, content: bytes) -> dict[str, tuple[str, list[int], bytes]] | str:
    """What our reader makes of a file: its tensors, or its message."""
    path.write_bytes(content)
    try:
        weights = read_safetensors(path)
    except CheckpointError as fault:
        return str(fault)
    return {name: (weight.dtype, list(weight.shape), weight.data.tobytes()) for name, weight in weights.items()}


def official_outcome(content: bytes) -> dict[str, tuple[str, list[int], bytes]] | None:
    """What the safetensors package makes of it: the tensors, or None."""
    try:
        tensors = deserialize(content)
    except SafetensorError:
        return None
    return {name: (tensor["dtype"], tensor["shape"], bytes(tensor["data"])) for name, tensor in tensors}


# Where we are stricter than the format's own reader, knowingly.
STRICTER = (
    "expected F32, F16, BF16",
    "found 'null",
    "expected an object of dtype, shape and data_offsets",
    "comes twice",
)

SMALL = official(
    {"model.embed_tokens.weight": f32((3, 2)), "model.norm.weight": ("BF16", (2,), b"\x80\x3f\0\0"), "e": f32((0, 2))},
    {"format": "pt"},
)


class TestCorruption:
    """Random damage: the tensors as the safetensors package reads them, or a CheckpointError; never anything else."""

    def check(self, path: Path, content: bytes) -> None:
        ours, theirs = outcome(path, content), official_outcome(content)
        if isinstance(ours, str):
            assert theirs is None or any(reason in ours for reason in STRICTER), f"refused a valid file: {ours}"
        else:
            assert ours == theirs

    @pytest.mark.parametrize("flip", [1, 2, 4, 8, 16, 32, 64, 128, 255])
    def test_every_byte_flipped(self, tmp_path: Path, flip: int) -> None:
        for position in range(len(SMALL)):
            damaged = bytearray(SMALL)
            damaged[position] ^= flip
            self.check(tmp_path / "model.safetensors", bytes(damaged))

    def test_every_truncation_is_refused(self, tmp_path: Path) -> None:
        for length in range(len(SMALL)):
            assert isinstance(outcome(tmp_path / "model.safetensors", SMALL[:length]), str)

    @REWRITTEN
    @given(
        edits=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 2), st.binary(max_size=3)), min_size=1)
    )
    def test_bytes_replaced_inserted_removed(self, tmp_path: Path, edits: list[tuple[int, int, bytes]]) -> None:
        damaged = SMALL
        for position, num_removed, inserted in edits:
            damaged = damaged[:position] + inserted + damaged[position + num_removed :]
        self.check(tmp_path / "model.safetensors", damaged)

    JSON = st.recursive(
        st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
    SIZES = st.lists(st.integers(-1, 9) | st.sampled_from([1 << 31, 1 << 32, 1 << 62, 1 << 63, 1 << 64]), max_size=4)
    ENTRIES = st.fixed_dictionaries(
        {"dtype": st.sampled_from(["F32", "BF16", "F16", "U8", "F4"]) | JSON, "shape": SIZES | JSON},
        optional={"data_offsets": SIZES | JSON, "extra": JSON},
    )

    @REWRITTEN
    @given(
        header=st.dictionaries(NAMES | st.just("__metadata__"), ENTRIES | JSON, max_size=3), data=st.binary(max_size=40)
    )
    def test_headers_of_any_json(self, tmp_path: Path, header: dict[str, object], data: bytes) -> None:
        self.check(tmp_path / "model.safetensors", raw(header, data))

    @REWRITTEN
    @given(content=st.binary(max_size=200))
    def test_noise(self, tmp_path: Path, content: bytes) -> None:
        self.check(tmp_path / "model.safetensors", content)


EMPTY_TENSOR = b'"%(n)07d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
LONG_WIDE_NAME = '"\U0001f600%(n)0190d":{"dtype":"U8","shape":[1000,1000,0],"data_offsets":[0,0]}'.encode()

# Headers of up to 99 MB (the format allows 100), piece by piece, and what is said of them.
ABSURD: dict[str, tuple[Callable[[], Iterable[bytes]], str]] = {
    "lists": (lambda: chain([b'{"a": ['], repeat(b"[]," * 1000, 33_000)), "tensor 'a': expecting value"),
    "objects": (lambda: chain([b'{"a": {'], repeat(b'"":{},' * 1000, 16_500)), "a string of more than 4194304 char"),
    "depth": (lambda: chain([b'{"a": '], repeat(b"[" * 1000, 99_000)), "tensor 'a': nested too deeply"),
    "digits": (lambda: chain([b'{"a": '], repeat(b"9" * 1000, 99_000)), "digits; expected at most 40"),
    "one name": (lambda: chain([b'{"'], repeat(b"a" * 1000, 99_000)), "a string of more than 4194304 characters"),
    "escapes": (lambda: chain([b'{"'], repeat(b"\\u0061" * 1000, 16_500)), "at character"),
    "blanks": (lambda: repeat(b" " * 1000, 99_000), "expected '{', found '' at character 99000000"),
    "wide characters": (lambda: chain([b'{"a'], repeat("\U0001f600".encode() * 1000, 24_700)), "a string of more than"),
    "metadata": (
        lambda: numbered(b'"%(n)07d":""', 1_000_000, b'{"__metadata__": {'),
        "more than 8388608 characters of __metadata__",
    ),
    "metadata of one string": (
        lambda: chain([b'{"__metadata__": {"a": "'], repeat(b"x" * 1000, 98_000)),
        "a string of more than 4194304 characters",
    ),
    "shape": (
        lambda: chain([b'{"a": {"dtype":"F32","data_offsets":[0,0],"shape":['], repeat(b"0," * 1000, 49_000)),
        "tensor 'a': expecting",
    ),
    "tensors": (lambda: numbered(EMPTY_TENSOR, 400_000), "names more than 131072 tensors"),
    "long wide names": (lambda: numbered(LONG_WIDE_NAME, 200_000), "names more than 131072 tensors"),
    "valid up to the last": (lambda: numbered(LONG_WIDE_NAME, MAX_TENSORS, end=b"} x"), "something follows the object"),
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("case", ABSURD)
def test_refusing_takes_less_than_256_mb(tmp_path: Path, case: str) -> None:
    """Nonsense of many kinds, refused in a process of its own."""
    path = tmp_path / "model.safetensors"
    chunks, expected = ABSURD[case]
    with path.open("wb") as file:
        file.write(bytes(8))
        num_bytes = sum(map(file.write, chunks()))
        file.seek(0)
        file.write(num_bytes.to_bytes(8, "little"))
    assert expected in refused_within_limit(path, "read_safetensors")
