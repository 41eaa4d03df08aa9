"""Strict JSON: the same values as the standard library's on good text, a named fault on all other."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.checkpoint import read_json, strict_json
from karat.checkpoint.strict_json import PIECE_LIMIT, JsonError, JsonStream
from karat.errors import CheckpointError, ConfigError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)


def stream(text: str | bytes) -> JsonStream:
    content = text.encode() if isinstance(text, str) else text
    return JsonStream(io.BytesIO(content), len(content))


class TestStream:
    @pytest.fixture(autouse=True, params=[1, 3, 1 << 20])
    def chunk(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(strict_json, "_CHUNK", request.param)

    @given(value=OBJECTS, ascii_only=st.booleans(), indent=st.none() | st.integers(0, 2))
    def test_members_are_those_of_json(self, value: dict[str, object], ascii_only: bool, indent: int | None) -> None:
        walk = stream(json.dumps(value, ensure_ascii=ascii_only, indent=indent))
        assert {name: walk.value() for name in walk.members()} == value
        walk.finish()

    @given(value=st.dictionaries(TEXT, st.dictionaries(TEXT, TEXT, max_size=3), max_size=3))
    def test_objects_within_objects(self, value: dict[str, dict[str, str]]) -> None:
        walk = stream(json.dumps(value))
        assert {name: {key: walk.string() for key in walk.members()} for name in walk.members()} == value
        walk.finish()

    def test_reads_no_further_than_told(self) -> None:
        file = io.BytesIO(b"{}DATA")
        walk = JsonStream(file, 2)
        assert list(walk.members()) == []
        walk.finish()
        assert file.read() == b"DATA"

    @pytest.mark.parametrize("limit", [3, 8, 50])
    def test_limit_of_a_piece(self, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
        """A piece within the limit is read whatever the chunks; one far beyond both is a fault."""
        monkeypatch.setattr(strict_json, "PIECE_LIMIT", limit)
        text = "x" * (limit - 2)
        walk = stream(f'{{"{text}": "{text}"}}')
        assert [walk.string() for _ in walk.members()] == [text]
        chunk = strict_json._CHUNK
        if chunk < 1000:
            walk = stream('{"' + "x" * 5000)
            with pytest.raises(
                JsonError, match=f"a string of more than {limit} characters, found '\"x+' at character 1"
            ):
                next(walk.members())

    def test_place_is_counted_over_chunks(self) -> None:
        walk = stream('{"a": 1,       "b": oops}')
        with pytest.raises(JsonError, match=r"expecting value, found 'oops\}' at character 20"):
            assert [walk.value() for _ in walk.members()]

    def test_file_that_ends_early(self) -> None:
        walk = JsonStream(io.BytesIO(b'{"a"'), 100)
        with pytest.raises(JsonError, match="the file ended while it was read"):
            list(walk.members())

    def test_failing_disk(self) -> None:
        class Broken(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                raise OSError(5, "Input/output error")

        with pytest.raises(JsonError, match="reading failed: Input/output error"):
            next(JsonStream(Broken(), 10).members())


def fault(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).isprintable()
    return str(caught.value)


class TestReadJson:
    def test_object(self, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_text(
            '\n{"a": [1, 2.5, null, true, "\\u00e9\\ud83d\\ude00"], "model_max_length": 1' + "0" * 30 + "}\n"
        )
        assert read_json(path) == {"a": [1, 2.5, None, True, "é😀"], "model_max_length": 10**30}

    def test_blanks(self, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_bytes(b' \t\r\n{\r\n\t"a": 1\r\n}\r\n')
        assert read_json(path) == {"a": 1}

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ("", "expecting value, found '' at character 0"),
            ("[1]", "holds [1]; expected a JSON object {…}"),
            ("null", "holds None; expected"),
            ('{"a": 1,}', "}' at character "),
            ('{"a": 1} x', "something follows the object, found 'x' at character 9"),
            ('{"a": {"b": 1, "b": 1}}', "the key 'b' comes twice in one object"),
            ('{"a": NaN}', "NaN is not JSON"),
            ('{"a": -Infinity}', "-Infinity is not JSON"),
            ('{"a": 1e999}', "the number '1e999' is beyond the range of a double"),
            ('{"a": ' + "1" * 41 + "}", "an integer of 41 digits"),
            ('{"a": "\\udc00"}', "half of a character (a lone surrogate)"),
            ('{"a": "\n"}', "invalid control character"),
            (b'{"a": "\xff"}', "not UTF-8"),
            (b"\xef\xbb\xbf{}", "expecting value, found '\\ufeff{}'"),
            (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
            ("[" * 200_000, "nested too deeply"),
            ('{"a":' * 200_000, "nested too deeply"),
            (" " * (PIECE_LIMIT + 1), f"has {PIECE_LIMIT + 1} bytes; expected at most {PIECE_LIMIT}"),
        ],
    )
    def test_fault(self, tmp_path: Path, content: bytes | str, expected: str) -> None:
        assert expected in fault(tmp_path / "config.json", content)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"config.json: cannot be opened \(No such file"):
            read_json(tmp_path / "config.json", CheckpointError)
