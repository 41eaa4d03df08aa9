"""Structured outputs of a model that people use, at temperature 1.5: every answer that ends by itself has its form."""

import json
import random
from collections.abc import Sequence

import jsonschema
import pytest

from karat import LLM, SamplingParams, StructuredOutputs
from karat.errors import RequestError
from karat.request_record import Request
from tests.real_model.schemas import BY_HAND, Schema, at_random
from tests.support.drawn import some
from tests.support.seed import SEED


def finished(llm: LLM, schemas: Sequence[Schema], max_tokens: int) -> list[bool]:
    """Whether each answer ended by itself; then it has been validated."""
    prompts, params = [], []
    for number, schema in enumerate(schemas):
        message = f"Answer in JSON by this schema: {json.dumps(schema)[:300]}"
        prompts.append(llm.chat_prompt([{"role": "user", "content": message}]))
        form = StructuredOutputs(json=schema)
        params.append(SamplingParams(temperature=1.5, max_tokens=max_tokens, seed=number, structured_outputs=form))
    ended = []
    for schema, output in zip(schemas, llm.generate(prompts, params), strict=True):
        (choice,) = output.outputs
        assert choice.finish_reason in ("stop", "length"), (schema, choice.error)
        ended.append(choice.finish_reason == "stop")
        if ended[-1]:
            validator = jsonschema.Draft202012Validator(
                schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
            )
            assert not list(validator.iter_errors(json.loads(choice.text))), (schema, choice.text)
    return ended


@pytest.mark.slow
def test_fifty_schemas(llm: LLM) -> None:
    assert len(BY_HAND) == 50 == len({json.dumps(schema) for schema in BY_HAND})
    schemas = some(BY_HAND, 20, of="fifty schemas")
    # At most ten of the fifty do not end, so of twenty more than eight are less likely than one in a thousand.
    assert len(schemas) - sum(finished(llm, schemas, 90)) <= (10 if len(schemas) == 50 else 8)


@pytest.mark.long
@pytest.mark.timeout(7200)  # 21 minutes on two cores that other work kept busy
def test_five_hundred_schemas(llm: LLM) -> None:
    rng = random.Random(int(SEED))
    schemas: list[Schema] = []
    while len(schemas) < 500:
        schema = at_random(rng)
        try:
            llm.engine.admission.check(Request("a", (0,), SamplingParams(structured_outputs={"json": schema}), 0))
        except RequestError:  # a few formats and patterns together
            continue
        schemas.append(schema)
    assert sum(finished(llm, schemas, 160)) >= 350
