"""Traces are read back as they were written, by whomever, and refused where they are not what they say.

Covers: karat.check.trace.format, karat.check.trace.reading, karat.check.trace.writing.
"""

import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from karat.check.model.tokens import NOBODY, Tokens
from karat.check.trace.format import Trace, make_info
from karat.check.trace.reading import read_trace
from karat.check.trace.writing import write_trace
from karat.errors import TraceError

DOCS = Path(__file__).parents[3] / "docs" / "trace-format.md"


@given(data=st.data())
@settings(max_examples=30)
def test_written_traces_are_read_back_and_are_safetensors(data: st.DataObject, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("trace") / "x.trace"
    count = data.draw(st.integers(1, 6))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = {
        f"model.layers.{i}": rng.normal(size=(count, i + 1)).astype(data.draw(st.sampled_from(["f4", "f8", "f2"])))
        for i in range(data.draw(st.integers(0, 3)))
    }
    ids = data.draw(st.lists(st.integers(0, 500), min_size=count, max_size=count))
    info = make_info(ids, prompt="ä\n", rows={"lm_head": (0,)}, sampling={"temperature": 0}, kv_dtype="float16")
    write_trace(path, Trace(info, arrays))
    back = read_trace(path)
    assert back.info == info
    assert set(back.arrays) == set(arrays) == set(load_file(path))
    for name, array in arrays.items():
        assert back.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(back.arrays[name], array)
        np.testing.assert_array_equal(load_file(path)[name], array)


def test_the_ten_lines_of_the_documentation_write_a_trace(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    assert len([line for line in code.splitlines() if line]) <= 12
    scope: dict[str, Any] = {}
    exec(code, scope)  # noqa: S102 - the documentation's own code
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    scope["write_trace"](tmp_path / "x.trace", {"model.embed_tokens": x}, token_ids=[1, 403, 27], dtype="float32")
    trace = read_trace(tmp_path / "x.trace")
    np.testing.assert_array_equal(trace.arrays["model.embed_tokens"], x)
    assert (trace.info.token_ids, trace.info.positions, trace.info.steps) == ((1, 403, 27), (0, 1, 2), (0,))


def test_a_trace_that_is_larger_than_the_memory_is_opened(tmp_path: Path) -> None:
    """64 GB of scores, of which the file system keeps no byte: only what is asked for is read."""
    shape, num_bytes = [64, 16384, 16384], 64 * 16384 * 16384 * 4
    entries = {
        "__metadata__": {"karat_trace": json.dumps(GOOD)},
        "scores": {"dtype": "F32", "shape": shape, "data_offsets": [0, num_bytes]},
        "x": {"dtype": "F32", "shape": [3], "data_offsets": [num_bytes, num_bytes + 12]},
    }
    head = json.dumps(entries).encode()
    with (tmp_path / "t").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.seek(num_bytes, os.SEEK_CUR)
        file.write(np.arange(3, dtype="<f4").tobytes())
    trace = read_trace(tmp_path / "t")
    assert set(trace.arrays) == {"scores", "x"} and "scores" in trace.arrays and "y" not in trace.arrays
    assert trace.shape_of("scores") == tuple(shape)
    np.testing.assert_array_equal(trace.arrays["x"], [0, 1, 2])


def test_bfloat16_is_widened_exactly(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    save_torch(
        {"lm_head": x}, tmp_path / "x", metadata={"karat_trace": json.dumps({"version": 1, "token_ids": [1] * 3})}
    )
    np.testing.assert_array_equal(read_trace(tmp_path / "x").arrays["lm_head"], x.float().numpy())


GOOD = {"version": 1, "token_ids": [5, 6, 7]}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"version": 2}, "version 2"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, -1, 2]}, "token_ids: expected"),
        ({"token_ids": [1, True, 2]}, "token_ids: expected"),
        ({"positions": [0, 1]}, "positions has 2 entries for 3 tokens"),
        ({"steps": [1]}, "steps"),
        ({"steps": [0, 3]}, "steps"),
        ({"dtype": "int8"}, 'dtype="int8"'),
        ({"rows": {"lm_head": [3]}}, "rows of 'lm_head' go up to 3"),
        ({"rows": [1]}, "rows: expected an object"),
        ({"rows": {"lm_head@0": [1], "lm_head@1": [2]}}, "rows of 'lm_head@1' are not those of 'lm_head'"),
        ({"rows": {"lm_head@0": [1], "lm_head": [2]}}, "rows of 'lm_head@0' are not those of 'lm_head'"),
        ({"ranks": 0}, "ranks=0"),
        ({"version": None}, "version null"),
        ({"ranks": True}, "ranks=true; expected an integer"),
        ({"config": [None]}, "config=[null]; expected an object"),
        ({"prompt": 3}, "prompt=3; expected a text"),
        ({"tokenids": [1]}, "unknown key 'tokenids'"),
    ],
)
def test_descriptions_that_are_wrong_are_refused(tmp_path: Path, changes: Any, complaint: str) -> None:
    save_file({"x": np.zeros((3, 1), np.float32)}, tmp_path / "t", metadata={"karat_trace": json.dumps(GOOD | changes)})
    with pytest.raises(TraceError, match=re.escape(complaint)):
        read_trace(tmp_path / "t")


def test_rows_of_a_rank_are_rows_of_the_whole(tmp_path: Path) -> None:
    rows = {"lm_head@0": [2], "lm_head@1": [2]}
    about = json.dumps(GOOD | {"ranks": 2, "rows": rows})
    save_file({"x": np.zeros((3, 1), np.float32)}, tmp_path / "t", metadata={"karat_trace": about})
    assert read_trace(tmp_path / "t").rows_of("lm_head").tolist() == [2]


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "plain")
    with pytest.raises(TraceError, match="without 'karat_trace'"):
        read_trace(tmp_path / "plain")
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "bad", metadata={"karat_trace": "{"})
    with pytest.raises(TraceError, match="no JSON"):
        read_trace(tmp_path / "bad")
    save_file({"x": np.zeros(1, np.int8)}, tmp_path / "ints", metadata={"karat_trace": json.dumps(GOOD)})
    with pytest.raises(TraceError, match="'x' is I8"):
        read_trace(tmp_path / "ints")
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(TraceError, match="3 bytes"):
        read_trace(tmp_path / "short")
    (tmp_path / "text").write_bytes(b"no trace, but a line of text\n")
    with pytest.raises(TraceError, match=r"a header of .* or no safetensors file; a trace is .*: record it anew"):
        read_trace(tmp_path / "text")


def test_sequences_must_be_there_from_the_start() -> None:
    with pytest.raises(TraceError, match="sequence 1 has positions"):
        Tokens.of(make_info([1, 2, 3], sequences=(0, 1, 1), positions=(0, 3, 4)))
    with pytest.raises(TraceError, match=r"token 2 has position 0, after 1 in the same step.*sequences=\["):
        Tokens.of(make_info([1, 2, 3], positions=(0, 1, 0)))


def test_wrong_positions_of_an_engine_are_taken_and_kept_beside_the_right_ones() -> None:
    for stated, steps in (((1, 2, 3), (0,)), ((0, 1, 0), (0, 2)), ((0, 1, 1), (0,)), ((0, 1, 7), (0, 2))):
        tokens = Tokens.of(make_info([1, 2, 3], positions=stated, steps=steps))
        assert tokens.positions.tolist() == [0, 1, 2] and tokens.context == 3
        assert tokens.stated is not None and tuple(tokens.stated.tolist()) == stated
    assert Tokens.of(make_info([1, 2, 3])).stated is None


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.data())
def test_a_right_cache_gives_every_token_its_own_sequence(sequences: list[int], data: st.DataObject) -> None:
    count = len(sequences)
    steps = (0, *sorted(data.draw(st.sets(st.integers(1, count - 1), max_size=3)) if count > 1 else ()))
    tokens = Tokens.of(make_info(range(count), sequences=tuple(sequences), steps=steps))
    sources = tokens.sources()
    for token in range(count):
        for position in range(tokens.context):
            owners = [t for t in range(count) if sequences[t] == sequences[token] and tokens.positions[t] == position]
            assert sources[token, position] == (owners[0] if owners else NOBODY)
    for token in range(count):
        start = tokens.positions[token] - tokens.index_in_step[token]
        in_step = [
            t for t in range(count) if sequences[t] == sequences[token] and tokens.steps[t] == tokens.steps[token]
        ]
        assert start == min(tokens.positions[t] for t in in_step)
        assert tokens.step_len[token] == len(in_step)
