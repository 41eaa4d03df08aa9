"""GgufVocabulary: the tokens of a GGUF file by id, with their types and roles, and what is odd about them."""

from collections.abc import Mapping, Sequence

from tokenizers import AddedToken

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.values import NO_TOKEN
from karat.checkpoint.wording import listed, shown
from karat.errors import TokenizerError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
INTEGERS = ("INT32", "UINT32")
_MAX_NAMED = 5  # tokens in a note
# Role of a token -> its name in the keys of a file.
_ROLES: Mapping[str, str] = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
    "mask_token": "mask",
}
# Roles of which no step of inference makes use: an id without a token is no fault.
_IDLE = frozenset({"sep_token", "pad_token", "mask_token"})


class GgufVocabulary:
    """The tokens of a file by id. `notes` says what is odd and has no effect, or which rule decides."""

    def __init__(self, metadata: Metadata, place: str) -> None:
        self._metadata = metadata
        self._place = place
        self.notes: list[str] = []
        tokens = metadata.array("tokenizer.ggml.tokens", "STRING")
        assert tokens is not None
        self.tokens = tokens.strings()
        types = metadata.array("tokenizer.ggml.token_type", *INTEGERS)
        self.types: Sequence[int] = [NORMAL] * len(self.tokens) if types is None else types.numbers().tolist()
        if wrong := set(self.types).difference(range(NORMAL, BYTE + 1)):
            raise TokenizerError(f"{place}: has a token of the type {min(wrong)}; expected {NORMAL} to {BYTE}")
        self._is_byte_level = metadata.values.get("tokenizer.ggml.model") == "gpt2"
        self.role_ids = self._read_roles()
        self.ids, self.doubles = self._read_ids()

    def added(self) -> list[AddedToken]:
        """The added tokens: they are found in a text before it is split. One for each text."""
        kinds = (CONTROL, UNKNOWN, USER_DEFINED)
        return [
            AddedToken(token, special=kind != USER_DEFINED, normalized=False)
            for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind != NORMAL and kind in kinds and self.ids.get(token) == index
        ]

    def unknown(self) -> str | None:
        """The token for text without a token: the one that the metadata name, else the first of type unknown."""
        of_type = [token for token, kind in zip(self.tokens, self.types, strict=True) if kind == UNKNOWN]
        stated = self.role_ids.get("unk_token")
        found = self.tokens[stated] if stated is not None else of_type[0] if of_type else None
        return found if found in self.ids else None

    def roles(self) -> dict[str, str]:
        """The tokens with a role, by role such as bos_token."""
        return {role: self.tokens[index] for role, index in self.role_ids.items()}

    def _read_roles(self) -> dict[str, int]:
        found = {}
        for role, name in _ROLES.items():
            key = f"tokenizer.ggml.{name}_token_id"
            index = self._metadata.optional(int, key)
            if index is None:
                continue
            if 0 <= index < len(self.tokens):
                found[role] = index
            elif index == NO_TOKEN:
                self.notes.append(f"{key}={index} counts as not stated")
            elif role in _IDLE or (role == "unk_token" and self._is_byte_level):
                self.notes.append(f"{key}={index} names no token (there are {len(self.tokens)}); nothing needs one")
            elif role == "bos_token" and not self._asks_for_bos():
                self.notes.append(f"{key}={index} names no token (there are {len(self.tokens)}); none is asked for")
            else:
                raise TokenizerError(f"{self._place}: {key} is {index}; expected an id below {len(self.tokens)}")
        return found

    def _asks_for_bos(self) -> bool:
        """Whether a text or a conversation may begin with BOS."""
        values = self._metadata.values
        templates = [value for key, value in values.items() if key.startswith("tokenizer.chat_template")]
        stated = values.get("tokenizer.ggml.add_bos_token", not self._is_byte_level)
        return stated is not False or any("bos_token" in str(template) for template in templates)

    def _read_ids(self) -> tuple[dict[str, int], dict[int, int]]:
        """Token to id, without unused and empty tokens, which stand for no text; and the id of each double's text.

        Of several ids with one text, the one with a role counts, then an added token, then the last, as in llama.cpp.
        """
        ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(ids) == len(self.tokens) and UNUSED not in self.types and "" not in ids:
            return ids, {}
        ids.clear()
        rank_of: dict[str, tuple[bool, bool, int]] = {}
        with_role = frozenset(self.role_ids.values())
        kept = [i for i, kind in enumerate(self.types) if kind != UNUSED and self.tokens[i]]
        for index in kept:
            token, kind = self.tokens[index], self.types[index]
            rank = (index in with_role, kind not in (NORMAL, BYTE), index)
            if token not in rank_of or rank > rank_of[token]:
                rank_of[token], ids[token] = rank, index
        doubles = {index: ids[self.tokens[index]] for index in kept if ids[self.tokens[index]] != index}
        if doubles:
            told = listed(
                [f"{shown(self.tokens[i])} ({i}: read as {first})" for i, first in doubles.items()], _MAX_NAMED
            )
            self.notes.append(f"{len(doubles)} tokens have the text of another: {told}")
        if num_empty := sum(not token and kind != UNUSED for token, kind in zip(self.tokens, self.types, strict=True)):
            self.notes.append(f"{num_empty} tokens are empty; they stand for no text")
        return ids, doubles
