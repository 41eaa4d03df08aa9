"""Stage story: a chat model tells stories about words drawn at run time, and garbage does not pass.

A word in an answer is no evidence by itself: a model that repeats itself, echoes the request or writes random words may
use it too. So an answer counts if it has the word and no red flag. And the model must find a text likelier than the
same words shuffled, which no garbage does. The limits of red flags were measured (docs/diagnosis.md).
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from karat.check.session.session import PROMPT, CheckSession
from karat.check.session.stage import Stage
from karat.config import embedded_model_path
from karat.engine.model_loading.defaults import defaults_of

WORDS = (
    "lantern fox river kite button bridge whistle acorn ladder turtle drum candle pebble wagon feather mirror".split()
)
LOOP = 0.5  # share of tokens that repeat the token a fixed number of places before
MONOTONY = 0.3  # share of words that are one word
SURPRISE = 0.5  # mean -log p of the answer's tokens, as a share of log(vocabulary)
READING = 2.0  # nats a token by which a text is likelier than its words shuffled, and than chance
_LONG = 20  # least number of tokens or words for a share to count
_PERIODS = 64
_SHUFFLES = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; surprise is the mean -log p of its tokens in nats, by the model's own logits."""

    text: str
    token_ids: tuple[int, ...]
    surprise: float


def run(session: CheckSession) -> Stage:
    """Ask for stories, each about a drawn word; count those that have the word and no red flag."""
    if session.no_tokenizer is not None:
        return Stage("story", "skipped", [f"not run: {session.no_tokenizer}"])
    if not session.tokenizer.chat_template:
        return Stage("story", "skipped", ["the model has no chat template"])
    rng = np.random.default_rng(session.plan.seed)
    words = [WORDS[i] for i in rng.permutation(len(WORDS))[: session.plan.stories]]
    kind = "story" if session.plan.model.config.num_layers < 12 else "haiku"
    asked = [f"Tell me a {kind} about a {word}." for word in words]
    model = session.plan.model
    source = session.plan.generation_config
    params = replace(defaults_of(model.checkpoint, model.config, session.tokenizer, source).params, logprobs=0)
    outputs = session.llm.chat([[{"role": "user", "content": text}] for text in asked], params, use_tqdm=False)
    if fault := next((answer.error for output in outputs if (answer := output.outputs[0]).error), None):
        return Stage("story", "bug", [f"an answer ended with an error: {fault}"], {"asked": words})
    answers = []
    for output in outputs:
        got = output.outputs[0]
        nats = [-next(iter(entry.values())).logprob for entry in got.logprobs or ()]
        answers.append(Answer(got.text, tuple(got.token_ids), float(np.mean(nats)) if nats else 0.0))
    has_word = [has(word, answer.text, text) for word, answer, text in zip(words, answers, asked, strict=True)]
    flags = [red_flags(answer, session.plan.model.config.vocab_size) for answer in answers]
    sound = [hit and not found for hit, found in zip(has_word, flags, strict=True)]
    lines = [
        f"{sum(has_word)} of {len(words)} draws of a {kind} have the word that was drawn for them ({', '.join(words)})",
        f"{sum(sound)} of them have no red flag",
    ]
    lines += [f"{word}: {'; '.join(found)}" for word, found in zip(words, flags, strict=True) if found]
    text, shuffled = reading(session, rng)
    chance = log(session.plan.model.config.vocab_size)
    lines.append(
        f"loss on real text: {text:.2g} nats per token; on the same words shuffled: {shuffled:.2g} or more; by chance: "
        f"{chance:.2g}"
    )
    facts = {"asked": words, "hits": has_word, "sound": sound, "flags": flags, "reading": [text, shuffled, chance]}
    reads = text + READING <= min(shuffled, chance)
    if not reads:
        lines.append(f"red flag: on real text it should be at least {READING:g} less than either, as of any that reads")
    # The embedded model uses the word in eight of ten: one in eight or less comes once in ten thousand times.
    is_ours = session.plan.model.path == embedded_model_path()
    if is_ours and len(sound) >= 6 and (sum(sound) * 8 <= len(sound) or not reads):
        return Stage("story", "bug", lines, facts)
    if reads and sum(sound) * 4 >= len(sound):
        return Stage("story", "exact", lines, facts)
    if reads and not any(flags):
        return Stage("story", "skipped", [*lines, "which says nothing of a model that was not trained for it"], facts)
    lines.append("no proof of a bug, as a model may be so: look at the answers, and at the model's config and template")
    return Stage("story", "flagged", lines, facts)


def has(word: str, text: str, asked: str) -> bool:
    """Whether a text has the word, or one that begins with it, outside of repetitions of the request."""
    return re.search(rf"\b{word}", text.replace(asked, " "), re.IGNORECASE) is not None


def red_flags(answer: Answer, vocab_size: int) -> list[str]:
    """The signs that an answer is no text, in words."""
    flags = []
    share, period = loop(answer.token_ids)
    if len(answer.token_ids) >= _LONG and share >= LOOP:
        flags.append(f"repeats itself: {share:.0%} of its tokens stand {period} tokens before, too")
    words = re.findall(r"\w+", answer.text.lower())
    (most, count), *_ = [*Counter(words).most_common(1), ("", 0)]
    if len(words) >= _LONG and count >= MONOTONY * len(words):
        flags.append(f"{count} of its {len(words)} words are {most!r}")
    if answer.surprise >= SURPRISE * log(vocab_size):
        flags.append(f"as if drawn at random: {answer.surprise:.2g} of at most {log(vocab_size):.2g} nats a token")
    return flags


def loop(ids: Sequence[int]) -> tuple[float, int]:
    """The largest share of tokens that equal the token a fixed number of places before, and that number."""
    array = np.array(ids)
    found = [(float((array[p:] == array[:-p]).mean()), p) for p in range(1, min(_PERIODS, len(ids) // 3) + 1)]
    return max(found, key=lambda share_period: (share_period[0], -share_period[1]), default=(0.0, 0))


def reading(session: CheckSession, rng: np.random.Generator) -> tuple[float, float]:
    """-log p in nats a token of a text that people wrote, and the least of its words in some other orders.

    A model that cannot tell the two apart does not read, whatever it writes.
    """
    words = PROMPT.split()
    shuffled = [" ".join(rng.permutation(words)) for _ in range(_SHUFFLES)]
    return _nats(session, " ".join(words)), min(_nats(session, text) for text in shuffled)


def _nats(session: CheckSession, text: str) -> float:
    """-log p in nats a token of a text; infinity if a logit is not finite."""
    ids = session.tokenizer.encode(text)[: session.llm.max_model_len]
    logits = session.llm.logits(ids)[:-1].astype(np.float64)
    if not len(logits) or not np.isfinite(logits).all():
        return float("inf")
    largest = logits.max(axis=1)
    total = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
    return float(np.mean(total - logits[np.arange(len(logits)), ids[1:]]))
