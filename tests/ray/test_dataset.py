"""generate: columns of answers, which are those of LLM with the row's seed, also where an actor is killed."""

import os
import random
import signal
from dataclasses import replace
from typing import Any

import pytest

from karat.batch_files.lines import seed_of
from karat.engine.llm import LLM
from tests.support.ray_nodes import processes
from tests.support.seed import SEED

ray = pytest.importorskip("ray.data", reason="Ray cannot be had here") and pytest.importorskip("ray")

from karat.ray import generate  # noqa: E402 - it needs Ray

GIVEN = {"seed": 7, "cores": 1, "max_model_len": 256}


def answers_here(rows: list[dict[str, Any]], num_tokens: int) -> dict[str, tuple[str, int, int]]:
    llm, seeds = LLM(threads=1, max_model_len=256), [seed_of(7, row["name"]) for row in rows]
    params = [replace(llm.default_params, max_tokens=num_tokens, seed=seed) for seed in seeds]
    found = llm.generate([row["prompt"] for row in rows], params, use_tqdm=False)
    told = zip(rows, found, seeds, strict=True)
    return {row["name"]: (out.outputs[0].text, seed, len(out.outputs[0].token_ids)) for row, out, seed in told}


def test_answers_are_those_of_a_process_here_whoever_dies(cluster: str) -> None:
    """Whatever the order of the rows. An actor is killed in the middle, and each row has one answer in the end."""
    draws = random.Random(f"{SEED}-dataset")
    rows = [{"prompt": f"Once upon a time {i}", "name": f"row {i}", "kept": [i, None]} for i in range(300)]
    expected = answers_here(rows, 30)
    draws.shuffle(rows)
    given = ray.data.from_items(rows, override_num_blocks=10)
    made = generate(given, params={"max_tokens": 30}, id_column="name", **GIVEN)  # type: ignore[arg-type]
    killed, found = list[int](), list[dict[str, Any]]()

    def kill() -> None:
        if actors := processes("ray::MapWorker"):
            killed.append(draws.choice(actors))
            os.kill(killed[0], signal.SIGKILL)

    for row in made.iter_rows():
        if not found:
            kill()
        found.append(row)
    assert killed and len(found) == len(rows) and {row["error"] for row in found} == {None}
    assert {row["name"]: (row["text"], row["seed"], row["num_tokens"]) for row in found} == expected
    assert {row["name"]: row["kept"] for row in found} == {row["name"]: row["kept"] for row in rows}


@pytest.mark.slow
def test_conversations_and_rows_that_ask_for_nothing(cluster: str) -> None:
    talk = [{"role": "user", "content": "Tell me of a fox."}]
    rows = [{"id": 1, "asked": talk}, {"id": 2, "asked": [{"role": "nobody", "content": "x"}]}]
    made = generate(ray.data.from_items(rows), column="asked", params={"max_tokens": 5}, engines=1, **GIVEN)  # type: ignore[arg-type]
    good, bad = sorted(made.take_all(), key=lambda row: row["id"])
    assert good["num_tokens"] <= 5 and good["text"] and good["error"] is None
    assert bad["text"] is None and "nobody" in bad["error"]
