"""Which file of a repository a type means."""

import pytest

from karat.checkpoint.gguf.select import SelectionError, select

FILES = [
    "README.md",
    "fox-Q4_K_M.gguf",
    "fox-Q8_0.gguf",
    "fox.IQ4_XS.gguf",
    "mmproj-fox-Q8_0.gguf",
    "fox-f16.gguf",
    "big/fox-Q6_K-00001-of-00002.gguf",
    "big/fox-Q6_K-00002-of-00002.gguf",
    "Q5_K_M/fox-x-00001-of-00001.gguf",
    "fox-Q2_K-00001-of-00003.gguf",
    "fox-Q2_K-00003-of-00003.gguf",
    "a-Q3_K_S.gguf",
    "b-Q3_K_S.gguf",
]


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("Q4_K_M", ["fox-Q4_K_M.gguf"]),
        ("q4_k_m", ["fox-Q4_K_M.gguf"]),
        ("Q8_0", ["fox-Q8_0.gguf"]),
        ("iq4_xs", ["fox.IQ4_XS.gguf"]),
        ("F16", ["fox-f16.gguf"]),
        ("fox-f16", ["fox-f16.gguf"]),
        ("Q6_K", ["big/fox-Q6_K-00001-of-00002.gguf", "big/fox-Q6_K-00002-of-00002.gguf"]),
        ("Q5_K_M", ["Q5_K_M/fox-x-00001-of-00001.gguf"]),
        ("a-Q3_K_S", ["a-Q3_K_S.gguf"]),
    ],
)
def test_one_file_or_one_split(tag: str, expected: list[str]) -> None:
    assert select(FILES, tag) == expected
    assert select(list(reversed(FILES)), tag) == expected


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("Q4", "no GGUF files have the type Q4; expected one; there are Q5_K_M/fox-x, a-Q3_K_S"),
        ("4_K_M", "no GGUF files have the type 4_K_M"),
        ("Q3_K_S", "2 GGUF files have the type Q3_K_S; expected one; there are a-Q3_K_S, b-Q3_K_S"),
        ("Q2_K", "fox-Q2_K-00002-of-00003.gguf is missing; expected all 3 parts"),
    ],
)
def test_none_or_several(tag: str, expected: str) -> None:
    with pytest.raises(SelectionError) as caught:
        select(FILES, tag)
    assert expected in str(caught.value)


def test_latest_is_ollamas() -> None:
    assert select(FILES, "latest") == ["fox-Q4_K_M.gguf"]
    assert select(["a-Q8_0.gguf", "mmproj-a.gguf"], "latest") == ["a-Q8_0.gguf"]
    assert select(["a-latest.gguf", "a-Q4_K_M.gguf"], "latest") == ["a-latest.gguf"]
    with pytest.raises(SelectionError, match="2 GGUF files have the type latest"):
        select(["a-Q8_0.gguf", "a-F16.gguf"], "latest")


def test_no_files() -> None:
    with pytest.raises(SelectionError, match="there are none at all"):
        select(["config.json"], "Q8_0")
