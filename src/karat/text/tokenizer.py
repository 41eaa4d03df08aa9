"""Tokenizer: text to token ids and back, with the `tokenizers` library, loaded as transformers loads it."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karat.checkpoint import GgufCheckpoint, ModelCheckpoint
from karat.checkpoint.gguf import Metadata
from karat.checkpoint.overrides import Overrides
from karat.checkpoint.wording import shown
from karat.errors import RequestError, TemplateError, TokenizerError
from karat.text.byte_vocabulary import BYTE_OF_CHAR
from karat.text.chat_prompt import ChatPrompt
from karat.text.continuing import begun, cut, tagged
from karat.text.control_tokens import ControlTokens
from karat.text.gguf_tokenizer import read_gguf_tokenizer
from karat.text.token_length import LengthLimit, steps
from karat.text.tokenizer_files import TokenizerFiles, read_tokenizer_files
from karat.text.tokenizer_limits import UNWRITTEN, check_decoder, lost_bytes, may_panic, panics_as_errors

if TYPE_CHECKING:
    from karat.text.chat_template import ChatTemplate

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_MAX_ID = 2**32 - 1  # that the library takes
MAX_LOCKED_CHARS = 4096  # that are tokenised with the interpreter's lock held: 10 ms
MAX_LOCKED_TOKENS = 16384  # that are decoded so


class Tokenizer:
    """A tokenizer and its chat template. Immutable; threads may share it.

    `vocab_size` includes added tokens; a model's embedding may have more rows, whose ids have no token. `added_tokens`
    (by id) are found in a text before it is split; `decode` skips those of `special_ids`. `special_tokens` maps roles
    such as `bos_token` to tokens. `is_byte_level` is True for byte-level BPE, False for SentencePiece and other kinds.
    `notes` say what is odd about the files and has no effect, or which rule decides; `remarks`, what concerns no text
    that people write.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self._backend = files.backend
        self._templates = files.templates
        self._variables: Mapping[str, Any] = {}
        self._control_tokens = files.control_tokens
        self._merging = files.merging
        self._doubles = files.doubles
        lost = lost_bytes(self._backend, BYTE_OF_CHAR)
        dropped = (
            f"{len(lost)} bytes of UTF-8, such as {min(lost):#04x}, have no token: text drops them" if lost else None
        )
        said = (dropped,) if dropped else ()
        is_written = not lost <= UNWRITTEN
        self.notes: tuple[str, ...] = (*files.notes, *said) if is_written else files.notes
        self.remarks: tuple[str, ...] = () if is_written else said
        self.special_tokens = dict(files.special_tokens)
        self.vocab_size: int = self._backend.get_vocab_size()
        ids: Mapping[str, int | None] = files.role_ids or {
            role: self._backend.token_to_id(token) for role, token in self.special_tokens.items()
        }
        self.bos_token_id = ids.get("bos_token")
        self.eos_token_id = ids.get("eos_token")
        added = self._backend.get_added_tokens_decoder()
        self.added_tokens: Mapping[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        decoder = steps(self._backend.decoder)
        check_decoder(decoder)
        self.is_byte_level = any(step["type"] == "ByteLevel" for step in decoder)
        self._has_byte_tokens = any(step["type"] == "ByteFallback" for step in decoder)
        self._may_panic = may_panic(self._backend.normalizer, self._backend.pre_tokenizer)
        self._decoding_may_panic = may_panic(self._backend.decoder)
        # Added tokens are text. A byte-level decoder would read a letter such as ö in them as a byte.
        letters = {token_id for token_id, token in self.added_tokens.items() if not token.isascii()}
        self._verbatim = frozenset(letters if self.is_byte_level else ())

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Load tokenizer.json of `folder`, with special tokens and chat templates of the files beside it.

        Raises `TokenizerError` for missing, corrupt or unsupported files. Never runs code of the checkpoint.
        """
        return cls(read_tokenizer_files(folder))

    @classmethod
    def from_gguf(cls, metadata: Metadata, path: Path) -> "Tokenizer":
        """Build the tokenizer that the metadata of the GGUF file `path` describe, with its chat templates.

        Raises `TokenizerError` for missing, corrupt or unsupported metadata, an unknown pre-tokenizer included.
        """
        return cls(read_gguf_tokenizer(metadata, str(path)))

    @classmethod
    def of(cls, checkpoint: ModelCheckpoint) -> "Tokenizer":
        """The tokenizer of a model, a folder or a GGUF file, with its overrides. Raises `TokenizerError`."""
        if isinstance(checkpoint, GgufCheckpoint):
            own = cls.from_gguf(checkpoint.metadata, checkpoint.path)
        else:
            own = cls.from_folder(checkpoint.path)
        return own.overridden(checkpoint.overrides)

    def overridden(self, overrides: Overrides) -> "Tokenizer":
        """This tokenizer with the user's chat template, if there is one, and variables for each rendering.

        Variables of a single rendering win over these. Raises `TemplateError` for a template that does not compile.
        """
        if overrides.chat_template is None and not overrides.chat_template_kwargs:
            return self
        other = copy(self)
        if overrides.chat_template is not None:
            other._templates = {"default": overrides.chat_template}
            for name in ("chat_template", "_tool_template"):  # compiled of the other source
                other.__dict__.pop(name, None)
            _ = other.chat_template
        other._variables = dict(overrides.chat_template_kwargs)
        return other

    def unread_variables(self, names: Iterable[str] | None = None) -> list[str]:
        """The variables that no chat template mentions, of these names (None: of those that the user gave)."""
        sources = "\n".join(self._templates.values())
        given = self._variables if names is None else names
        return [name for name in given if not re.search(rf"\b{re.escape(name)}\b", sources)]

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
        """Token ids of `text`. Special tokens that it spells become their ids.

        `add_special_tokens` adds the tokens that tokenizer.json puts around a text, such as BOS. Raises `RequestError`
        for a text that is not valid Unicode. Raises CapacityError, before any work, for a text longer than `max_tokens`
        of the longest tokens; where the tokenizer drops or joins text, only if the text also has more than
        MAX_UNMEASURED_CHARS characters. A long text is tokenised without the interpreter's lock.
        """
        if max_tokens is not None:
            self._length_limit.check_text(text, max_tokens)
        try:
            text.encode()  # ten times as fast as a search
        except UnicodeEncodeError as error:
            raise RequestError(
                f"character {error.start} of the text is half a surrogate pair ({text[error.start]!r}); expected valid "
                "Unicode; decode the text correctly or take it out"
            ) from None
        with panics_as_errors(f"a text of {len(text)} characters cannot be tokenised", quietly=self._may_panic):
            if self._merging is not None:
                return self._merging.encode(text, self._backend.normalizer, add_special_tokens=add_special_tokens)
            if len(text) <= MAX_LOCKED_CHARS:
                return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
            return self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`. Bytes that are not valid UTF-8 become U+FFFD. RequestError for a value that is no id."""
        try:
            if self._doubles:
                ids = [self._known(token_id) for token_id in ids]
            if self._verbatim.isdisjoint(ids):
                with panics_as_errors(f"{len(ids)} tokens cannot be decoded", quietly=self._decoding_may_panic):
                    if len(ids) <= MAX_LOCKED_TOKENS:
                        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
                    return self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]
            skipped = self.special_ids if skip_special_tokens else frozenset[int]()
            return b"".join(self.token_bytes(i) for i in ids if i not in skipped).decode(errors="replace")
        except (OverflowError, TypeError):
            for token_id in ids:
                self._known(token_id)
            raise

    def decode_continuation(self, ids: Sequence[int]) -> str:
        """The text of `ids` after other text; at the start SentencePiece would drop a space. No id is skipped."""
        return self.decode([*self._anchor, *ids], skip_special_tokens=False)[self._anchor_len :]

    def token_to_id(self, token: str) -> int | None:
        """The id of `token` (in the vocabulary's spelling); None if there is none."""
        return self._backend.token_to_id(token)

    @cached_property
    def ordinary_ids(self) -> frozenset[int]:
        """The ids of all tokens except added ones: the pieces that a text is split into."""
        return frozenset(self._backend.get_vocab(with_added_tokens=False).values()) - self.added_tokens.keys()

    def has_token(self, token_id: int) -> bool:
        """Whether `token_id` has a token. `decode` passes over ids without one."""
        return self._backend.id_to_token(self._known(token_id)) is not None

    def id_to_token(self, token_id: int) -> str:
        """The vocabulary's spelling of `token_id`. Raises `TokenizerError` if it has none."""
        token = self._backend.id_to_token(self._known(token_id))
        if token is None:
            raise TokenizerError(f"there is no token {token_id}; expected an id the tokenizer knows; check the ids")
        return token

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that `token_id` adds to a text, perhaps part of a character; empty without a token."""
        token_id = self._known(token_id)
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._verbatim:
            return token.encode()
        if self.is_byte_level:
            try:
                return bytes(map(BYTE_OF_CHAR.__getitem__, token))
            except KeyError:  # an added token with a space
                return token.encode()
        byte = self.fallback_byte(token_id)
        return self.decode_continuation([token_id]).encode() if byte is None else bytes([byte])

    def fallback_byte(self, token_id: int) -> int | None:
        """The byte of a token such as `<0xE2>`, if the decoder joins such tokens to characters; else None."""
        token = self._backend.id_to_token(self._known(token_id)) if self._has_byte_tokens else None
        found = _BYTE_TOKEN.fullmatch(token) if token is not None else None
        return int(found[1], 16) if found else None

    @property
    def definition(self) -> dict[str, Any]:
        """All that decides how it encodes and decodes: tokenizer.json's content, special tokens, listed control tokens.

        A value for JSON; the chat templates are `template_sources`.
        """
        listed = None if self._control_tokens is None else sorted(self._control_tokens)
        found = {"backend": self._backend.to_str(), "special_tokens": self.special_tokens, "control_tokens": listed}
        return found if self._merging is None else {**found, "pieces": self._merging.definition}

    @property
    def template_sources(self) -> Mapping[str, str]:
        """The source of each chat template by its name; the ordinary one is "default"."""
        return self._templates

    @property
    def template_source(self) -> str | None:
        """The source of the ordinary chat template, valid or not; None if there is none."""
        return self._templates.get("default")

    @cached_property
    def chat_template(self) -> "ChatTemplate | None":
        """The ordinary chat template; None if there is none. Raises `TemplateError` if it does not compile."""
        return self._compile("default") if "default" in self._templates else None

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        now: Callable[[], datetime] | datetime = datetime.now,
        **extra: Any,
    ) -> str:
        """The prompt for `messages` (see `ChatTemplate.render`). With `tools`, the template `tool_use` is used if any.

        With `continue_final_message` it ends where the last message's content does, for the model to go on with it, as
        in transformers; TemplateError with add_generation_prompt, and where the template does not write that content.
        It is to be encoded with `add_special_tokens=False`, as `chat_prompt` does.
        """
        if continue_final_message and add_generation_prompt:
            raise TemplateError(
                "continue_final_message with add_generation_prompt: a message that goes on opens no answer; give one"
            )
        rendered = self._template_for(tools).render(
            tagged(messages) if continue_final_message else messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            now=now,
            **{**self._variables, **extra},
        )
        return cut(rendered, messages) if continue_final_message else rendered

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        now: Callable[[], datetime] | datetime = datetime.now,
        sanitize_control_tokens: bool = False,
        max_tokens: int | None = None,
        **extra: Any,
    ) -> ChatPrompt:
        """The rendered prompt with its token ids. The template's special tokens are kept; none is added.

        By default, as in transformers, a special token spelled in a message becomes its id too: a user can write
        `<|im_end|>` and open a turn. With `sanitize_control_tokens`, special tokens and added tokens of the template
        stay text where messages, tools, documents and `extra` spell them. Tokens that a template builds from a role
        (`'<|' + role + '|>'`) are not covered: check roles before. `max_tokens` is as in `encode`; CapacityError is
        raised before the template is rendered for a conversation that is many times too long.
        """
        conversation: dict[str, Any] = {"messages": messages, "tools": tools, "documents": documents}
        conversation |= {**self._variables, **extra}
        if max_tokens is not None:
            try:
                self._length_limit.check_conversation(conversation, max_tokens)
            except RecursionError as error:
                raise _too_deep() from error
        options: dict[str, Any] = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "now": now,
        }
        if not sanitize_control_tokens:
            prompt = self.render_chat(**conversation, **options)
            ids = self.encode(prompt, add_special_tokens=False, max_tokens=max_tokens)
            return ChatPrompt(prompt, tuple(ids), begun(messages, prompt) if continue_final_message else None)
        control = ControlTokens(self._tokens_to_sanitize(self._template_for(tools)))
        try:
            marked = control.mark(conversation)
        except RecursionError as error:
            raise _too_deep() from error
        pieces = list(control.split(self.render_chat(**marked, **options)))
        text = "".join(piece for piece, _ in pieces)
        if max_tokens is not None:
            self._length_limit.check_text(text, max_tokens)
        ids = []
        for index, (piece, is_marked) in enumerate(pieces):
            ids += self._encode_piece(piece, as_text=is_marked, at_start=index == 0)
        return ChatPrompt(text, tuple(ids), begun(messages, text) if continue_final_message else None)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """The token ids of `chat_prompt`."""
        return list(self.chat_prompt(messages, **options).token_ids)

    @cached_property
    def _tool_template(self) -> "ChatTemplate":
        return self._compile("tool_use")

    def _template_for(self, tools: Sequence[Mapping[str, Any]] | None) -> "ChatTemplate":
        if tools is not None and "tool_use" in self._templates:
            return self._tool_template
        if self.chat_template is not None:
            return self.chat_template
        names = f" but those named {', '.join(sorted(self._templates))}" if self._templates else ""
        raise TemplateError(
            f"the model has no chat template{names}; expected one; give it one (--chat-template FILE, its "
            "text or chatml, or LLM(chat_template=…)), use a chat model, or complete text"
        )

    def _compile(self, name: str) -> "ChatTemplate":
        from karat.text.chat_template import ChatTemplate  # imports a template engine, which plain text does not need

        return ChatTemplate(self._templates[name], **self.special_tokens)

    def _tokens_to_sanitize(self, template: "ChatTemplate") -> list[str]:
        """Special tokens, and the added tokens that the folder lists as control tokens, else those in the template."""
        listed = self._control_tokens
        return [
            token.content
            for token in self._backend.get_added_tokens_decoder().values()
            if token.special
            or (
                token.content in listed
                if listed is not None
                else token.content in template.literal_text and not token.content.isspace()
            )
        ]

    def _encode_piece(self, piece: str, *, as_text: bool, at_start: bool) -> list[int]:
        """Ids of one piece of a prompt. Unless `at_start`, without the space that SentencePiece puts before a text."""

        def encode(text: str) -> list[int]:
            return self._encode_as_text(text) if as_text else self.encode(text, add_special_tokens=False)

        if at_start or not piece:
            return encode(piece)
        newline = self.encode("\n", add_special_tokens=False)
        ids = encode("\n" + piece)
        ids = ids[len(newline) :] if ids[: len(newline)] == newline else encode(piece)
        if as_text and self.token_to_id(piece) in ids:
            raise RequestError(
                f"the conversation holds {shown(piece)}, which this tokenizer cannot write as text; "
                "expected a conversation without it; take it out"
            )
        return ids

    def _encode_as_text(self, text: str) -> list[int]:
        """Ids of `text` with added tokens treated as ordinary text."""
        backend = self._backend
        with panics_as_errors(f"a text of {len(text)} characters cannot be tokenised", quietly=self._may_panic):
            if backend.normalizer is not None:
                text = backend.normalizer.normalize_str(text)
            words = [text]
            if self._merging is not None:
                return self._merging.merge(text)
            if backend.pre_tokenizer is not None:
                words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
            return [token.id for word in words for token in backend.model.tokenize(word)]

    def _known(self, token_id: int) -> int:
        """The id that the library knows for a token. RequestError for what is no id."""
        try:
            known = operator.index(token_id)
        except TypeError:
            known = -1
        if not 0 <= known <= _MAX_ID:
            raise RequestError(f"{shown(token_id)} is no token id; expected integers from 0 on; check the ids")
        return self._doubles.get(known, known)

    @cached_property
    def _length_limit(self) -> LengthLimit:
        return LengthLimit(self._backend, "".join(BYTE_OF_CHAR))

    @cached_property
    def _anchor(self) -> list[int]:
        """An ordinary token that precedes other tokens in `decode_continuation`; empty if there is none."""
        for token_id in range(self.vocab_size):
            token = self._backend.id_to_token(token_id)
            if token is not None and token.isalnum() and token.isascii() and token_id not in self.special_ids:
                return [token_id]
        return []

    @cached_property
    def _anchor_len(self) -> int:
        return len(self.decode(self._anchor))


def _too_deep() -> TemplateError:
    return TemplateError("the conversation is nested too deeply; expected a few levels; flatten it")
