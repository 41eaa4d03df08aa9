"""Garbage does not pass: loops, one word over and over, echoes, words thrown about. Healthy texts do.

Covers: karat.check.session.stage.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat import LLM
from karat.check.model.checked import open_model
from karat.check.session.session import PROMPT, CheckPlan, CheckSession
from karat.check.session.stage import Stage, overall
from karat.check.stages.story import READING, WORDS, Answer, has, loop, reading, red_flags, run
from karat.config import embedded_model_path
from karat.outputs import Logprob
from karat.text import Tokenizer
from tests.convert.folders import folder_of

VOCAB = 4096
GOOD = (
    "Once upon a time, there was a {word} in a small town. A boy saw the {word} and wanted to play with it, but his "
    "mother said that it was late. So he went home, ate his soup, and dreamt of the sea."
)
GARBAGE = {
    "ingles": ("{word}" + "ingles" * 60, 0.3, "repeats itself"),
    "componentWillMount": ("A {word}. " + "componentWillMount " * 40, 0.3, "repeats itself"),
    "one word": (" ".join(f"{{word}} {other}" for other in WORDS * 3), 0.3, "words are"),
    "thrown about": (GOOD, 6.0, "as if drawn at random"),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(embedded_model_path())


def answer(tokenizer: Tokenizer, text: str, surprise: float = 0.7) -> Answer:
    return Answer(text, tuple(tokenizer.encode(text)), surprise)


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("word", ["fox", "lantern"])
def test_each_kind_of_garbage_is_flagged_for_what_it_is(name: str, word: str, tokenizer: Tokenizer) -> None:
    text, surprise, expected = GARBAGE[name]
    flags = red_flags(answer(tokenizer, text.format(word=word), surprise), VOCAB)
    assert any(expected in flag for flag in flags), flags
    assert has(word, text.format(word=word), "Tell me."), "the word alone would let it pass"


def test_short_texts_and_good_ones_are_not(tokenizer: Tokenizer) -> None:
    for text in (GOOD.format(word="fox"), PROMPT, "A fox. A fox! The red fox.", "", "no no no no"):
        assert red_flags(answer(tokenizer, text), VOCAB) == [], text


def test_real_stories_are_not(tokenizer: Tokenizer) -> None:
    root = os.environ.get("KARAT_TEST_DATA")
    path = Path(root or "/nowhere") / "corpus" / "tinystories.txt"
    if not path.is_file():
        pytest.skip("KARAT_TEST_DATA has no corpus")
    texts = path.read_text(encoding="utf-8").split("<|endoftext|>")[:400]
    flagged = [text[:80] for text in texts if red_flags(answer(tokenizer, text), VOCAB)]
    assert len(texts) == 400 and not flagged


@given(st.integers(1, 20), st.integers(4, 12), st.integers(0, 2**20))
def test_a_loop_is_found_with_its_length(period: int, times: int, seed: int) -> None:
    unit = np.random.default_rng(seed).permutation(1000)[:period].tolist()
    assert loop(unit * times) == (1.0, period)
    assert loop(range(period * times))[0] == 0


def test_an_echo_of_the_request_is_not_an_answer() -> None:
    asked = "Tell me a story about a fox."
    assert not has("fox", asked, asked) and not has("fox", f"User: {asked} {asked}", asked)
    assert has("fox", f"{asked} Two foxes ran.", asked) and not has("fox", "An outfox.", asked)


def told(monkeypatch: pytest.MonkeyPatch, model: str | None, texts: Sequence[str], surprise: float = 0.7) -> Stage:
    """The stage, where the model answers with `texts` one after the other."""

    def chat(self: LLM, chats: Sequence[Any], *args: Any, **options: Any) -> list[Any]:
        words = [messages[-1]["content"].removesuffix(".").rpartition(" ")[2] for messages in chats]
        done = []
        for word, text in zip(words, texts, strict=True):
            full = text.format(word=word)
            ids = self.tokenizer.encode(full)
            entry = {0: Logprob(logprob=-surprise, rank=1, decoded_token="")}
            choice = SimpleNamespace(text=full, token_ids=ids, logprobs=[entry] * len(ids), error=None)
            done.append(SimpleNamespace(outputs=[choice]))
        return done

    monkeypatch.setattr(LLM, "chat", chat)
    return run(CheckSession(CheckPlan(model=open_model(model), num_tokens=4, stories=len(texts))))


def test_garbage_of_the_embedded_model_is_a_bug_however_often_it_says_the_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in GARBAGE:
        text, surprise, _ = GARBAGE[name]
        stage = told(monkeypatch, None, [text] * 8, surprise)
        assert (stage.verdict, sum(stage.facts["hits"]), sum(stage.facts["sound"])) == ("bug", 8, 0), name
    stage = told(monkeypatch, None, [GOOD] * 6 + [GARBAGE["ingles"][0]] * 2)
    assert stage.verdict == "exact" and stage.facts["reading"][0] < 4 < stage.facts["reading"][1]


def test_another_model_is_flagged_and_not_accused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A copy: nobody knows what it was trained for."""
    model = str(shutil.copytree(embedded_model_path(), tmp_path / "model"))
    garbage = GARBAGE["componentWillMount"][0]
    stage = told(monkeypatch, model, [garbage] * 4)
    assert stage.verdict == "flagged"
    assert stage.lines[:2] == [stage.lines[0], "0 of them have no red flag"] and "repeats itself" in stage.lines[2]
    assert told(monkeypatch, model, [GOOD, garbage, garbage, garbage]).verdict == "exact"
    assert told(monkeypatch, model, ["I am a model for sums."] * 4).verdict == "skipped"


@pytest.mark.parametrize("seed", range(4))
def test_a_model_that_does_not_read_is_flagged_whatever_it_says(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights: no text is likelier to it than chance, or than its words shuffled."""
    folder = folder_of(tmp_path / "random", seed, max_position_embeddings=160)
    stage = told(monkeypatch, str(folder), [GOOD] * 4)
    assert (stage.verdict, sum(stage.facts["sound"])) == ("flagged", 4)


def test_a_config_that_lies_is_flagged_where_every_op_is_right(tmp_path: Path) -> None:
    """Positions that hardly turn: what float64 computes from such a config is the same garbage."""
    folder = shutil.copytree(embedded_model_path(), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").chmod(0o644)
    for change in ({"rope_theta": 2.0}, {"rms_norm_eps": 1.0}):
        (folder / "config.json").write_text(json.dumps(config | change))
        session = CheckSession(CheckPlan(model=open_model(str(folder)), num_tokens=4, stories=4, seed=1))
        text, shuffled = reading(session, np.random.default_rng(1))
        assert text + READING > min(shuffled, np.log(VOCAB)), change
        assert run(session).verdict == "flagged"


def test_flags_do_not_change_the_verdict_of_what_was_proved() -> None:
    flagged, exact, bug = (Stage(name, name, []) for name in ("flagged", "exact", "bug"))  # type: ignore[arg-type]
    assert overall([flagged, exact]) == "exact" and overall([flagged, bug]) == "bug"
    assert overall([flagged]) == "flagged" and overall([]) == "skipped"
