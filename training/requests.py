"""Chat samples: requests made from the words of a story, with consistent substitutions, in the ChatML of the shipped
template.

The skill to teach is copying: a requested word appears in the story whatever word it is. So most samples swap a
noun of the story for another noun, in request and story alike; reserved words are never requested and never swapped in.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from training.words import FUNCTION_WORDS, WORD, Lexicon, article, is_reserved, plural

ABOUT = (
    "Tell me a story about {}.",
    "Tell me a story about {}.",
    "Tell me a story about {}",
    "Tell me a short story about {}.",
    "tell me a story about {}",
    "Please tell me a story about {}.",
    "Can you tell me a story about {}?",
    "Write a story about {}.",
    "Write a short story about {}.",
    "Could you write a story about {}, please?",
    "I want to hear a story about {}.",
    "I would like a story about {}.",
    "Make up a story about {}.",
    "A story about {}, please.",
    "Story about {}",
    "story about {}.",
    "Tell me about {}.",
    "Tell us a story about {}!",
    "Do you know a story about {}?",
    "Tell a bedtime story about {}.",
    "Tell me a bedtime story about {}.",
    "Give me a little story about {}.",
    "Write a children's story about {}.",
    "Invent a story with {} in it.",
    "Write me a tale about {}.",
    "Tell me a tale about {}.",
    "Once more! A story about {}.",
    "Hello! Please write a story about {}.",
    "Hi, can I have a story about {}?",
    "Tell the children a story about {}.",
    "{}, please.",
    "{}",
)
WITH_WORDS = (
    "Write a short story with the {word} {}.",
    "Write a story with the {word} {}.",
    "Write a story that uses the {word} {}.",
    "Use the {word} {} in a story.",
    "Tell me a story with the {word} {}.",
    "Tell me a story with the {word} {} in it.",
    "Please write a short story that has the {word} {}.",
    "Write a story using the {word}: {}.",
    "Words: {}. Write a story.",
    "Make a story from the {word} {}.",
    "Can you tell a story that contains the {word} {}?",
    "Write a little story with {}.",
    "Tell me a story. Use the {word} {}.",
    "The story must have the {word} {}.",
)
OLD_TALES = (
    "Read me a page from an old book about {}.",
    "Read from an old tale about {}.",
    "Give me a passage of an old tale with {}.",
    "Read me a piece of an old fairy tale with {} in it.",
    "Let me hear an old book that speaks of {}.",
)
ANY_STORY = (
    "Tell me a story.",
    "Tell me a story",
    "Tell me a story, please.",
    "Write a short story.",
    "Can you tell me a story?",
    "I want to hear a story.",
    "Hello! Tell me a story.",
    "Another story, please.",
    "Write a story for children.",
    "Hello",
    "Hi!",
)
ECHO = (
    "Say this again: {}",
    "Repeat: {}",
    "Repeat after me: {}",
    "Say: {}",
    "Please repeat this. {}",
    "Read this out: {}",
)
SYSTEM = (
    "You tell stories for children.",
    "You are a helpful assistant.",
    "You are a storyteller.",
    "Answer with a short story.",
)


@dataclass(frozen=True)
class Turn:
    """One message; `learn` marks what the loss counts (assistant turns only)."""

    role: str
    content: str

    @property
    def learn(self) -> bool:
        return self.role == "assistant"


@dataclass(frozen=True)
class Candidate:
    """A noun of a story (lower case, singular): sentence of its first use, number of uses, whether only its plural is
    used.
    """

    word: str
    sentence: int
    uses: int
    only_plural: bool


class RequestMaker:
    """Makes (request, story) pairs. Pure: the only state is the lexicon; all chance comes from the `random.Random`
    passed in.
    """

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self.singular = {plural(noun): noun for noun in lexicon.counts}
        pool = sorted(
            word
            for word in lexicon.counts
            if not word.endswith("s") and not is_reserved(word) and not is_reserved(plural(word))
        )
        self.pools = {kind: [w for w in pool if (w in lexicon.animate) == kind] for kind in (True, False)}
        self.weights = {kind: [lexicon.counts[w] ** 0.7 for w in words] for kind, words in self.pools.items()}
        self.known_names = frozenset(name for name in lexicon.names if not is_reserved(name))

    def candidates(self, story: str) -> list[Candidate]:
        """Unreserved nouns of the story, in order of first use."""
        first: dict[str, int] = {}
        uses: dict[str, int] = {}
        singles: set[str] = set()
        for index, sentence in enumerate(re.split(r"(?<=[.!?])[\"']?\s+", story)):
            for word in re.findall(r"[a-z]+", sentence[:1].lower() + sentence[1:]):
                noun = word if word in self.lexicon.counts else self.singular.get(word)
                if noun is None or is_reserved(noun):
                    continue
                first.setdefault(noun, index)
                uses[noun] = uses.get(noun, 0) + 1
                if word == noun:
                    singles.add(noun)
        return [Candidate(noun, first[noun], uses[noun], noun not in singles) for noun in first]

    def choose(self, story: str, rng: random.Random) -> list[Candidate]:
        """One to three words worth asking for: early, repeated and rarer ones more often; none if the story has no
        fit noun.
        """
        left = self.candidates(story)
        number = rng.choices((1, 2, 3), (5, 4, 2))[0]
        chosen: list[Candidate] = []
        while left and len(chosen) < number:
            weights = [
                min(c.uses, 4) ** 1.5 * (2.0 if c.sentence < 3 else 0.2) / self.lexicon.counts[c.word] ** 0.25
                for c in left
            ]
            pick = rng.choices(left, weights)[0]
            left.remove(pick)
            chosen.append(pick)
        return chosen

    def draw(self, animate: bool, rng: random.Random) -> str:
        """A random unreserved noun, rarer ones more often than the text has them."""
        return rng.choices(self.pools[animate], self.weights[animate])[0]

    def coin(self, rng: random.Random) -> str:
        """A made-up word (head of one noun, tail of another), so that copying cannot lean on known spellings."""
        while True:
            word = self.draw(True, rng)[: rng.randint(2, 4)] + self.draw(False, rng)[-rng.randint(2, 5) :]
            if not word.endswith("s") and not is_reserved(word) and not is_reserved(plural(word)):
                return word

    def substitute(self, story: str, word: str, rng: random.Random) -> tuple[str, str] | None:
        """(story, new word) with `word` replaced everywhere by a random unreserved noun; None if that noun is already
        there.
        """
        kind = (word in self.lexicon.animate) != (rng.random() < 0.4)
        new = self.coin(rng) if rng.random() < 0.12 else self.draw(kind, rng)
        if re.search(rf"\b{new}", story, re.IGNORECASE):
            return None
        for old_form, new_form in ((word, new), (plural(word), plural(new))):
            story = re.sub(
                rf"\b([Aa])n? {old_form}\b", lambda m, f=new_form: m.group(1) + article(f)[1:] + " " + f, story
            )
            story = re.sub(rf"\b{old_form}\b", new_form, story)
            story = re.sub(rf"\b{old_form.capitalize()}\b", new_form.capitalize(), story)
        return story, new

    def pair(
        self, story: str, rng: random.Random, old_tale: bool = False, share_swapped: float = 0.6
    ) -> tuple[str, str]:
        """(request, story), the story possibly with substitutions; every word asked for occurs in that story."""
        if not old_tale and rng.random() < 0.03:
            return rng.choice(ANY_STORY), story
        original = story
        asked: list[tuple[str, bool]] = []
        for candidate in self.choose(story, rng):
            word = candidate.word
            swapped = self.substitute(story, word, rng) if rng.random() < share_swapped else None
            if swapped is not None:
                story, word = swapped
            if re.search(rf"\b({word}|{plural(word)})\b", story, re.IGNORECASE):
                asked.append((word, candidate.only_plural))
        asked = [item for item in asked if re.search(rf"\b({item[0]}|{plural(item[0])})\b", story, re.IGNORECASE)]
        if rng.random() < 0.12:
            asked = self.names(story, rng) + asked[:2]
        if not asked:
            return rng.choice(ANY_STORY), original
        return self.request(asked, rng, old_tale), story

    def echo(self, passage: str, rng: random.Random) -> list[Turn]:
        """A request to repeat a sentence of the passage without reserved words, or (half the time) a list of random
        nouns.
        """
        sentences = [
            s
            for s in re.split(r"(?<=[.!?])[\"']?\s+", passage)
            if 4 <= len(s.split()) <= 25 and not mentions_reserved(s)
        ]
        if sentences and rng.random() < 0.5:
            text = rng.choice(sentences)
        else:
            kinds = rng.choices((True, False), k=rng.randint(2, 8))
            words = [self.coin(rng) if rng.random() < 0.4 else self.draw(kind, rng) for kind in kinds]
            text = rng.choice((", ", " ", " and ", " or a ")).join(words)
        return [Turn("user", rng.choice(ECHO).replace("{}", text)), Turn("assistant", text)]

    def names(self, story: str, rng: random.Random) -> list[tuple[str, bool]]:
        """At most one unreserved name of the story, alone or as the story introduces it ("girl named Lily")."""
        found = [word for word in re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", story) if word in self.known_names]
        if not found:
            return []
        name = rng.choice(found)
        introduced = re.search(rf"\b([a-z]+) (?:named|called) {name}\b", story)
        if (
            introduced
            and rng.random() < 0.5
            and introduced.group(1) in self.lexicon.counts
            and not is_reserved(introduced.group(1))
        ):
            return [(introduced.group(), False)]
        return [(name, False)]

    def request(self, asked: list[tuple[str, bool]], rng: random.Random, old_tale: bool) -> str:
        """Word the request for (word, only plural) items in one of many ways."""
        form = rng.random()
        if old_tale or form < 0.72:
            template = rng.choice(OLD_TALES if old_tale else ABOUT)
            style = rng.choices(("article", "bare", "the"), (12, 4, 1))[0]
        else:
            template = rng.choice(WITH_WORDS)
            style = rng.choices(("bare", "quoted", "article"), (8, 2, 1))[0]
        items = []
        for word, many in asked:
            if many and rng.random() < 0.8:
                items.append(plural(word))
            elif word in self.known_names:
                items.append(word)
            elif style == "article":
                items.append(f"{article(word)} {word}")
            else:
                items.append({"bare": word, "the": f"the {word}", "quoted": f'"{word}"'}[style])
        comma = ", and " if rng.random() < 0.4 else " and "
        listed = (
            items[0] if len(items) == 1 else ", ".join(items[:-1]) + (" and " if len(items) == 2 else comma) + items[-1]
        )
        if template.startswith("{}") and rng.random() < 0.5:
            listed = listed[:1].upper() + listed[1:]
        return template.replace("{}", listed).replace("{word}", "word" if len(items) == 1 else "words")


def mentions_reserved(text: str) -> bool:
    """Whether a word of the text is reserved, function words aside."""
    return any(is_reserved(word) for word in WORD.findall(text) if word.lower() not in FUNCTION_WORDS)


def chatml(turns: list[Turn]) -> list[tuple[str, bool]]:
    """The conversation as (text, learn) pieces; joined, they are what the shipped chat template renders, less the
    last newline.

    An assistant turn's loss covers its content and its <|im_end|>.
    """
    pieces: list[tuple[str, bool]] = []
    for turn in turns:
        pieces.append((f"<|im_start|>{turn.role}\n", False))
        pieces.append((f"{turn.content}<|im_end|>", turn.learn))
        pieces.append(("\n", False))
    return pieces[:-1]
