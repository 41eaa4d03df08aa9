"""generate: a column of answers, which are those of LLM with the row's seed."""

import pytest

from karat.batch_files.lines import seed_of
from karat.engine.llm import LLM
from karat.request import SamplingParams

ray = pytest.importorskip("ray", reason="Ray cannot be had here")

from karat.ray import generate  # noqa: E402 - it needs Ray


@pytest.mark.slow
def test_answers_are_those_of_a_process_here(cluster: str) -> None:
    """Whatever the order of the rows, and how many an actor gets at a time."""
    rows = [{"prompt": f"Once upon a time {i}", "name": f"row {i}"} for i in range(6)]
    llm = LLM(threads=1)
    expected = {}
    for row in rows:
        seed = seed_of(7, row["name"])
        (output,) = llm.generate([row["prompt"]], SamplingParams(max_tokens=6, seed=seed), use_tqdm=False)
        expected[row["name"]] = (output.outputs[0].text, seed, len(output.outputs[0].token_ids))
    given = {"params": {"max_tokens": 6}, "seed": 7, "id_column": "name", "cores": 1, "max_model_len": 256}
    found = generate(ray.data.from_items(rows[::-1]), rows_at_a_time=4, **given).take_all()
    assert {row["name"]: (row["text"], row["seed"], row["num_tokens"]) for row in found} == expected
    assert {row["prompt"] for row in found} == {row["prompt"] for row in rows}
