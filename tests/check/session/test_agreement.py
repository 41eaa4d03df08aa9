"""Two sets of logits compared: NaN and infinity never pass for agreement, wherever they are.

Covers: karat.check.session.session.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.check.model.checked import open_model
from karat.check.session import agreement
from karat.check.session.session import CheckPlan, CheckSession
from tests.support.drawn import examples

BAD = (np.nan, np.inf, -np.inf)


@settings(max_examples=examples(80), deadline=None)
@given(seed=st.integers(0, 2**31), bad=st.sampled_from(BAD), side=st.sampled_from(["ours", "theirs", "both"]))
def test_what_is_not_finite_is_never_equal(seed: int, bad: float, side: str) -> None:
    rng = np.random.default_rng(seed)
    right = rng.standard_normal((int(rng.integers(1, 40)), int(rng.integers(2, 9))))
    row, token_id = (int(rng.integers(n)) for n in right.shape)
    broken = right.copy()
    broken[row, token_id] = bad
    ours, theirs = (broken if side in (which, "both") else right for which in ("ours", "theirs"))
    facts = agreement.logit_facts(ours, theirs)
    assert facts["largest"] == facts["kl"] == facts["rms"] == np.inf
    assert facts["top1"] == len(right) - 1 and facts["top5"] == len(right) - 1
    assert any(f"row {row}" in flip and not flip.startswith("flip") for flip in facts["flips"]), facts["flips"]
    found = agreement.greedy_difference(theirs, ours)
    assert found is not None and found.startswith(f"bug: token {row}:")
    text = agreement.not_finite(broken, range(100, 140))
    assert text is not None and f"token {100 + row}:" in text and f"id {token_id}" in text
    assert agreement.not_finite(right, range(40)) is None


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_finite_logits_are_compared_as_they_were(seed: int) -> None:
    """Against formulas over the whole arrays at once."""
    rng = np.random.default_rng(seed)
    right = rng.standard_normal((int(rng.integers(1, 40)), 9))
    ours = right + 1e-3 * rng.standard_normal(right.shape)
    facts = agreement.logit_facts(ours, right)
    assert facts["largest"] == np.abs(ours - right).max()
    assert facts["rms"] == pytest.approx(np.sqrt(np.mean((ours - right) ** 2)))
    assert facts["deviation"] == pytest.approx(right.std())
    assert facts["top1"] == (ours.argmax(1) == right.argmax(1)).sum()
    p, q = (np.exp(x - np.logaddexp.reduce(x, axis=1, keepdims=True)) for x in (right, ours))
    divergences = (p * np.log(p / q)).sum(axis=1)
    assert facts["kl"] == pytest.approx(divergences.max(), rel=1e-6, abs=1e-14)
    assert facts["mean_kl"] == pytest.approx(divergences.mean(), rel=1e-6, abs=1e-14)


def test_tokens_are_shown_with_their_texts() -> None:
    theirs, ours = np.zeros((2, 9)), np.zeros((2, 9))
    theirs[1, 4], ours[1, 7] = 1.0, 1.0
    words = {4: "4 ' there ('", 7: "7 'fish'"}
    (flip,) = agreement.logit_facts(ours, theirs, words.__getitem__)["flips"]
    assert "in row 1: 7 'fish' here, 4 ' there (' there; margin 1" in flip
    found = agreement.greedy_difference(theirs, ours, shown=words.__getitem__)
    assert found is not None and "token 1 is 7 'fish' here (ahead by 1), 4 ' there (' there (ahead by 1)" in found


def test_a_session_shows_the_text_of_a_token() -> None:
    model = open_model(None)
    session = CheckSession(CheckPlan(model=model, num_tokens=4))
    token_id = session.tokenizer.encode("fish")[-1]
    assert session.shown(token_id) == f"{token_id} {session.tokenizer.decode([token_id])!r}"
    assert session.shown(model.config.vocab_size - 1).startswith(f"{model.config.vocab_size - 1} ")
