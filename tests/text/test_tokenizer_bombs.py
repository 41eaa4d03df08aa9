"""A tokenizer.json that would take all memory, all time or the process is a TokenizerError, soon and in little room.

Covers: karat.text.tokenizer_limits.
"""

import base64
import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest

from karat.errors import TokenizerError
from karat.text import Tokenizer
from karat.text.tokenizer_limits import MAX_STRING_BYTES, check_text, panics_as_errors
from tests.support.forks import Forks

MAX_SECONDS, MAX_BYTES = 15, 1 << 30  # of a child, its start included; of processor time, as the machine may be busy
PROGRAM = """
import resource, sys
from pathlib import Path
from karat.errors import TokenizerError
from karat.text import Tokenizer
for what, limit in ((resource.RLIMIT_AS, int(sys.argv[2])), (resource.RLIMIT_CPU, int(sys.argv[3]))):
    resource.setrlimit(what, (limit, limit))
try:
    tokenizer = Tokenizer.from_folder(Path(sys.argv[1]))
    ids = tokenizer.encode("a" * 50 + " ee!")
    tokenizer.decode(ids * 4)
    print("served", len(ids))
except TokenizerError as error:
    print("TokenizerError", error)
"""

FORKS = Forks("karat.text")


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(steps: list[dict[str, Any]], key: str) -> dict[str, Any]:
    return {"type": "Sequence", key: steps}


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def frame(num_pieces: int, num_ids: int) -> dict[str, Any]:
    token = {"id": "<f>", "ids": [0] * num_ids, "tokens": ["a"] * num_ids}
    pieces = [{"SpecialToken": {"id": "<f>", "type_id": 0}}] * num_pieces
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": pieces + text, "pair": text, "special_tokens": {"<f>": token}}


def table(text: str) -> dict[str, Any]:
    """SentencePiece's table of a trie that is none, with one text."""
    trie = bytes(range(1, 5)) * 4
    data = len(trie).to_bytes(4, "little") + trie + text.encode() + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


TEN = replace({"String": "a"}, "a" * 10)
BOMBS: dict[str, dict[str, Any]] = {
    "6 times tenfold": {"normalizer": sequence([TEN] * 6, "normalizers")},
    "20 times tenfold": {"normalizer": sequence([TEN] * 20, "normalizers")},
    "sequences in sequences": {"normalizer": sequence([sequence([TEN] * 3, "normalizers")] * 2, "normalizers")},
    "2 times 100,000": {"normalizer": sequence([replace({"String": "a"}, "a" * 100_000)] * 2, "normalizers")},
    "between all characters": {"normalizer": sequence([replace({"Regex": ""}, "aa")] * 9, "normalizers")},
    "1,000 steps": {"normalizer": sequence([{"type": "NFC"}] * 1000, "normalizers")},
    "prefix of 10 MB": {"normalizer": {"type": "Prepend", "prepend": "a" * 10**7}},
    "prefix of 9 KB": {"normalizer": {"type": "Prepend", "prepend": "a" * 9000}},
    "decoder": {"decoder": sequence([*[replace({"String": "e"}, "e" * 10)] * 12, {"type": "Fuse"}], "decoders")},
    "normalizer without end": {"normalizer": replace({"Regex": "(a+)+$"}, "b")},
    "normalizer without end, too": {"normalizer": replace({"Regex": "(a|a)*$"}, "b")},
    "cuts without end": {"pre_tokenizer": split("(a+)+$")},
    "damaged table": {"normalizer": table("b")},
    "table of nothing": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
    "table without its end": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAgICAgP//"}},
    "table that is not base 64": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}},
    "table of long texts": {"normalizer": sequence([table("b" * 300)] * 2, "normalizers")},
    "merges without the prefix": {"model": {"continuing_subword_prefix": "##"}},
    "length 0": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "pieces of 1 MB": {"model": {"continuing_subword_prefix": "#" * 10**6}},
    "pieces of 9 KB": {"model": {"continuing_subword_prefix": "#" * 9000}},
    "suffixes of 9 KB": {"model": {"end_of_word_suffix": "#" * 9000}},
    "frame of 9,000,000": {"post_processor": frame(3000, 3000)},
    "frame of 3,000": {"post_processor": frame(3000, 1)},
    "frame of 3,000 in a piece": {"post_processor": frame(1, 3000)},
    "text that comes often": {
        "post_processor": {**frame(1, 1), "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 3000}
    },
    "added token of 10 MB": {"added_tokens": "x" * 10**7},
    "added token of escapes": {"added_tokens": '"' * 10**7},
    "added token of 9 KB": {"added_tokens": "x" * 9000},
}


@pytest.fixture(scope="module")
def plain(data_dir: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((data_dir / "stories260k" / "tokenizer.json").read_text(encoding="utf-8"))
    return data


def run(folder: Path, content: dict[str, Any]) -> str:
    """What a child says of it, within MAX_BYTES of memory and MAX_SECONDS of processor time."""
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    out, err = FORKS.run(PROGRAM, str(folder), str(MAX_BYTES), str(MAX_SECONDS))
    assert not err, "the library panicked, and said so on stderr"
    return out


@pytest.mark.parametrize("name", BOMBS)
def test_refused_soon_and_in_little_memory(name: str, plain: dict[str, Any], tmp_path: Path) -> None:
    content = copy.deepcopy(plain)
    for key, value in BOMBS[name].items():
        if key == "model":
            content["model"] |= value
        elif key == "added_tokens":
            content[key].append({**content[key][0], "id": 512, "content": value})
        else:
            content[key] = value
    said = run(tmp_path, content)
    assert said.startswith("TokenizerError") and len(said) < 2000, said


def test_what_models_have_is_served(plain: dict[str, Any], tmp_path: Path) -> None:
    assert run(tmp_path, plain).startswith("served")
    plain = plain | {
        "normalizer": sequence(
            [
                {"type": "NFKC"},
                {"type": "Prepend", "prepend": "▁"},
                replace({"String": " "}, "▁"),
                replace({"Regex": " {2,}"}, " "),
            ],
            "normalizers",
        ),
        "post_processor": frame(2, 1),
    }
    assert run(tmp_path, plain).startswith("served")


def test_added_tokens_of_the_other_files_are_bounded_too(plain: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "x" * 10**6}))
    with pytest.raises(TokenizerError, match="added token of 1000000 characters"):
        Tokenizer.from_folder(tmp_path)


def test_strings_are_measured_quickly_and_escapes_are_no_ends() -> None:
    data = (b'["' + b"a" * 90 + b'","\\"]') * 400_000  # 40 MB
    start = time.process_time()
    check_text(data, "a file")
    assert time.process_time() - start < 3
    for string in (b"a" * (MAX_STRING_BYTES + 2), b'\\"' * MAX_STRING_BYTES):
        with pytest.raises(TokenizerError, match="strings of more than"):
            check_text(b'["' + string + b'"]', "a file")
    with pytest.raises(TokenizerError, match="has 5 strings of more than"):
        check_text(b'["' + b'","'.join([b"a" * 10_001] * 5) + b'"]', "a file")
    check_text(b"", "a file")
    check_text(b"0", "a file")


def test_only_what_the_library_gives_up_on_is_told() -> None:
    for error in (KeyboardInterrupt, ValueError, MemoryError):
        with pytest.raises(error), panics_as_errors("a text"):
            raise error
