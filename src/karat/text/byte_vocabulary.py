"""Byte-level BPE of a folder without tokenizer.json: vocab.json with merges.txt, or tekken.json.

vocab.json and merges.txt do not say how a text is cut before its parts are merged: the class of the tokenizer does, as
in transformers. tokenizer_config.json names it; where it does not, the model's type in config.json says which it is.
A tekken.json (of mistral-common) has the pattern, and tokens as bytes whose ranks say what is merged
first.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from karat.checkpoint import read_json
from karat.checkpoint.files import open_regular
from karat.checkpoint.wording import shown
from karat.errors import NoTokenizerError, TokenizerError
from karat.text.pre_tokenizers import PRE_TOKENIZERS
from karat.text.tokenizer_limits import check_limits

MAX_TOKENS = 1 << 19
MAX_BYTES = 64 << 20  # Tekken's largest has 19 MB
_MAX_TOKEN_BYTES = 512  # every way to cut a token in two is tried
_END = "<|endoftext|>"


def _byte_alphabet() -> dict[str, int]:
    """The letter of each of the 256 bytes in byte-level BPE: printable ones as themselves, the others shifted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(shifted)}


BYTE_OF_CHAR: Mapping[str, int] = _byte_alphabet()
_LETTERS = {byte: letter for letter, byte in BYTE_OF_CHAR.items()}
# By class of the tokenizer: the pre-tokenizer, and the special tokens that tokenizer_config.json may leave out.
_CLASSES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "Qwen2Tokenizer": ("qwen2", {"unk_token": _END, "eos_token": _END, "pad_token": _END}),
    "Qwen3_5Tokenizer": ("qwen35", {"unk_token": _END, "eos_token": _END, "pad_token": _END}),
    "GPT2Tokenizer": ("gpt-2", {"unk_token": _END, "bos_token": _END, "eos_token": _END}),
    "GPTNeoXTokenizer": (
        "olmo",
        {"unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": "<|padding|>"},
    ),
}
_CLASS_OF_TYPE = {
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"), "Qwen2Tokenizer"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), "Qwen3_5Tokenizer"),
    "olmoe": "GPTNeoXTokenizer",
}
_FLAGS = ("add_prefix_space", "add_bos_token", "add_eos_token")


def read_merges(folder: Path, config: dict[str, Any]) -> Backend:
    """The tokenizer of vocab.json and merges.txt. Special tokens that its class has by default go into `config`.

    NoTokenizerError where the class does not say how texts are cut, TokenizerError for files that are damaged.
    """
    given = config.get("tokenizer_class") or _CLASS_OF_TYPE.get(_model_type(folder))
    name = str(given).removesuffix("Fast")
    flags = [flag for flag in _FLAGS if config.get(flag)]
    if name not in _CLASSES or flags:
        found = f"{flags[0]}=true" if name in _CLASSES else f"tokenizer_class {shown(given)}"
        raise NoTokenizerError(
            f"{folder} has vocab.json and merges.txt with {found}; expected tokenizer.json, or one of the classes "
            f"{', '.join(_CLASSES)} without {', '.join(_FLAGS)}; convert it once with the transformers library: "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    kind, defaults = _CLASSES[name]
    for role, token in defaults.items():
        config.setdefault(role, token)
    vocab = _read_object(folder / "vocab.json")
    if (
        not vocab
        or len(vocab) > MAX_TOKENS
        or any(type(i) is not int or not 0 <= i < MAX_TOKENS for i in vocab.values())
    ):
        raise TokenizerError(
            f"{folder / 'vocab.json'} has {len(vocab)} tokens; expected 1 to {MAX_TOKENS}, each with an id below that; "
            "fetch it again"
        )
    path = folder / "merges.txt"
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path} cannot be read: {str(error)[:200]}; fetch it again") from error
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    if (odd := next((merge for merge in merges if len(merge) != 2), None)) is not None:
        raise TokenizerError(f"{path} has the line {shown(' '.join(odd))}; expected two tokens; fetch it again")
    backend = _backend(vocab, [(merge[0], merge[1]) for merge in merges], path, takes_whole=False)
    chosen = PRE_TOKENIZERS[kind]
    backend.pre_tokenizer, normalizer = chosen.build(), chosen.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    check_limits(backend, str(folder))
    return backend


def _model_type(folder: Path) -> str:
    path = folder / "config.json"
    return str(read_json(path).get("model_type")) if path.is_file() else ""


def read_tekken(path: Path, config: dict[str, Any]) -> Backend:
    """The tokenizer of a tekken.json. BOS, EOS and the like go into `config`. TokenizerError for a damaged file."""
    data = _read_object(path)
    try:
        facts, listed = data["config"], data["special_tokens"]
        pattern, num_special = str(facts["pattern"]), int(facts["default_num_special_tokens"])
        num_tokens = int(facts["default_vocab_size"]) - num_special
        if not 0 < num_tokens <= MAX_TOKENS or not 0 <= num_special <= MAX_TOKENS:
            raise ValueError(f"{num_tokens} tokens beside {num_special} special ones")
        names = {int(token["rank"]): str(token["token_str"]) for token in listed}
        special = [names.get(rank, f"<SPECIAL_{rank}>") for rank in range(num_special)]
        tokens = [base64.b64decode(entry["token_bytes"], validate=True) for entry in data["vocab"][:num_tokens]]
        if [int(entry["rank"]) for entry in data["vocab"][:num_tokens]] != list(range(num_tokens)):
            raise ValueError("ranks that do not count from 0")
        if (
            len(set(tokens)) != num_tokens
            or len(set(special)) != num_special
            or max(map(len, tokens)) > _MAX_TOKEN_BYTES
        ):
            raise ValueError("a token twice, an empty list or a token that is too long")
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception as error:  # of wrong types, and of the library, which raises nothing narrower for a pattern
        raise TokenizerError(
            f"{path} is malformed: {str(error)[:200]}; expected a Tekken vocabulary with its special tokens; fetch it "
            "again, or take a tokenizer.json"
        ) from error
    ranks = {token: rank for rank, token in enumerate(tokens)}
    merges = [
        (ranks[token[:at]], ranks[token[at:]], rank)
        for token, rank in ranks.items()
        for at in range(1, len(token))
        if token[:at] in ranks and token[at:] in ranks
    ]
    merges.sort(key=lambda merge: (merge[2], merge[0], merge[1]))
    letters = [token.decode("latin-1").translate(_LETTERS) for token in tokens]
    vocab = {token: index for index, token in enumerate(special)}
    vocab |= {token: num_special + rank for rank, token in enumerate(letters)}
    backend = _backend(vocab, [(letters[left], letters[right]) for left, right, _ in merges], path, takes_whole=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    for role, token in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"), ("pad", "<pad>")):
        if token in special:
            config.setdefault(f"{role}_token", token)
    check_limits(backend, str(path))
    return backend


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file of at most MAX_BYTES, in which no key comes twice."""
    file, size = open_regular(path, TokenizerError)
    with file:
        if size > MAX_BYTES:
            raise TokenizerError(f"{path} has {size} bytes; expected at most {MAX_BYTES}; fetch it again")
        try:
            value = json.loads(file.read(), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise TokenizerError(f"{path} is no strict JSON: {str(error)[:200]}; fetch it again") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds {shown(value)}; expected a JSON object {{…}}; fetch it again")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _backend(vocab: Mapping[str, int], merges: list[tuple[str, str]], path: Path, *, takes_whole: bool) -> Backend:
    try:
        backend = Backend(models.BPE(vocab=dict(vocab), merges=merges, ignore_merges=takes_whole))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{path} does not fit its vocabulary: {str(error)[:200]}; fetch both again") from error
    backend.decoder = decoders.ByteLevel()
    return backend
