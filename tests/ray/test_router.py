"""Prefixes, the choice of PrefixRouter: a conversation goes where its beginning is, unless too much waits there."""

import random

import msgspec
import pytest

pytest.importorskip("ray.serve", reason="Ray cannot be had here")
from karat.ray.messages import PREFIX_BLOCK, Ask, decoded, prefix_of
from karat.ray.router import Prefixes
from tests.support.seed import SEED

NAMES = ["a", "b", "c"]
CACHE = 100 * PREFIX_BLOCK


def ask(ids: list[int], *, salt: str | None = None, avoid: tuple[str, ...] = (), tried: int = 0) -> Ask:
    return Ask(prefix_of(ids, salt), len(ids), msgspec.Raw(b"\xc0"), avoid, tried)


def tokens(number: int, seed: int = 0) -> list[int]:
    return random.Random(f"{SEED}-{seed}").choices(range(1000), k=number)


def test_a_conversation_stays() -> None:
    prefixes = Prefixes(slack_tokens=10_000)
    first, other = tokens(300), tokens(300, 1)
    prefixes.routed("1", "b", ask(first), CACHE)
    prefixes.routed("2", "c", ask(other), CACHE)
    assert prefixes.ranked(NAMES, ask(first + tokens(500, 2)))[0] == "b"
    assert prefixes.ranked(NAMES, ask(other + tokens(5, 2)))[0] == "c"
    assert prefixes.ranked(NAMES, ask(tokens(300, 3)))[0] == "a", "a new one goes where the least waits"


def test_the_longest_beginning_wins() -> None:
    prefixes = Prefixes(slack_tokens=10_000)
    text = tokens(6 * PREFIX_BLOCK)
    prefixes.routed("1", "a", ask(text[: 2 * PREFIX_BLOCK]), CACHE)
    prefixes.routed("2", "c", ask(text[: 5 * PREFIX_BLOCK]), CACHE)
    assert prefixes.ranked(NAMES, ask(text)) == ["c", "a", "b"]


def test_tenants_share_nothing() -> None:
    prefixes = Prefixes(slack_tokens=10_000)
    text = tokens(300)
    prefixes.routed("1", "c", ask(text, salt="one"), CACHE)
    prefixes.completed("1")
    assert prefixes.ranked(NAMES, ask(text, salt="two"))[0] == "a"
    assert prefixes.ranked(NAMES, ask(text, salt="one"))[0] == "c"


def test_those_that_come_at_once_are_shared_out() -> None:
    """A request counts from its choice on, and for some seconds if nothing more is heard of it."""
    prefixes, texts = Prefixes(slack_tokens=10_000), [tokens(300, number) for number in range(6)]
    taken = []
    for number, text in enumerate(texts):
        taken.append(prefixes.ranked(NAMES, ask(text), 1.0)[0])
        prefixes.chosen(str(number), taken[-1], ask(text), 1.0)
    assert taken == NAMES * 2
    prefixes.routed("0", "b", ask(texts[0]), CACHE)
    assert prefixes.ranked(NAMES, ask(tokens(300, 7)), 2.0) == ["a", "c", "b"]
    prefixes.completed("2")
    assert prefixes.ranked(NAMES, ask(tokens(300, 7)), 2.0)[-1] == "b"
    assert prefixes.ranked(NAMES, ask(tokens(300, 7)), 60.0) == ["a", "c", "b"], "only what was routed counts"


def test_nobody_waits_long_for_a_cache() -> None:
    prefixes = Prefixes(slack_tokens=1000)
    text = tokens(600)
    prefixes.routed("1", "b", ask(text), CACHE)
    assert prefixes.ranked(NAMES, ask(text))[0] == "b"
    prefixes.routed("2", "b", ask(text), CACHE)
    assert prefixes.ranked(NAMES, ask(text)) == ["a", "c", "b"]
    prefixes.completed("1")
    prefixes.completed("1")
    assert prefixes.ranked(NAMES, ask(text))[0] == "b"


def test_what_no_longer_fits_is_forgotten() -> None:
    prefixes = Prefixes(slack_tokens=10_000)
    text = tokens(2 * PREFIX_BLOCK)
    prefixes.routed("1", "b", ask(text), 3 * PREFIX_BLOCK)
    prefixes.completed("1")
    prefixes.routed("2", "b", ask(tokens(3 * PREFIX_BLOCK, 1)), 3 * PREFIX_BLOCK)
    prefixes.completed("2")
    assert prefixes.ranked(NAMES, ask(text))[0] == "a"


def test_replicas_that_are_lost_come_last_and_gone_ones_have_nothing() -> None:
    prefixes = Prefixes(slack_tokens=10_000)
    text = tokens(300)
    prefixes.routed("1", "a", ask(text), CACHE)
    assert prefixes.ranked(NAMES, ask(text, avoid=("a",)))[-1] == "a"
    assert prefixes.ranked(["a"], ask(text, avoid=("a",))) == ["a"], "better than none"
    prefixes.keep(["b", "c"])
    prefixes.completed("1")
    assert prefixes.ranked(NAMES, ask(text))[0] == "a" and prefixes.ranked(["b", "a"], ask(text))[0] == "b"


def test_one_that_says_nothing_is_followed_by_the_next() -> None:
    prefixes = Prefixes(slack_tokens=10_000)
    text = tokens(300)
    prefixes.routed("1", "b", ask(text), CACHE)
    order = prefixes.ranked(NAMES, ask(text))
    assert [prefixes.ranked(NAMES, ask(text, tried=n))[0] for n in range(4)] == [*order, order[0]]
    assert prefixes.ranked([], ask(text)) == [] and prefixes.ranked(NAMES, None)[0] in NAMES


def test_an_ask_comes_through() -> None:
    asked = ask(tokens(200), avoid=("a",), tried=2)
    found = decoded(Ask, msgspec.msgpack.encode(asked))
    assert found == asked and len(found.blocks) == 200 // PREFIX_BLOCK
