"""GrammarCache whose compiling waits for a gate: what a form costs that takes long to compile."""

from threading import Event, Lock

from karat.engine.requests.grammar_cache import GrammarCache
from karat.request import StructuredOutputs
from karat.text.grammar import Grammar, GrammarCompiler
from karat.text.tokenizer import Tokenizer

GATE_S = 60.0  # until a gate that nothing opens counts as a fault


class SlowForms:
    """`forms` compile for real once `gate` is set. `compiled` are the forms whose compiling began, in order.

    `most` is how many were compiled at a time at the most.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, *, limit_s: float = GATE_S) -> None:
        self.gate = Event()
        self.compiled: list[StructuredOutputs] = []
        self.most = self._now = 0
        self._lock = Lock()
        self._compiler = GrammarCompiler(tokenizer, vocab_size)
        self.forms = GrammarCache(lambda: self._compile, limit_s)

    def _compile(self, form: StructuredOutputs) -> Grammar:
        with self._lock:
            self.compiled.append(form)
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            assert self.gate.wait(GATE_S), "whoever opens the gate waits for what is compiled"
            return self._compiler.compile(form)
        finally:
            with self._lock:
                self._now -= 1
