"""The tokenizer of a folder: tokenizer.json and the files beside it, read as transformers reads them.

Where there is none: tokenizer.model (SentencePiece), vocab.json with merges.txt, or tekken.json.

tokenizer.json alone decides how text becomes ids, as in `PreTrainedTokenizerFast`. So `tokenizer_class`,
`add_bos_token` and `add_eos_token` of tokenizer_config.json, which are for tokenizers built by code, have no effect.
(`AutoTokenizer` of transformers 5 rebuilds a `LlamaTokenizer`, and then treats spaces at the start and after special
tokens differently from the file.) The other files add the names of special tokens, flags of added tokens, and the chat
template.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from karat.checkpoint import read_json
from karat.checkpoint.files import member
from karat.checkpoint.wording import foreign, kind_of, shown
from karat.errors import NoTokenizerError, TokenizerError
from karat.text.byte_vocabulary import read_merges, read_tekken
from karat.text.piece_merging import PieceMerging
from karat.text.sentence_piece import sentence_piece
from karat.text.sentencepiece_model import PieceModel
from karat.text.token_length import steps
from karat.text.tokenizer_limits import check_added, check_limits, check_nothing_vanishes, check_text, panics_as_errors

MAX_TOKENIZER_BYTES = 256 * 1024**2  # the largest in use have 35 MB
MAX_TEMPLATE_BYTES = 16 * 1024**2

_NAMED_TOKENS = tuple(f"{name}_token" for name in "bos eos unk sep pad cls mask".split())
_TOKEN_FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")
_OTHER_KINDS = {
    "tokenizer.model": "a SentencePiece model",
    "tiktoken.model": "a Tiktoken vocabulary",
    "vocab.json": "a vocabulary without merges.txt",
    "vocab.txt": "a WordPiece vocabulary",
}
# Keys of tokenizer_config.json that change the ids or the text if true. Karat refuses them.
_UNSUPPORTED_KEYS = ("fix_mistral_regex", "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")


T = TypeVar("T")


class TokenizerFiles(NamedTuple):
    """The contents of the files. `templates` maps names to sources; the ordinary chat template is `default`."""

    backend: Backend
    special_tokens: Mapping[str, str]  # by role: {"bos_token": "<s>", …}
    templates: Mapping[str, str]
    control_tokens: frozenset[str] | None  # those that the folder lists for `sanitize_control_tokens`; None: no list
    role_ids: Mapping[str, int] | None = None  # by role, where the file states ids; None: those of the tokens
    doubles: Mapping[int, int] = {}  # an id, and that of the same text, which `backend` knows
    merging: PieceMerging | None = None  # cuts texts instead of `backend`
    notes: tuple[str, ...] = ()  # what is odd about the files and has no effect, or which rule decides


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read the tokenizer of `folder`. Raises `TokenizerError`, which names the missing, corrupt or unsupported file."""
    config_file = folder / "tokenizer_config.json"
    config = read_json(config_file, TokenizerError) if _has(folder, config_file.name) else {}
    kind, merging = _kind_of(folder, config), None
    if kind == "tokenizer.model":
        backend, merging = _read_pieces(folder / kind, config)
    elif kind == "merges.txt":
        backend = read_merges(folder, config)
    elif kind == "tekken.json":
        backend = read_tekken(folder / kind, config)
    else:
        backend = _read_backend(folder, config)
    for key in _UNSUPPORTED_KEYS:
        if config.get(key):
            raise TokenizerError(
                f"{config_file} sets {key}, which Karat does not follow; expected a tokenizer.json that is right by "
                "itself; save the tokenizer again with the transformers library"
            )
    if config.get("clean_up_tokenization_spaces") and type(backend.model).__name__ != "BPE":
        raise TokenizerError(
            f"{config_file} sets clean_up_tokenization_spaces for a {type(backend.model).__name__} model, which would "
            "change text after it was streamed; expected false; change the file"
        )
    try:
        special_tokens = _add_tokens(backend, config, folder)
        if kind in ("tokenizer.model", "tekken.json"):
            frame = _set_frame(backend, config, special_tokens)
            merging = merging and merging.extended(backend.get_added_tokens_decoder(), frame)
        control_tokens = config.get("chat_control_tokens")
        return TokenizerFiles(
            backend,
            special_tokens,
            _read_templates(folder, config),
            None if control_tokens is None else frozenset(_expect(list, control_tokens, "chat_control_tokens")),
            merging=merging,
            notes=tuple(_notes(folder, config, backend)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TokenizerError(f"{config_file} is malformed: {_cut(error)}; fetch it again") from error


def _notes(folder: Path, config: Mapping[str, Any], backend: Backend) -> Iterator[str]:
    """What the files say beside tokenizer.json and has no effect."""
    prefixed = [step["add_prefix_space"] for step in steps(backend.pre_tokenizer) if "add_prefix_space" in step]
    if config.get("add_prefix_space") is True and prefixed and not any(prefixed):
        yield "add_prefix_space=true of tokenizer_config.json has no effect: tokenizer.json puts no space before a text"
    has_template = config.get("chat_template") is not None or (folder / "chat_template.jinja").is_file()
    if not has_template and (folder / "chat_template.json").is_file():
        yield "chat_template.json is not read: it is for processors of images; give it with --chat-template"


def _read_backend(folder: Path, config: dict[str, Any]) -> Backend:
    path = folder / "tokenizer.json"
    if not _has(folder, path.name):
        raise _missing(folder, config)
    data = _read_tokenizer(path)
    check_text(data, str(path))
    try:
        with panics_as_errors(str(path)):
            backend = Backend.from_buffer(data)
    except ValueError as error:
        raise TokenizerError(f"{path} is corrupt or of an unknown kind: {_cut(error)}; fetch it again") from error
    if backend.padding:
        config.setdefault("pad_token", backend.padding["pad_token"])
    if getattr(backend.model, "dropout", None) is not None:
        backend.model.dropout = None  # dropping merges at random is for training; here a text has one tokenisation
    backend.no_padding()
    backend.no_truncation()  # a text is never cut silently
    backend.encode_special_tokens = bool(config.get("split_special_tokens"))
    check_limits(backend, str(path))
    check_nothing_vanishes(backend, str(path))
    return backend


def _kind_of(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The file that is read where there is no tokenizer.json; None for tokenizer.json, and where no other is known.

    A tokenizer.model is read as Llama's: other classes of tokenizers change texts in ways of their own.
    """
    if _has(folder, "tokenizer.json"):
        return None
    if _has(folder, "tokenizer.model"):
        is_llamas = config.get("tokenizer_class", "LlamaTokenizer") in ("LlamaTokenizer", "LlamaTokenizerFast")
        return "tokenizer.model" if is_llamas else None
    if "auto_map" in config:
        return None
    if _has(folder, "vocab.json") and _has(folder, "merges.txt"):
        return "merges.txt"
    return "tekken.json" if _has(folder, "tekken.json") else None


def _read_pieces(path: Path, config: dict[str, Any]) -> tuple[Backend, PieceMerging | None]:
    """The tokenizer of a tokenizer.model, and what merges where its scores tie. Its roles go into `config`."""
    model = PieceModel(_read_tokenizer(path), path)
    for role, token in model.roles.items():
        if config.get(role) is None:
            config[role] = token
    backend, merging = sentence_piece(model, model.scores, ((), ()), str(path), has_prefix=model.has_prefix)
    backend.add_tokens(model.added())
    check_nothing_vanishes(backend, str(path))
    return backend, merging


def _set_frame(
    backend: Backend, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> tuple[list[int], list[int]]:
    """Have BOS and EOS put around a text as Llama's tokenizer does: BOS unless the config says no. Their ids."""
    sides: list[list[tuple[str, int]]] = []
    for name, default in (("bos", True), ("eos", False)):
        token = special_tokens.get(f"{name}_token") if config.get(f"add_{name}_token", default) else None
        token_id = None if token is None else backend.token_to_id(token)
        sides.append([(token, token_id)] if token is not None and token_id is not None else [])
    before, after = sides
    if before or after:
        parts = [*(token for token, _ in before), "$A", *(token for token, _ in after)]
        backend.post_processor = processors.TemplateProcessing(single=parts, special_tokens=[*before, *after])
    return [i for _, i in before], [i for _, i in after]


def _missing(folder: Path, config: Mapping[str, Any]) -> NoTokenizerError:
    if not folder.is_dir():
        return NoTokenizerError(f"{folder} is not a folder; expected one with tokenizer.json; check the path")
    if "auto_map" in config:
        return NoTokenizerError(
            f"{folder} has no tokenizer.json, and its tokenizer_config.json asks for code of the checkpoint to be run "
            f"(auto_map: {shown(config['auto_map'])}); Karat never runs such code; ask the authors for a tokenizer.json"
        )
    found = [f"{name}, {kind}" for name, kind in _OTHER_KINDS.items() if (folder / name).is_file()]
    found += [f"{path.name}, a Tiktoken vocabulary" for path in sorted(folder.glob("*.tiktoken"))]
    return NoTokenizerError(
        f"{folder} has {found[0] if found else 'no tokenizer'}; expected tokenizer.json; "
        + (
            "convert it once with the transformers library: "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
            if found
            else "check the folder, or fetch the model again"
        )
    )


def _add_tokens(backend: Backend, config: dict[str, Any], folder: Path) -> dict[str, str]:
    """Add the tokens to `backend` that only the other files name. Returns the special tokens by role."""
    declared: dict[int, AddedToken] = {}
    if "added_tokens_decoder" in config:
        for index, token in _expect(dict, config["added_tokens_decoder"], "added_tokens_decoder").items():
            declared[int(index)] = _token(token, f"added token {index}")
    elif _has(folder, "special_tokens_map.json"):
        config = {**config, **read_json(folder / "special_tokens_map.json", TokenizerError)}
    roles, extra = _special_tokens(config)
    special = {token.content: token for token in [*roles.values(), *extra]}
    if "added_tokens_decoder" not in config and _has(folder, "added_tokens.json"):
        for content, index in read_json(folder / "added_tokens.json", TokenizerError).items():
            flag = content in special
            declared[_expect(int, index, content)] = AddedToken(content, special=flag, normalized=not flag)

    added = [token for _, token in sorted(declared.items())]
    known = {token.content for token in [*backend.get_added_tokens_decoder().values(), *added]}
    added += [token for content, token in special.items() if content not in known]
    for token in added:
        check_added(token.content, str(folder))
        token.special = token.special or any(token.content == role.content for role in roles.values())
    backend.add_tokens(added)
    for index, token in declared.items():
        if backend.token_to_id(token.content) != index:
            raise TokenizerError(
                f"{folder} gives the added token {shown(token.content)} the id {index}; tokenizer.json makes it "
                f"{backend.token_to_id(token.content)}; expected files that agree; fetch the model again"
            )
    return {role: token.content for role, token in roles.items()}


def _special_tokens(config: Mapping[str, Any]) -> tuple[dict[str, AddedToken], list[AddedToken]]:
    """Special tokens by role, and those without a role."""
    named: dict[str, Any] = {
        key: value
        for key, value in config.items()
        if value is not None and (key in _NAMED_TOKENS or (key.endswith("_token") and isinstance(value, str | dict)))
    }
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if isinstance(extra, dict):
        named |= extra
        extra = []
    roles = {role: _token(token, role) for role, token in named.items()}
    return roles, [_token(token, "extra special token") for token in _expect(list, extra, "extra_special_tokens")]


def _token(value: object, what: str) -> AddedToken:
    """A token as files write it: a string for a special token, or an object with flags."""
    if not isinstance(value, dict):
        return AddedToken(_expect(str, value, what), special=True)
    flags = {name: _expect(bool, value[name], f"{name} of {what}") for name in _TOKEN_FLAGS if name in value}
    return AddedToken(_expect(str, value.get("content"), what), **{"special": True, **flags})


def _read_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name: from .jinja files, else from tokenizer_config.json.

    As in transformers' tokenizers: chat_template.json is for processors of images and sound.
    """
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    files = {path.stem: path for path in more if _has(folder, f"additional_chat_templates/{path.name}")}
    if _has(folder, "chat_template.jinja"):
        files["default"] = folder / "chat_template.jinja"
    if files:
        return {name: _text(_read_bytes(path, MAX_TEMPLATE_BYTES), path) for name, path in files.items()}
    found = config.get("chat_template")
    if found is None:
        return {}
    if isinstance(found, list):
        found = {_expect(dict, entry, "chat template")["name"]: entry["template"] for entry in found}
    if isinstance(found, str):
        found = {"default": found}
    return {name: _expect(str, source, name) for name, source in _expect(dict, found, "chat_template").items()}


def _has(folder: Path, name: str) -> bool:
    """Whether the folder has this file. TokenizerError if it is a link to nothing, as for weights."""
    path = member(folder, name, TokenizerError)
    return path is not None and path.is_file()


def _read_tokenizer(path: Path) -> bytes:
    data = _read_bytes(path, MAX_TOKENIZER_BYTES)
    if (what := foreign(data[:64])) is not None:
        raise TokenizerError(f"{path}: {what}")
    return data


def _read_bytes(path: Path, max_bytes: int) -> bytes:
    try:
        if (num_bytes := path.stat().st_size) > max_bytes:
            raise TokenizerError(f"{path} has {num_bytes} bytes; expected at most {max_bytes}; fetch it again")
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}; check its permissions") from error


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is not UTF-8: {error}; fetch it again") from error


def _cut(error: Exception) -> str:
    """The message of an error, cut at 300 characters: it may quote the file at any length."""
    text = str(error)
    return text if len(text) <= 300 else f"{text[:299]}…"


def _expect(kind: type[T], value: object, what: str) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {kind_of(type(value))}, expected {kind_of(kind)}")
    return value
