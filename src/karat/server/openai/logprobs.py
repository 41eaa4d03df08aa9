"""LogprobWriter: log-probabilities in the forms of OpenAI and of vLLM."""

from collections.abc import Sequence

from karat.outputs import Logprob, TokenLogprobs
from karat.server.answers.subject import Subject
from karat.server.schema import ChatLogprobs, PromptLogprobs, TextLogprobs, TokenLogprob, TopLogprob
from karat.text import Tokenizer

LEAST = -9999.0  # what stands for minus infinity, which JSON has no number for; vLLM's


class LogprobWriter:
    """Writes the log-probabilities of one request; `as_ids` names tokens token_id:N."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def chat(self, token_ids: Sequence[int], found: Sequence[TokenLogprobs], num_top: int) -> ChatLogprobs:
        """The log-probability of each token, and those of the `num_top` most probable ones."""
        content = []
        for token_id, logprobs in zip(token_ids, found, strict=True):
            top = [TopLogprob(*self._parts(i, logprob)) for i, logprob in _likeliest(logprobs, num_top)]
            content.append(TokenLogprob(*self._parts(token_id, logprobs[token_id]), top))
        return ChatLogprobs(content)

    def text(
        self, token_ids: Sequence[int], found: Sequence[TokenLogprobs | None], num_top: int, offset: int
    ) -> TextLogprobs:
        """The same in the form of completions. The first token begins `offset` characters into the text."""
        written = TextLogprobs([], [], [], [])
        for token_id, logprobs in zip(token_ids, found, strict=True):
            written.text_offset.append(offset)
            offset += num_chars(self._tokenizer.token_bytes(token_id))
            if logprobs is None:  # nothing precedes the first token of a prompt
                written.tokens.append(self._name(token_id, self._tokenizer.decode_continuation([token_id])))
                written.token_logprobs.append(None)
                written.top_logprobs.append(None)
                continue
            written.tokens.append(self._name(token_id, logprobs[token_id].decoded_token))
            written.token_logprobs.append(_finite(logprobs[token_id].logprob))
            top: dict[str, float] = {}
            for i, logprob in _likeliest(logprobs, num_top):  # of tokens that are written alike the likeliest stands
                top.setdefault(self._name(i, logprob.decoded_token), _finite(logprob.logprob))
            top.setdefault(written.tokens[-1], written.token_logprobs[-1] or 0.0)
            written.top_logprobs.append(top)
        return written

    def _parts(self, token_id: int, logprob: Logprob) -> tuple[str, float, list[int]]:
        name = self._name(token_id, logprob.decoded_token)
        return name, _finite(logprob.logprob), list(self._tokenizer.token_bytes(token_id))

    def _name(self, token_id: int, decoded: str) -> str:
        return f"token_id:{token_id}" if self._as_ids else decoded


def of_prompt(found: Sequence[TokenLogprobs | None]) -> PromptLogprobs:
    """vLLM's form: for each token of the prompt its own and the most probable ones, by token id."""
    return [None if logprobs is None else {str(i): _plain(lp) for i, lp in logprobs.items()} for logprobs in found]


def num_chars(utf8: bytes) -> int:
    """The number of characters that begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in utf8)


def _likeliest(logprobs: TokenLogprobs, num_top: int) -> list[tuple[int, Logprob]]:
    ranked = sorted(logprobs.items(), key=lambda item: item[1].rank)
    return [item for item in ranked if item[1].rank <= num_top]


def _plain(logprob: Logprob) -> dict[str, object]:
    return {"logprob": _finite(logprob.logprob), "rank": logprob.rank, "decoded_token": logprob.decoded_token}


def _finite(value: float) -> float:
    return max(value, LEAST)


def writer_of(subject: Subject) -> LogprobWriter:
    """The writer of an answer's log-probabilities."""
    return LogprobWriter(subject.tokenizer, as_ids=subject.form.tokens_as_ids)
