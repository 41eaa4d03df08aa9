"""`karat` whose server takes three seconds to compile a form with the word slow, of which the limit is one."""

import sys
import time

from karat.cli import main
from karat.engine.requests.grammar_cache import GrammarCache
from karat.request import StructuredOutputs
from karat.text.grammar import Grammar, GrammarCompiler
from karat.text.tokenizer import Tokenizer


def slow_forms(tokenizer: Tokenizer, vocab_size: int) -> GrammarCache:
    compiler = GrammarCompiler(tokenizer, vocab_size)

    def compiled(form: StructuredOutputs) -> Grammar:
        if "slow" in (form.regex or ""):
            time.sleep(3)
        return compiler.compile(form)

    return GrammarCache(lambda: compiled, 1.0)


if __name__ == "__main__":
    GrammarCache.of = slow_forms  # type: ignore[assignment]
    sys.exit(main())
