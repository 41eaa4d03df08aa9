"""Documents: the corpus on disk, the held-out split, and passages for plain language modelling."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

END_OF_TEXT, IM_START, IM_END = 0, 1, 2  # ids of <|endoftext|>, <|im_start|>, <|im_end|>
DOCUMENT_FILES = ("tinystories", "fairytales", "african_storybook")
NUM_HELD_OUT = 200
SHINGLE_WORDS = 8


@dataclass(frozen=True)
class Document:
    """One story or passage; `source` is the corpus file's stem."""

    source: str
    text: str


def load_documents(corpus: Path) -> list[Document]:
    """Stories of the three story files in file order: pieces between <|endoftext|>, stripped, of over 80 characters.

    Raises FileNotFoundError naming the missing file.
    """
    documents = []
    for source in DOCUMENT_FILES:
        pieces = read(corpus, source).split("<|endoftext|>")
        documents += [Document(source, piece.strip()) for piece in pieces if len(piece.strip()) > 80]
    return documents


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """(training, held out): indices shuffled by random.seed(0); the first 200 are held out.

    The same 200 were held out of the warm start. Training documents whose text is also a held-out text are dropped.
    """
    indices = list(range(len(documents)))
    random.Random(0).shuffle(indices)
    held_out = [documents[i] for i in indices[:NUM_HELD_OUT]]
    seen = {shingle for document in held_out for shingle in shingles(document.text)}
    training = [documents[i] for i in sorted(indices[NUM_HELD_OUT:])]
    return [document for document in training if not overlaps(document.text, seen)], held_out


def load_classics(corpus: Path, held_out: list[Document]) -> list[Document]:
    """Passages of about 250 words (whole paragraphs) of the classics, without those that repeat a held-out text."""
    seen = {shingle for document in held_out for shingle in shingles(document.text)}
    passages = []
    for book in re.split(r"^# Title: .*$", read(corpus, "classics"), flags=re.MULTILINE):
        paragraphs = [p.strip() for p in book.replace("<|endoftext|>", "\n\n").split("\n\n")]
        passages += passages_of([p for p in paragraphs if p and not p.startswith(("#", "---"))])
    return [Document("classics", text) for text in passages if not overlaps(text, seen)]


def load_passages(document: Document) -> list[Document]:
    """A long story in passages of about 250 words; a short one as it is."""
    return [Document(document.source, text) for text in passages_of(document.text.split("\n"))]


def passages_of(paragraphs: list[str], max_words: int = 230) -> list[str]:
    """Join consecutive paragraphs up to `max_words`; a longer paragraph is cut at sentence ends. Never drops text."""
    pieces: list[str] = []
    for paragraph in paragraphs:
        if len(paragraph.split()) <= max_words:
            pieces.append(paragraph)
            continue
        current = ""
        for sentence in re.split(r"(?<=[.!?\"'])\s+(?=[\"'A-Z])", paragraph):
            if current and len(f"{current} {sentence}".split()) > max_words:
                pieces.append(current)
                current = ""
            current = f"{current} {sentence}".strip()
        pieces.append(current)
    passages: list[str] = []
    num_words = max_words + 1
    for piece in pieces:
        length = len(piece.split())
        if num_words + length > max_words:
            passages.append(piece)
            num_words = length
        else:
            passages[-1] += "\n" + piece
            num_words += length
    return [passage for passage in passages if passage]


def unwrap(text: str) -> str:
    """Join lines broken inside a sentence, as the African storybooks have them."""
    return re.sub(r"(?<![.!?:\"'])\n(?=\S)", " ", text)


def shingles(text: str) -> set[int]:
    """Hashes of every run of eight lower-case words."""
    words = re.findall(r"[a-z]+", text.lower())
    return {hash(tuple(words[i : i + SHINGLE_WORDS])) for i in range(len(words) - SHINGLE_WORDS + 1)}


def overlaps(text: str, seen: set[int], share: float = 0.2) -> bool:
    """Whether at least `share` of the text's shingles are in `seen`."""
    own = shingles(text)
    return bool(own) and len(own & seen) >= share * len(own)


def read(corpus: Path, source: str) -> str:
    path = corpus / f"{source}.txt"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} not found: --corpus must name the folder that has {', '.join(DOCUMENT_FILES)} and classics (.txt)"
        )
    return path.read_text(encoding="utf-8")
