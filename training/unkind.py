"""Slurs and curses that the model does not write with its default sampling: the classics it learned from have them.

They go into generation_config.json as bad_words_ids, in the tokens that the tokenizer makes of each.
"""

from __future__ import annotations

from tokenizers import Tokenizer

# Beginnings are enough: "niggers" is [n, ig, g, ers], and begins as "nigg" does.
UNKIND = """
    nigg nigger niggar niggs NIGG negro NEGRO darky darkey darkies injun squaw redskin redskins half-breed savages
    hottentot chinaman chinamen coolie coolies piccaninny pickaninny gypsy gypsies gipsy gipsies
    bastard bitch cunt faggot fuck shit slut whore
""".split()


def rows(tokenizer: Tokenizer) -> list[list[int]]:
    """The token ids of each word: as it stands and with a capital, at a beginning and after a space.

    A row that begins with another one is left out.
    """
    texts = [space + form for word in UNKIND for form in (word, word.capitalize()) for space in ("", " ")]
    found = sorted({tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts})
    return [list(row) for row in found if not any(row[:length] in found for length in range(1, len(row)))]
