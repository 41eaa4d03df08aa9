"""A tokenizer of the `tokenizers` library as the metadata of a GGUF file, where GGUF can express it."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers.models import BPE

from karat.checkpoint.gguf.writer import numbers, scalar, string, strings
from karat.checkpoint.wording import listed, shown
from karat.config import ModelConfig
from karat.convert.metadata import Pairs
from karat.errors import TokenizerError
from karat.models.end_tokens import stated_end_ids
from karat.models.families import FAMILIES
from karat.text.gguf_tokenizer import SPACE_PREFIX
from karat.text.pre_tokenizers import PRE_TOKENIZERS
from karat.text.sentence_piece import ranked_merges
from karat.text.tokenizer_files import TokenizerFiles

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
_GPT2 = PRE_TOKENIZERS["gpt-2"].patterns[0]
_DIGIT = PRE_TOKENIZERS["smollm"].patterns[0]
_PREPEND = {"type": "Prepend", "prepend": "▁"}
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_PREFIX, _NO_PREFIX = (("tokenizer.ggml.add_space_prefix", scalar("BOOL", has)) for has in (True, False))
_ROLES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
    "mask_token": "mask",
}
_ENDS = ("eos", "eot", "eom")  # the keys of tokens that end a text


def tokenizer_pairs(
    files: TokenizerFiles, config: ModelConfig, generation_config: Mapping[str, object] | None = None
) -> tuple[Pairs, list[str]]:
    """The metadata pairs, and warnings of what they leave out. TokenizerError for a tokenizer GGUF cannot express.

    The tokens that end a text are the same as for the loaded folder: the tokenizer's own, and those of
    `generation_config` or `config`. Raises ConfigError if they have a wrong type.
    """
    if files.merging is not None:
        raise _unsupported("pieces whose scores tie, of which no order of merges is right")
    state = json.loads(files.backend.to_str())
    model = state["model"]
    if model["type"] != "BPE" or model.get("dropout") or model.get("end_of_word_suffix"):
        raise _unsupported(f"a {model['type']} model")
    merges = [tuple(m.split(" ") if isinstance(m, str) else m) for m in model["merges"]]
    tokens, types = _tokens(state, model, config.vocab_size)
    name, lost = "gpt2", list[str]()
    if model["byte_fallback"]:
        kind, lost = _space_prefix(state, merges)
        if FAMILIES[config.model_type].gguf.states_merges and kind == [_NO_PREFIX]:
            name = "gemma4"
            kind = [*kind, _stated(merges)]
        else:
            name = "llama"
            kind = [*kind, ("tokenizer.ggml.scores", numbers("FLOAT32", _scores(tokens, types, merges)))]
    else:
        kind = _byte_level(state, model, tokens, merges)
    pairs = [
        ("tokenizer.ggml.model", string(name)),
        *kind,
        ("tokenizer.ggml.tokens", strings(tokens)),
        ("tokenizer.ggml.token_type", numbers("INT32", types)),
    ]
    special, left_out = _special(files, config, generation_config, tokens)
    pairs += special
    pairs += [
        ("tokenizer.chat_template" if name == "default" else f"tokenizer.chat_template.{name}", string(source))
        for name, source in files.templates.items()
    ]
    return pairs, [*lost, *left_out, *_left_out(state)]


def no_tokenizer_pairs(
    config: ModelConfig, generation_config: Mapping[str, object] | None = None
) -> tuple[Pairs, list[str]]:
    """The metadata pairs of a model without a tokenizer, which are its end tokens and BOS, and warnings."""
    ends = _ends(config, generation_config, None)
    told: list[str] = []
    if len(ends) > len(_ENDS):
        told.append(f"GGUF has room for {len(_ENDS)} tokens that end a text: it goes on after {ends[len(_ENDS) :]}")
    return [("tokenizer.ggml.model", string("none")), *_role_pairs({"bos": config.bos_token_id}, ends)], told


def _tokens(state: Mapping[str, Any], model: Mapping[str, Any], num_rows: int) -> tuple[list[str], list[int]]:
    """A token and its type for every row of the embedding. Rows without a token get a placeholder of type unused."""
    by_id: dict[int, tuple[str, int]] = {}
    for token, index in model["vocab"].items():
        by_id[index] = token, _BYTE if model["byte_fallback"] and _BYTE_TOKEN.fullmatch(token) else _NORMAL
    for token in state["added_tokens"]:
        by_id[token["id"]] = token["content"], _CONTROL if token["special"] else _USER_DEFINED
    if (unknown := model.get("unk_token")) is not None and unknown in model["vocab"]:
        by_id[model["vocab"][unknown]] = unknown, _UNKNOWN
    if by_id and max(by_id) >= num_rows:
        raise TokenizerError(f"the token {max(by_id)} has no row in the embedding, which has {num_rows}; expected one")
    known = {token for token, _ in by_id.values()}
    for index in range(num_rows):
        if index not in by_id:
            name = f"[PAD{index}]"
            while name in known:
                name = f"[{name}]"
            by_id[index] = name, _UNUSED
    listed = [by_id[index] for index in range(num_rows)]
    return [token for token, _ in listed], [kind for _, kind in listed]


def _byte_level(
    state: Mapping[str, Any], model: Mapping[str, Any], tokens: Sequence[str], merges: Sequence[tuple[str, str]]
) -> Pairs:
    patterns = _patterns(state["pre_tokenizer"])
    normalizer = state["normalizer"]
    nfc = normalizer == {"type": "NFC"}
    if normalizer is not None and not nfc:
        raise _unsupported(f"the normalizer {normalizer['type']}")
    takes_whole = bool(model["ignore_merges"])
    names: dict[bool, str] = {}
    for name, kind in PRE_TOKENIZERS.items():
        if (list(kind.patterns), kind.nfc) == (patterns, nfc):
            names.setdefault(kind.takes_whole, name)
    if takes_whole not in names and names and _all_are_merged(state, merges):
        takes_whole = not takes_whole  # the same ids
    if takes_whole in names:
        return [("tokenizer.ggml.pre", string(names[takes_whole])), _stated(merges)]
    raise _unsupported(f"a pre-tokenizer without a name in GGUF (it cuts at {patterns or 'nothing'})")


def _stated(merges: Sequence[tuple[str, str]]) -> tuple[str, bytes]:
    return "tokenizer.ggml.merges", strings([f"{left} {right}" for left, right in merges])


def _all_are_merged(state: Mapping[str, Any], merges: Sequence[tuple[str, str]]) -> bool:
    """Whether merging gives every token from its own text, so that taking pieces whole changes nothing."""
    vocab: dict[str, int] = state["model"]["vocab"]
    added = {token["content"] for token in state["added_tokens"]}  # cut out of a text before
    merging = BPE(vocab=vocab, merges=list(merges))
    return all(
        token in added or [part.id for part in merging.tokenize(token)] == [index] for token, index in vocab.items()
    )


def _patterns(state: Mapping[str, Any] | None) -> list[str]:
    """The regular expressions that a pre-tokenizer cuts at, in order, before its byte-level step."""
    steps = [] if state is None else state["pretokenizers"] if state["type"] == "Sequence" else [state]
    patterns: list[str] = []
    for step in steps:
        match step:
            case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
                patterns.append(pattern)
            case {"type": "Digits", "individual_digits": True}:
                patterns.append(_DIGIT)
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": bool(use_regex)} if step is steps[-1]:
                return patterns + [_GPT2] * use_regex
            case _:
                break
    raise _unsupported(f"the pre-tokenizer {' > '.join(step['type'] for step in steps) or 'none'}")


def _space_prefix(state: Mapping[str, Any], merges: Sequence[tuple[str, str]]) -> tuple[Pairs, list[str]]:
    """How SentencePiece writes spaces, and which texts get one before them; and warnings."""
    normalizer, cuts = state["normalizer"], state["pre_tokenizer"]
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    if steps in ([_PREPEND, _REPLACE], [_REPLACE]) and cuts in (None, _AT_SPACES):  # of which none are left
        return [_PREFIX if steps[0] == _PREPEND else _NO_PREFIX], []
    if steps or cuts is None or (cuts["type"], cuts.get("replacement")) != ("Metaspace", "▁"):
        raise _unsupported("a SentencePiece model with another normalizer than ▁ for spaces")
    if cuts["split"] and any("▁" in (left + right)[1:] for left, right in merges):
        raise _unsupported("a Metaspace that cuts at spaces, and merges over them")
    scheme = cuts["prepend_scheme"]
    if scheme == "never":
        return [_NO_PREFIX], []
    others = {"always": "", "first": ", and none after a control token"}[scheme]
    return [_PREFIX, (SPACE_PREFIX, string(scheme))], [
        f"GGUF has no word for Metaspace, which puts no space before a text that begins with one{others}: Karat reads "
        f"it from {SPACE_PREFIX}, and llama.cpp puts one more there"
    ]


def _scores(tokens: Sequence[str], types: Sequence[int], merges: Sequence[tuple[str, str]]) -> list[float]:
    """Scores [tokens] that make SentencePiece merge in the order of `merges`."""
    score = dict.fromkeys(tokens, 0.0)
    rank = 0
    for left, right in merges:
        if score[left + right] == 0:
            rank += 1
            score[left + right] = float(-rank)
    ids = {token: index for index, token in enumerate(tokens) if types[index] != _UNUSED}
    scores = [score[token] for token in tokens]
    if ranked_merges(ids, types, scores) != list(merges):
        raise _unsupported("merges in an order that no scores give")
    return scores


def _special(
    files: TokenizerFiles, config: ModelConfig, generation_config: Mapping[str, object] | None, tokens: Sequence[str]
) -> tuple[Pairs, list[str]]:
    """The pairs for tokens with a role, further end tokens, and BOS and EOS around a text; and warnings.

    GGUF has three keys for tokens that end a text: a warning names the others.
    """
    ids = {role: files.backend.token_to_id(token) for role, token in files.special_tokens.items()}
    roles = {name: ids[role] for role, name in _ROLES.items() if ids.get(role) is not None}
    roles.setdefault("bos", config.bos_token_id)
    ends = _ends(config, generation_config, roles.get("eos"))
    framed, plain = files.backend.encode("").ids, files.backend.encode("a", add_special_tokens=False).ids
    before = framed[:1] if framed and framed[0] == roles["bos"] else []
    after = framed[len(before) :]
    if after not in ([], [roles.get("eos")]) or files.backend.encode("a").ids != [*before, *plain, *after]:
        raise _unsupported("a post-processor that adds more than BOS and EOS")
    pairs = _role_pairs(roles, ends)
    pairs += [
        ("tokenizer.ggml.add_bos_token", scalar("BOOL", bool(before))),
        ("tokenizer.ggml.add_eos_token", scalar("BOOL", bool(after))),
    ]
    if len(ends) <= len(_ENDS):
        return pairs, []
    kept, lost = (listed([shown(tokens[i]) for i in ids]) for ids in (ends[: len(_ENDS)], ends[len(_ENDS) :]))
    return pairs, [
        f"GGUF has room for {len(_ENDS)} tokens that end a text: the file has {kept}; a text goes on after {lost}"
    ]


def _ends(config: ModelConfig, generation_config: Mapping[str, object] | None, own: int | None) -> list[int]:
    """The tokens that end a text, as when the folder is loaded."""
    stated = stated_end_ids(generation_config, config, own, "generation_config.json")
    return [token_id for token_id in stated if token_id < config.vocab_size]


def _role_pairs(roles: Mapping[str, int | None], ends: Sequence[int]) -> Pairs:
    """The pairs of tokens with a role; the first of those that end a text have theirs."""
    return [
        (f"tokenizer.ggml.{name}_token_id", scalar("UINT32", token_id))
        for name, token_id in {**roles, **dict(zip(_ENDS, ends, strict=False))}.items()
        if token_id is not None
    ]


def _left_out(state: Mapping[str, Any]) -> list[str]:
    flags = ("lstrip", "rstrip", "single_word")
    flagged = [token["content"] for token in state["added_tokens"] if any(token[flag] for flag in flags)]
    if not flagged:
        return []
    return [
        f"GGUF does not carry that {len(flagged)} added tokens, such as {flagged[0]!r}, take the spaces beside them or "
        "must stand alone: texts with them are tokenised otherwise"
    ]


def _unsupported(what: str) -> TokenizerError:
    return TokenizerError(
        f"the tokenizer has {what}, which GGUF cannot describe; expected byte-level or SentencePiece BPE"
    )
