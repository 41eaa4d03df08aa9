"""Bodies in gzip and deflate: what zlib and gzip packed comes out as it was, within the limits."""

import gzip
import random
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.server.errors import ApiError
from karat.server.unpacking import MAX_RATIO, is_packed, unpacked
from tests.server.conftest import Running
from tests.support.seed import SEED


def raw_deflate(content: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-15)
    return packing.compress(content) + packing.flush()


def in_members(content: bytes) -> bytes:
    return gzip.compress(content[:7]) + gzip.compress(content[7:])


PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("GZIP", in_members),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
]


@pytest.mark.parametrize(("encoding", "pack"), PACKED)
@given(content=st.binary(max_size=400))
def test_what_was_packed_comes_out(encoding: str, pack: Callable[[bytes], bytes], content: bytes) -> None:
    assert is_packed(encoding)
    assert unpacked(pack(content), encoding, 1000) == content


@pytest.mark.parametrize(("encoding", "pack"), PACKED)
def test_large_bodies_come_out_in_pieces(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    content = random.Random(SEED).randbytes(3_000_000)
    assert unpacked(pack(content), encoding, len(content)) == content
    with pytest.raises(ApiError, match="unpacks to more than 2999999 bytes") as caught:
        unpacked(pack(content), encoding, len(content) - 1)
    assert caught.value.status == 413


@pytest.mark.parametrize(("encoding", "pack"), PACKED)
@given(content=st.binary(min_size=20, max_size=60), at=st.integers(0, 100), by=st.integers(1, 255))
def test_what_is_cut_or_damaged_is_a_400(
    encoding: str, pack: Callable[[bytes], bytes], content: bytes, at: int, by: int
) -> None:
    packed = pack(content)
    for wrong in (packed[: at % len(packed)], packed + b"\0a"):
        if not wrong or (pack is in_members and len(wrong) == len(gzip.compress(content[:7]))):
            continue
        with pytest.raises(ApiError, match="pack it again") as caught:
            unpacked(wrong, encoding, 1000)
        assert caught.value.status == 400
    spoiled = bytearray(packed)
    spoiled[at % len(packed)] ^= by
    with suppress(ApiError):  # nothing else is raised
        unpacked(bytes(spoiled), encoding, 1000)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("encoding", "pack"), PACKED)
def test_a_bomb_is_not_unpacked(encoding: str, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    bomb, made = pack(b"a" * 50_000_000), []
    original = zlib.decompressobj

    class Watched:
        def __init__(self, kind: int) -> None:
            self.stream = original(kind)

        def decompress(self, rest: bytes, most: int) -> bytes:
            part = self.stream.decompress(rest, most)
            made.append(len(part))
            return part

        def __getattr__(self, name: str) -> object:
            return getattr(self.stream, name)

    monkeypatch.setattr("karat.server.unpacking.zlib.decompressobj", Watched)
    with pytest.raises(ApiError, match=f"more than {MAX_RATIO} times its {len(bomb)} bytes") as caught:
        unpacked(bomb, encoding, 100_000_000)
    assert caught.value.status == 413 and sum(made) < len(bomb) * MAX_RATIO + (2 << 20)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress", "gzip;q=1"])
def test_unknown_encodings_are_a_415(encoding: str) -> None:
    with pytest.raises(ApiError, match="expected gzip, deflate or none") as caught:
        is_packed(encoding)
    assert caught.value.status == 415
    assert not is_packed("") and not is_packed("Identity")


def test_every_route_takes_packed_bodies(server: Running) -> None:
    turns = b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "temperature": 0}'
    plain = server.ask("/v1/chat/completions", turns)
    for encoding, pack in PACKED:
        answer = server.ask("/v1/chat/completions", pack(turns), content_encoding=encoding)
        assert answer.status == 200 and answer.json["choices"] == plain.json["choices"]
    for route in ("/v1/messages", "/tokenize", "/v1/responses", "/v1/receipts/verify"):
        answer = server.ask(route, gzip.compress(b"a" * 400_000), content_encoding="gzip")
        assert answer.status == 413, answer.content
        assert server.ask(route, b"{}", content_encoding="br").status == 415
        assert server.ask(route, b"{}", content_encoding="gzip").status == 400
