"""Greedy generation token by token as transformers' `generate` does it for the same folder, with its defaults."""

from pathlib import Path
from typing import Any

import pytest

from karat import LLM
from tests.engine.tiny import ENDOFTEXT, write_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PROMPT = "Once upon a time"
CONTEXT = 48
REST = CONTEXT - len(PROMPT)
CASES: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "no generation config": (None, {}),
    "end token of config.json": (None, {"eos_token_id": "third"}),
    "an end token among several": ({"eos_token_id": [ENDOFTEXT, "third"]}, {}),
    "generation config before config.json": ({"eos_token_id": "fifth"}, {"eos_token_id": "third"}),
    "repetition penalty": ({"repetition_penalty": 1.7}, {}),
    "min_new_tokens": ({"min_new_tokens": 8, "eos_token_id": "third"}, {}),
    "max_new_tokens": ({"max_new_tokens": 9}, {}),
    "all at once": (
        {"repetition_penalty": 1.3, "min_new_tokens": 3, "max_new_tokens": 30, "eos_token_id": ["fifth", ENDOFTEXT]},
        {},
    ),
    "sampling values without do_sample": ({"temperature": 0.7, "top_k": 3, "top_p": 0.5}, {}),
}


def with_tokens(raw: dict[str, Any] | None, tokens: dict[str, int]) -> Any:
    """The names "third" and "fifth" replaced by those tokens of the plain greedy continuation."""

    def named(value: Any) -> Any:
        return [named(v) for v in value] if isinstance(value, list) else tokens.get(value, value)

    return None if raw is None else {key: named(value) for key, value in raw.items()}


@pytest.mark.parametrize("case", CASES)
def test_greedy(tmp_path: Path, case: str) -> None:
    plain = LLM(write_model(tmp_path), dtype="float64", max_model_len=CONTEXT).generate(PROMPT)[0].outputs[0].token_ids
    tokens = {"third": plain[2], "fifth": plain[4]}
    generation_config, config = (with_tokens(raw, tokens) for raw in CASES[case])
    folder = write_model(tmp_path, generation_config=generation_config, **config)
    (output,) = LLM(folder, dtype="float64", max_model_len=CONTEXT).generate(PROMPT)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    length = {} if "max_new_tokens" in (generation_config or {}) else {"max_new_tokens": REST}
    theirs = model.generate(torch.tensor([output.prompt_token_ids]), pad_token_id=0, **length)
    assert list(output.outputs[0].token_ids) == theirs[0, len(PROMPT) :].tolist()
    expected = {"min_new_tokens": (8, REST), "max_new_tokens": (9, 9), "end token of config.json": (1, 3)}
    least, most = expected.get(case, (1, REST))
    assert least <= len(output.outputs[0].token_ids) <= most
