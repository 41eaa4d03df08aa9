"""The safetensors reader: bit-equal on every valid file, one clear error for every other."""

import json
import mmap
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors import deserialize

from karat.checkpoint import read_header, read_safetensors
from karat.checkpoint.safetensors import COMPUTED_TYPES, DTYPE_BITS, MAX_NAME_LEN
from karat.checkpoint.weights import PLAIN_BYTES
from karat.errors import CheckpointError
from tests.checkpoint.builders import NAMES, REWRITTEN, Stored, entry, f32, official, raw


@st.composite
def stored_tensors(draw: st.DrawFn) -> Stored:
    dtype = draw(st.sampled_from(sorted(COMPUTED_TYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    num_bytes = PLAIN_BYTES[dtype] * int(np.prod(shape, dtype=int))
    return dtype, shape, draw(st.binary(min_size=num_bytes, max_size=num_bytes))


def refused(path: Path, content: bytes) -> str:
    """The message with which the file is refused."""
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    return message


class TestValid:
    @REWRITTEN
    @given(tensors=st.dictionaries(NAMES, stored_tensors(), max_size=6), metadata=st.dictionaries(NAMES, st.text()))
    def test_bit_equal(self, tmp_path: Path, tensors: dict[str, Stored], metadata: dict[str, str]) -> None:
        path = tmp_path / "model.safetensors"
        if not tensors:
            metadata = {}  # with metadata alone, the package writes '{,"__metadata__":…'
        path.write_bytes(official(tensors, metadata or None))
        weights = read_safetensors(path)
        assert weights.keys() == tensors.keys()
        for name, (dtype, shape, data) in tensors.items():
            weight = weights[name]
            assert (weight.name, weight.dtype, weight.shape, weight.file) == (name, dtype, shape, path)
            assert weight.data.tobytes() == data
            assert weight.num_bytes == len(data)
            assert not weight.data.flags.writeable
        assert read_header(path).metadata == metadata

    @pytest.mark.filterwarnings("error")
    @REWRITTEN
    @given(stored=stored_tensors())
    @example(stored=("F32", (), b"\1\0\x80\x7f"))  # a signalling NaN
    @example(stored=("BF16", (), b"\x81\x7f"))
    def test_exact_arrays(self, tmp_path: Path, stored: Stored) -> None:
        path = tmp_path / "model.safetensors"
        path.write_bytes(official({"a": stored}))
        dtype, shape, data = stored
        size, letter = {"F64": (8, "d"), "F32": (4, "f"), "F16": (2, "e"), "BF16": (2, "")}[dtype]
        if dtype == "BF16":  # the upper half of a float32
            expected = [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), size)]
        else:
            expected = [value for (value,) in struct.iter_unpack(f"<{letter}", data)]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            expected = np.array(expected, np.float32)  # F64 is rounded once, whatever it is read as
        for target in (np.float32, np.float64):
            array = read_safetensors(path)["a"].to_array(np.dtype(target))
            assert array.dtype == target
            assert array.shape == shape
            np.testing.assert_array_equal(array.ravel(), np.array(expected, target))

    @pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
    def test_every_type_of_the_format(self, tmp_path: Path, dtype: str) -> None:
        data = bytes(DTYPE_BITS[dtype])  # 8 elements
        content = raw({"a": entry(0, len(data), dtype, [2, 4])}, data)
        ((name, theirs),) = deserialize(content)
        path = tmp_path / "trace.safetensors"
        path.write_bytes(content)
        ours = read_header(path).entries["a"]
        assert (name, ours.dtype, list(ours.shape)) == ("a", theirs["dtype"], theirs["shape"])
        assert (ours.begin, ours.end) == (len(content) - len(data), len(content))
        if dtype in COMPUTED_TYPES:
            assert read_safetensors(path)["a"].num_bytes == len(data)
        else:
            message = refused(path, content)
            assert f"tensor 'a' is {dtype}; expected F32, F16, BF16, F64: use the unquantised original" in message

    def test_all_unsupported_tensors_are_counted(self, tmp_path: Path) -> None:
        content = raw({f"t{i}": entry(i, i + 1, "F8_E4M3", [1]) for i in range(4)}, bytes(4))
        assert "'t0' is F8_E4M3 (and 3 more are of such types)" in refused(tmp_path / "a.safetensors", content)

    def test_unaligned_data(self, tmp_path: Path) -> None:
        path = tmp_path / "a.safetensors"
        values = np.array([1.5, -2.25], "<f4")
        path.write_bytes(raw(json.dumps({"a": entry(0, 8)}) + " ", values.tobytes()))
        weight = read_safetensors(path)["a"]
        assert weight.data.ctypes.data % 4  # else the test tests nothing
        np.testing.assert_array_equal(weight.to_array(np.dtype(np.float32)), values)

    def test_nothing_but_the_header_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        num_bytes = 1 << 40  # a sparse file of a terabyte
        header = raw({"a": entry(0, num_bytes)})
        path = tmp_path / "a.safetensors"
        with path.open("wb") as file:
            file.write(header)
            try:
                file.truncate(len(header) + num_bytes)
            except OSError:
                pytest.skip("the file system has no files of a terabyte")
        weight = read_safetensors(path)["a"]
        assert weight.num_bytes == num_bytes
        assert not weight.data[-8:].any()


HOLE = "belong to no tensor"
CASES: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "has 0 bytes; a safetensors file begins with the 8 bytes of its header's length"),
    "no whole length": (b"\x02\0\0", "has 3 bytes; a safetensors file begins with the 8 bytes of its header's length"),
    "only a length": ((2).to_bytes(8, "little"), "states a header of 2 bytes; a file of 8 bytes can have 2 to 0"),
    "header beyond the file": (
        (1000).to_bytes(8, "little") + b"{}",
        "states a header of 1000 bytes; a file of 10 bytes can have 2 to 2: it is truncated or no safetensors file",
    ),
    "header of 2**64 - 1": (b"\xff" * 8 + b"{}", "states a header of 18446744073709551615 bytes"),
    "header of 0": (bytes(8) + b"{}", "states a header of 0 bytes; a file of 10 bytes can have 2 to 2"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer, not the weights"),
    "zip archive": (b"PK\x03\x04" + bytes(40), "a PyTorch (pickle) archive"),
    "GGUF": (b"GGUF" + bytes(40), "a GGUF file"),
    "web page": (b"<!DOCTYPE html><html>", "a web page: the download failed"),
    "no JSON": (raw("{nonsense}"), "expected a string in double quotes, found 'nonsense}' at character 1"),
    "JSON cut short": (raw('{"a": {"dtype": "F32"'), "at character"),
    "no object": (raw("[1, 2]"), "expected '{', found '[1, 2]'"),
    "not UTF-8": (raw(b'{"\xff\xfe": {}}'), "not UTF-8"),
    "cut in a character": (raw(b'{"a\xc3'), "not UTF-8"),
    "lone surrogate": (raw(r'{"\ud800": {}}'), "lone surrogate"),
    "text after the header": (raw("{} {}"), "something follows the object, found '{}' at character 3"),
    "null after the header": (raw(b"{}\0\0"), "something follows the object"),
    "trailing comma": (raw('{"a": {},}'), "tensor 'a': expected an object of dtype, shape and data_offsets, found []"),
    "NaN": (raw('{"a": NaN}'), "NaN is not JSON"),
    "nested deeply": (raw('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"), "nested too deeply"),
    "integer of 5000 digits": (raw('{"a": {"dtype": ' + "9" * 5000 + "}}"), "an integer of 5000 digits"),
    "tensor twice": (
        raw('{"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "a": {}}', bytes(4)),
        "the key 'a' comes twice",
    ),
    "escaped name twice": (
        raw('{"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "\\u0061": {}}', bytes(4)),
        "the key 'a' comes twice",
    ),
    "field twice": (
        raw('{"a": {"dtype": "F32", "shape": [], "shape": [1], "data_offsets": [0, 4]}}', bytes(4)),
        "tensor 'a': the key 'shape' comes twice in one object",
    ),
    "metadata twice": (raw('{"__metadata__": {}, "__metadata__": {}}'), "the key '__metadata__' comes twice"),
    "metadata key twice": (raw('{"__metadata__": {"k": "", "k": ""}}'), "the key 'k' comes twice"),
    "metadata of numbers": (raw({"__metadata__": {"k": 1}}), "expected a string in double quotes, found '1}}'"),
    "metadata no object": (raw({"__metadata__": "text"}), "expected '{'"),
    "metadata without end": (
        raw({"__metadata__": {f"{i:06}": "x" * 4096 for i in range(2100)}}),
        "more than 8388608 characters of __metadata__",
    ),
    "entry no object": (raw({"a": [1]}), "tensor 'a': expected an object of dtype, shape and data_offsets, found [1]"),
    "field missing": (raw({"a": {"dtype": "F32", "shape": []}}), "found ['dtype', 'shape']"),
    "field unknown": (raw({"a": entry(0, 4) | {"strides": []}}, bytes(4)), "found ['data_offsets', 'dtype', 'shape',"),
    "name too long": (raw({"n" * (MAX_NAME_LEN + 1): entry(0, 4)}, bytes(4)), "has 193 characters; expected at most"),
    "type unknown": (raw({"a": entry(0, 4, "F33")}, bytes(4)), "tensor 'a': type 'F33' is unknown; the format has"),
    "type no string": (raw({"a": entry(0, 4) | {"dtype": 7}}, bytes(4)), "type 7 is unknown"),
    "type an endless object": (raw({"a": entry(0, 4) | {"dtype": {"k" * 999: 1}}}, bytes(4)), "type {'kkkk"),
    "type no string either": (raw({"a": entry(0, 4) | {"dtype": ["F32"]}}, bytes(4)), "type ['F32'] is unknown"),
    "shape negative": (raw({"a": entry(0, 4, shape=[-1])}, bytes(4)), "tensor 'a': shape [-1]; expected a list of"),
    "shape of fractions": (raw('{"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}', bytes(4)), "[1.0]"),
    "shape of booleans": (raw({"a": entry(0, 4) | {"shape": [True]}}, bytes(4)), "shape [True]; expected a list"),
    "shape no list": (raw({"a": entry(0, 4) | {"shape": 1}}, bytes(4)), "shape 1; expected a list of integers"),
    "shape beyond 63 bits": (raw({"a": entry(0, 4, shape=[1 << 63])}, bytes(4)), "expected a list of integers from 0"),
    "shape overflows": (raw({"a": entry(0, 4, shape=[1 << 40, 1 << 40])}, bytes(4)), "of F32 overflows 64 bits"),
    "shape wraps to fit": (raw({"a": entry(0, 4, shape=[1 << 62, 4, 1])}, bytes(4)), "of F32 overflows 64 bits"),
    "zero hides overflow": (raw({"a": entry(0, 0, shape=[0, 1 << 40, 1 << 40])}), "of F32 overflows 64 bits"),
    "too many dimensions": (raw({"a": entry(0, 4, shape=[1] * 9)}, bytes(4)), "9 dimensions; expected at most 8"),
    "size too small": (
        raw({"a": entry(0, 4, shape=[2])}, bytes(4)),
        "tensor 'a': 4 bytes of data; F32 of shape [2] takes 8",
    ),
    "size too large": (raw({"a": entry(0, 8, "BF16", [3])}, bytes(8)), "8 bytes of data; BF16 of shape [3] takes 6"),
    "size of half a byte": (raw({"a": entry(0, 1, "F4", [3])}, bytes(1)), "F4 of shape [3] takes 1.5"),
    "offsets reversed": (raw({"a": entry(0, 4) | {"data_offsets": [4, 0]}}, bytes(4)), "data_offsets [4, 0]; expected"),
    "offsets negative": (raw({"a": entry(0, 4) | {"data_offsets": [-4, 0]}}, bytes(4)), "data_offsets [-4, 0]"),
    "three offsets": (raw({"a": entry(0, 4) | {"data_offsets": [0, 4, 8]}}, bytes(8)), "data_offsets [0, 4, 8]"),
    "offsets no list": (raw({"a": entry(0, 4) | {"data_offsets": "0"}}, bytes(4)), "data_offsets '0'"),
    "beyond the file": (raw({"a": entry(0, 8)}, bytes(4)), "tensor 'a': its data ends at byte 77 of a file of 73"),
    "far beyond the file": (
        raw({"a": entry(0, 1 << 62, "U8", [1 << 62])}),
        "'a': shape [4611686018427387904] of U8 ov",
    ),
    "overlap": (
        raw({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
        "tensors 'a' and 'b' overlap at byte",
    ),
    "same place": (raw({"a": entry(0, 8), "b": entry(0, 8)}, bytes(8)), "tensors 'a' and 'b' overlap at byte"),
    "inside another": (raw({"a": entry(0, 12), "b": entry(4, 8)}, bytes(12)), "tensors 'a' and 'b' overlap at byte"),
    "empty inside another": (raw({"a": entry(0, 8), "b": entry(4, 4)}, bytes(8)), "tensors 'a' and 'b' overlap"),
    "hole at the start": (raw({"a": entry(4, 8)}, bytes(8)), f"4 bytes before tensor 'a' {HOLE}"),
    "hole between": (raw({"b": entry(8, 12), "a": entry(0, 4)}, bytes(12)), f"4 bytes before tensor 'b' {HOLE}"),
    "hole at the end": (raw({"a": entry(0, 4)}, bytes(5)), f"the last 1 bytes {HOLE}"),
    "data without tensors": (raw({}, bytes(3)), f"the last 3 bytes {HOLE}"),
    "hostile name": (raw({"\x1b[31m\n" * 20: entry(0, 8)}, bytes(4)), r"tensor '\x1b[31m\n"),
}


class TestMalformed:
    @pytest.mark.parametrize("case", CASES)
    def test_fault(self, tmp_path: Path, case: str) -> None:
        content, expected = CASES[case]
        message = refused(tmp_path / "model.safetensors", content)
        assert expected in message
        assert len(message) < len(str(tmp_path)) + 400

    def test_header_beyond_the_format(self, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        with path.open("wb") as file:
            file.write((100_000_001).to_bytes(8, "little") + b"{}")
            file.truncate(200_000_000)
        with pytest.raises(CheckpointError, match=r"100000001 bytes; .* can have 2 to 100000000: it is truncated"):
            read_safetensors(path)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"a: cannot be opened \(No such file or directory\); does it exist"):
            read_safetensors(tmp_path / "a")

    def test_name_with_null(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="cannot be opened"):
            read_safetensors(tmp_path / "a\0b")

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="is no regular file"):
            read_safetensors(tmp_path)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_pipe_does_not_block(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(CheckpointError, match="is no regular file"):
            read_safetensors(tmp_path / "pipe")

    @pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no devices here")
    def test_device(self) -> None:
        with pytest.raises(CheckpointError, match="is no regular file"):
            read_safetensors(Path("/dev/zero"))

    def test_file_shortened_before_it_is_mapped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "model.safetensors"
        path.write_bytes(official({"a": f32((4,))}))
        real = mmap.mmap

        def shorten_then_map(*args: int, **kwargs: int) -> mmap.mmap:
            os.truncate(path, 10)
            return real(*args, **kwargs)

        monkeypatch.setattr(mmap, "mmap", shorten_then_map)
        with pytest.raises(CheckpointError, match="cannot be mapped"):
            read_safetensors(path)
