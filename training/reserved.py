"""Words for measuring whether a story has the word asked for, by how often the corpus uses them.

`python -m training.reserved --corpus DIR` writes the reserved ones to tests/data/reserved_words.json.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from training import requests
from training.batches import Corpus
from training.words import Lexicon, inflections, is_reserved

BANDS = {"common": 100, "medium": 20, "rare": 4}  # the least number of uses
TEMPLATES = requests.ABOUT + requests.WITH_WORDS + requests.OLD_TALES + requests.ANY_STORY + requests.ECHO
TARGET = Path("tests/data/reserved_words.json")


def bands_of(lexicon: Lexicon, reserved: bool = True) -> dict[str, list[str]]:
    """Singular nouns by band, sorted: the reserved ones of which no form is in any request, or the requestable ones."""
    spoken = set(re.findall(r"[a-z]+", " ".join(TEMPLATES + requests.SYSTEM).lower()))
    for word in lexicon.counts:
        if not is_reserved(word):
            spoken |= inflections(word)
    bands: dict[str, list[str]] = {band: [] for band in BANDS}
    for word, count in sorted(lexicon.counts.items()):
        if word.endswith("s") or is_reserved(word) != reserved or (reserved and inflections(word) & spoken):
            continue
        bands[next(band for band, least in BANDS.items() if count >= least)].append(word)
    return bands


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.reserved", description="Write the reserved words.")
    parser.add_argument("--corpus", type=Path, required=True)
    bands = bands_of(Corpus.load(parser.parse_args().corpus).lexicon)
    TARGET.write_text(json.dumps(bands, indent=1) + "\n")
    print({band: len(words) for band, words in bands.items()})


if __name__ == "__main__":
    main()
