"""Words: stems, inflections, which words are nouns, and which are reserved (never requested in training).

Everything here is decided by the text and a hash, so two runs over the same corpus agree.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

WORD = re.compile(r"[A-Za-z]+")
RESERVED_SALT = "karat-embedded-1"
RESERVED_PERCENT = 18

FUNCTION_WORDS = frozenset(
    """a about above across after again against ago all almost along already also although always am among an and
    another any anyone anything are around as ask asked at away back be became because become been before began
    begin behind being below beside best better between big both but by call called came can cannot could day
    days did do does done down each either else enough even ever every everyone everything far few first five
    for forth four from full gave get give go goes going gone good got great had half has have having he her
    here hers herself him himself his hour how however i if ill in indeed instead into is it its itself just
    keep kept knew know last least left less let like little long look looked lot made make man many may me men
    might mine minute moment more most much must my myself name named near nearly need never new next no nobody
    none nor not nothing now o of off often oh old on once one ones only onto or other others our ours ourselves
    out over own part people perhaps place poor put quite rather ready really rest right s said same saw say
    second see seem seemed seen seven several shall she should side since six small so some somebody someone
    something sometimes somewhere soon sort still story such sure t take taken tale tell ten than that the thee
    their theirs them themselves then there these they thing things think this those thou though thought three
    through thus thy till time times to together told too took toward towards turned twelve twenty two under
    until up upon us very want wanted was way we week well went were what whatever when where whether which
    while who whole whom whose why will with within without woman women word words would year years yes yet you
    your yours yourself don didn couldn wasn wouldn isn won re ll ve d m mr mrs ah hello hi please thank thanks
    today tomorrow yesterday tonight lots bit kind wish bye sir dear""".split()
)
# Never asked for and never swapped in: no nouns after all, or unkind.
UNFIT = frozenset(
    """negro nigger savage slave slut devil doe longer third worse plain goin end sort deal sooner bilin sayin singin
    lowing soured genteel diligent poignant subsequent devoid merrier incarnate brac redskin pagan gipsy lunatic
    suicide pariah brat miscreant hunchback idolater bomb drug""".split()
)
IRREGULAR = {
    "mice": "mouse",
    "geese": "goose",
    "feet": "foot",
    "teeth": "tooth",
    "children": "child",
    "oxen": "ox",
    "leaves": "leaf",
    "wolves": "wolf",
    "knives": "knife",
    "wives": "wife",
    "lives": "life",
    "loaves": "loaf",
    "thieves": "thief",
    "calves": "calf",
    "shelves": "shelf",
    "elves": "elf",
    "scarves": "scarf",
    "halves": "half",
    "hooves": "hoof",
    "selves": "self",
    "dwarves": "dwarf",
}
DETERMINERS = frozenset(
    """a an the this that these those my your his her its our their some any every each no another one two three
    four many""".split()
)
PREPOSITIONS = frozenset(
    """of in on at with from for to and or but was were is are had has who which that would could will by under over
    into out up down as than then so when while because behind near beside before after until like without came
    went said did does can if be where""".split()
)
SUBJECTS = frozenset(
    "i he she they we you it to would could will can should must did not never let who shall might may".split()
)
SPEAKS = frozenset(
    "said asked thought wanted felt smiled replied cried answered laughed looked saw named knew loved called".split()
)


def stem(word: str) -> str:
    """A crude stem: inflections of a word agree ("fox", "foxes", "fox's"); unrelated words may agree too, which is
    harmless.
    """
    word = word.lower()
    word = IRREGULAR.get(word, word)
    for ending, replacement in (
        ("ies", "y"),
        ("sses", "ss"),
        ("xes", "x"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("zes", "z"),
        ("oes", "o"),
    ):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            word = word[: -len(ending)] + replacement
            break
    else:
        if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
            word = word[:-1]
    for ending in ("ing", "ed", "er", "ly"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] in "bdgmnprt":
        word = word[:-1]
    if word.endswith("e") and len(word) > 3:
        word = word[:-1]
    return word[:-1] + "i" if word.endswith("y") and len(word) > 3 else word


def is_reserved(word: str) -> bool:
    """Whether the word's stem is kept out of every request and every substitution of the training."""
    digest = hashlib.sha256(f"{RESERVED_SALT}:{stem(word)}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < RESERVED_PERCENT


def plural(noun: str) -> str:
    """The regular (or listed irregular) plural, lower case."""
    for many, one in IRREGULAR.items():
        if one == noun:
            return many
    if noun.endswith(("s", "x", "ch", "sh", "z")):
        return noun + "es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def inflections(word: str) -> frozenset[str]:
    """Lower-case forms that count as the word: itself, plural or third person, past, -ing (the possessive is the word
    itself).
    """
    word = word.lower()
    base = word[:-1] if word.endswith("e") else word
    forms = {word, plural(word), base + "ed", base + "ing"}
    if len(word) > 2 and word[-1] not in "aeiouywx" and word[-2] in "aeiou" and word[-3] not in "aeiou":
        forms |= {word + word[-1] + "ed", word + word[-1] + "ing"}
    if word.endswith("s"):
        forms |= {word[:-1], word[:-2]} if word.endswith("es") else {word[:-1]}
    return frozenset(forms)


def contains(text: str, word: str) -> bool:
    """Whether `text` has the word, whole, in any inflection, in any case."""
    forms = inflections(word)
    return any(match.group().lower() in forms for match in WORD.finditer(text))


def article(word: str) -> str:
    """'a' or 'an' by the first letter, with the usual exceptions."""
    if word.lower().startswith(("hour", "honest", "honour", "honor", "heir")):
        return "an"
    return (
        "an" if word[0].lower() in "aeiou" and not word.lower().startswith(("uni", "use", "eu", "one", "once")) else "a"
    )


@dataclass(frozen=True)
class Lexicon:
    """Nouns of a corpus (lower case, singular): how often each occurs, which are animate, and first names
    (capitalised).
    """

    counts: dict[str, int]
    animate: frozenset[str]
    names: tuple[str, ...]


def build_lexicon(texts: Iterable[str], min_count: int = 4) -> Lexicon:
    """Find the nouns by how words are used: after a determiner, closing a noun phrase, seldom after a pronoun, with a
    plural or 'a'.
    """
    total: Counter[str] = Counter()
    closes: Counter[str] = Counter()  # determiner (adjective)? WORD (punctuation | preposition | verb to be)
    verbal: Counter[str] = Counter()  # pronoun or auxiliary before it
    speaks: Counter[str] = Counter()
    indefinite: Counter[str] = Counter()
    capital: Counter[str] = Counter()  # upper case inside a sentence
    upper: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for text in texts:
        tokens = re.findall(r"[A-Za-z]+|[.,;:!?\"\n]", text)
        lower = [token.lower() for token in tokens]
        for i in range(2, len(tokens) - 1):
            word, before, after = lower[i], lower[i - 1], lower[i + 1]
            if len(word) < 3:
                continue
            total[word] += 1
            if tokens[i][0].isupper():
                upper[word] += 1
                capital[word] += before.isalpha()
                named[word] += before in ("named", "called")
            if (before in DETERMINERS or lower[i - 2] in DETERMINERS) and (
                not after.isalpha() or after in PREPOSITIONS
            ):
                closes[word] += 1
                indefinite[word] += before in ("a", "an") or lower[i - 2] in ("a", "an")
            verbal[word] += before in SUBJECTS
            speaks[word] += after in SPEAKS
    counts: dict[str, int] = {}
    for word, count in total.items():
        singular = word[:-1] if word.endswith("s") and not word.endswith("ss") else word
        if (
            count < min_count
            or word in FUNCTION_WORDS | UNFIT
            or word in IRREGULAR
            or (singular != word and total[singular] * 2 > count)
        ):
            continue
        if word.endswith(("ing", "ed", "ly", "est")) and closes[word] < 0.35 * count:
            continue
        common = capital[word] < 0.5 * count
        if (
            common
            and closes[word] >= max(2, 0.2 * count)
            and verbal[word] <= 0.12 * count
            and (indefinite[word] or total[plural(word)])
        ):
            counts[word] = count + total[plural(word)]
    animate = frozenset(word for word in counts if speaks[word] >= max(2, 0.02 * total[word]))
    names = tuple(
        sorted(
            w.capitalize() for w in total if named[w] >= 2 and upper[w] >= 0.8 * total[w] and w not in FUNCTION_WORDS
        )
    )
    return Lexicon(counts, animate, names)
