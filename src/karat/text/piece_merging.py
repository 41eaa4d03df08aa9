"""PieceMerging: SentencePiece's own way to cut a text, for vocabularies whose scores tie.

The pair of neighbours that makes the piece with the best score is merged first; of equal scores, the leftmost. A list
of merges, which the `tokenizers` library takes, ranks every pair: it cannot say "whichever stands further left".
Source: SentencePiece's bpe_model.cc, and llama.cpp, which does the same.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend


class PieceMerging:
    """Cuts texts into tokens. Immutable; threads may share it.

    `scores` maps the pieces that merging may make to their scores; `ids` all tokens to their ids. Characters that are
    no token become the tokens of their bytes if there are all 256, else one `unknown` for each run of them. `added` are
    found in a text before it is cut. `frame` are the ids before and after a text.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Mapping[str, float],
        *,
        unknown: int | None,
        added: Collection[AddedToken],
        frame: tuple[Sequence[int], Sequence[int]],
    ) -> None:
        self._ids = ids
        self._scores = scores
        self._unknown = unknown
        self._frame = frame
        self._longest = max(map(len, scores), default=0)
        byte_ids = [ids.get(f"<0x{byte:02X}>") for byte in range(256)]
        self._byte_ids = [i for i in byte_ids if i is not None] if None not in byte_ids else None
        between = "text"
        while any(token.content == between for token in added):
            between += "|"
        # Its vocabulary is one unknown word: what stands between two added tokens is one token of it.
        self._splitter = Backend(models.WordLevel({between: 0}, unk_token=between))
        self._splitter.add_tokens(list(added))

    def extended(self, added: Mapping[int, AddedToken], frame: tuple[Sequence[int], Sequence[int]]) -> "PieceMerging":
        """The same with these added tokens, by id, and another frame."""
        ids = {**self._ids, **{token.content: token_id for token_id, token in added.items()}}
        return PieceMerging(ids, self._scores, unknown=self._unknown, added=list(added.values()), frame=frame)

    @property
    def definition(self) -> Mapping[str, float]:
        """All that decides how pieces merge, beside the vocabulary."""
        return self._scores

    def encode(self, text: str, normalizer: object, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text, of which `normalizer` (of the tokenizers library, or None) changes each part."""
        found = self._splitter.encode(text, add_special_tokens=False)
        ids: list[int] = []
        for token_id, (begin, end) in zip(found.ids, found.offsets, strict=True):
            part = text[begin:end]
            if token_id:
                ids.append(self._ids[part])
            else:
                ids += self.merge(part if normalizer is None else normalizer.normalize_str(part))  # type: ignore[attr-defined]
        return [*self._frame[0], *ids, *self._frame[1]] if add_special_tokens else ids

    def merge(self, text: str) -> list[int]:
        """The ids of a normalised text without added tokens."""
        pieces: list[str | None] = list(text)
        after = list(range(1, len(text) + 1))  # of each piece, the place of the next one
        before = list(range(-1, len(text) - 1))
        waiting: list[tuple[float, int, int, str]] = []  # score (negative), places of both, the piece they make

        def offer(left: int, right: int) -> None:
            first, second = pieces[left], pieces[right]
            assert first is not None and second is not None
            if len(first) + len(second) <= self._longest and (score := self._scores.get(first + second)) is not None:
                heapq.heappush(waiting, (-score, left, right, first + second))

        for place in range(len(text) - 1):
            offer(place, place + 1)
        while waiting:
            _, left, right, made = heapq.heappop(waiting)
            first, second = pieces[left], pieces[right]
            if first is None or second is None or after[left] != right or first + second != made:
                continue  # one of both has been merged with another
            pieces[left], pieces[right] = made, None
            after[left] = after[right]
            if after[right] < len(pieces):
                before[after[right]] = left
                offer(left, after[right])
            if before[left] >= 0:
                offer(before[left], left)
        return self._ids_of([piece for piece in pieces if piece is not None])

    def _ids_of(self, pieces: Sequence[str]) -> list[int]:
        ids: list[int] = []
        was_unknown = False
        for piece in pieces:
            token_id = self._ids.get(piece)
            is_unknown = token_id is None and self._byte_ids is None
            if token_id is not None:
                ids.append(token_id)
            elif self._byte_ids is not None:
                ids += [self._byte_ids[byte] for byte in piece.encode()]
            elif self._unknown is not None and not was_unknown:
                ids.append(self._unknown)
            was_unknown = is_unknown
        return ids
