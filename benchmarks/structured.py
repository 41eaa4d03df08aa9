"""What structured outputs cost a step: python -m benchmarks.structured FILE

Eight sequences decode, in turns with a JSON Schema and without, sampled at temperature 1. A sample is one step of all
eight; steps in which one has not begun, or has ended, do not count. Prints one JSON object: the median step of each
kind in milliseconds, the overhead as the median over the turns of their ratio, and the milliseconds of a step that went
into grammars alone (tokens taken, masks made).
"""

import argparse
import json
import statistics
import time
from itertools import count
from pathlib import Path
from typing import Any

from karat import LLM
from karat.request import SamplingParams, StructuredOutputs
from karat.request_record import Request
from karat.text.grammar import Form

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 20, "maxLength": 80},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 4, "maxItems": 9},
        "notes": {"type": "array", "items": {"type": "string", "minLength": 40}, "minItems": 9},
    },
    "required": ["name", "age", "tags", "notes"],
    "additionalProperties": False,
}
PROMPT = "Describe somebody as JSON with name, age, tags and notes."
_names = map(str, count())


class Watch:
    """Seconds spent in methods of Form."""

    def __init__(self) -> None:
        self.total_s = 0.0

    def on(self, name: str) -> None:
        inner = getattr(Form, name)

        def timed(form: Form, *given: Any) -> Any:
            begun = time.perf_counter()
            try:
                return inner(form, *given)
            finally:
                self.total_s += time.perf_counter() - begun

        setattr(Form, name, timed)


def steps(llm: LLM, num_seqs: int, num_tokens: int, form: StructuredOutputs | None) -> list[float]:
    """Seconds of each step in which all sequences decode."""
    engine = llm.engine
    ids = tuple(llm.chat_prompt([{"role": "user", "content": PROMPT}]).token_ids)
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, structured_outputs=form)
    for number in range(num_seqs):
        engine.add_request(Request(next(_names), ids, params, number))
    taken: list[float] = []
    while engine.has_work:
        before, begun = engine.stats(), time.perf_counter()
        engine.step()
        took_s, after = time.perf_counter() - begun, engine.stats()
        has_prompt = after.num_prompt_tokens > before.num_prompt_tokens
        if after.num_generated_tokens - before.num_generated_tokens == num_seqs and not has_prompt:
            taken.append(took_s)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structured")
    parser.add_argument("file", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    llm = LLM(options.file, max_num_seqs=options.batch, max_model_len=512)
    form, watch = StructuredOutputs(json=SCHEMA), Watch()
    for each in (form, None):
        steps(llm, options.batch, 8, each)
    watch.on("push")
    watch.on("fitting")
    free_s, formed_s, ratios, num_formed = [], [], [], 0
    for turn in range(options.repeat):
        taken = {}
        for each in (None, form) if turn % 2 else (form, None):
            taken[each] = steps(llm, options.batch, options.tokens, each)
        free_s += taken[None]
        formed_s += taken[form]
        num_formed += len(taken[form])
        ratios.append(statistics.median(taken[form]) / statistics.median(taken[None]))
    print(
        json.dumps(
            {
                "batch": options.batch,
                "steps": {"free": len(free_s), "formed": len(formed_s)},
                "free_ms": statistics.median(free_s) * 1000,
                "formed_ms": statistics.median(formed_s) * 1000,
                "overhead": statistics.median(ratios) - 1,
                "grammar_ms": watch.total_s / num_formed * 1000,
            }
        )
    )


if __name__ == "__main__":
    main()
