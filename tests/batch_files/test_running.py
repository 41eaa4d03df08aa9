"""A batch from its input to its output: order, repetition, edits, and what is left after an end at any place."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.batch_files import asking, running
from karat.batch_files.asking import PatientPlace
from karat.batch_files.journal import BatchAnswer, Journal
from karat.batch_files.lines import LineReading
from karat.batch_files.running import Batch, BatchMeter, answer_pending, duration, facts_of, survey, write_results
from karat.batch_files.sources import RequestLines
from karat.errors import ClientError, UsageError
from karat.http_client import FailedError
from tests.support.drawn import examples


class Echo:
    """A place that answers what it was sent, a moment later. After `stops_after` answers it gives none.

    `pause`: what it waits for before an answer, by its number.
    """

    def __init__(
        self,
        name: str = "here",
        stops_after: int | None = None,
        pause: Callable[[int], Awaitable[object]] = lambda number: asyncio.sleep(random.random() / 1000),
    ) -> None:
        self.name = name
        self.asked: list[dict[str, Any]] = []
        self.stops_after = stops_after
        self.pause = pause

    async def post(self, route: str, body: bytes) -> tuple[BatchAnswer, Mapping[str, str]]:
        if self.stops_after is not None and len(self.asked) >= self.stops_after:
            raise FailedError("the connection was refused")
        sent = json.loads(body)
        self.asked.append(sent)
        await self.pause(len(self.asked))
        made = {"id": f"x{random.random()}", "echo": sent, "usage": {"completion_tokens": 3}}
        return BatchAnswer(400 if "wrong" in sent["prompt"] else 200, None, json.dumps(made).encode()), {}


def batch_of(folder: Path, records: list[Any]) -> Batch:
    path = folder / "in.jsonl"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return Batch(RequestLines(path), LineReading({}), 5, Journal(folder / "out.journal"))


def answered(batch: Batch, *places: Echo, num_each: int = 4, give_up_s: float = 0) -> BatchMeter:
    meter = BatchMeter(survey(batch).num_requests)
    patient = [PatientPlace(place, give_up_s) for place in places]
    asyncio.run(answer_pending(batch, patient, num_each, meter, lambda text: None))
    return meter


def results(batch: Batch, folder: Path) -> tuple[list[Any], list[Any]]:
    good, bad = folder / "out.jsonl", folder / "errors.jsonl"
    counts = write_results(batch, good, bad, times=False)
    lines = [[json.loads(line) for line in p.read_text().splitlines()] if p.exists() else [] for p in (good, bad)]
    assert counts == (len(lines[0]), len(lines[1]))
    return lines[0], lines[1]


def texts(number: int) -> list[Any]:
    return [{"custom_id": f"c{i}", "prompt": f"{random.random()}"} for i in range(number)]


def test_results_are_in_the_order_of_the_input(tmp_path: Path) -> None:
    records = texts(40)
    records[7]["prompt"] = "wrong"
    records[20:20] = ["no JSON", {"custom_id": "c3", "prompt": "again"}]
    batch = batch_of(tmp_path, records)
    found = survey(batch)
    assert (found.num_requests, found.num_faults, found.num_answered, found.num_edited) == (40, 2, 0, 0)
    meter = answered(batch, Echo())
    assert (meter.num_done, meter.num_failed, meter.num_tokens) == (40, 1, 39 * 3)
    good, bad = results(batch, tmp_path)
    assert [line["custom_id"] for line in good] == [f"c{i}" for i in range(40) if i != 7]
    assert [(line["custom_id"], (line["error"] or {}).get("code")) for line in bad] == [
        ("c7", None),
        (None, "invalid_json"),
        ("c3", "duplicate_custom_id"),
    ]
    batch.journal.close()


def test_another_order_of_the_input_changes_no_answer(tmp_path: Path) -> None:
    """Also of lines without a custom_id, of which some are equal; and nothing of it is asked again."""
    records = [{"prompt": text} for text in ["a", "b", "b", "c", "b"]] + texts(3)
    batch, place = batch_of(tmp_path, records), Echo()
    answered(batch, place)
    first, _ = results(batch, tmp_path)
    batch.journal.close()
    random.shuffle(records)
    batch = batch_of(tmp_path, [{"prompt": "new"}, *records])
    assert survey(batch).num_answered == 8
    answered(batch, place)
    second, _ = results(batch, tmp_path)

    def asked(lines: list[Any]) -> list[str]:
        return sorted(json.dumps(line["response"]["body"]["echo"], sort_keys=True) for line in lines)

    assert asked(first) == asked(second[1:]) and len(set(asked(first))) == 8
    batch.journal.close()


@settings(max_examples=examples(45), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=st.lists(st.integers(0, 20), max_size=4), num_each=st.integers(1, 8))
def test_ended_anywhere_it_goes_on(
    stops: list[int], num_each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked twice that was answered, and the output is that of an undisturbed run."""
    monkeypatch.setattr(asking, "_FIRST_S", 0.01)
    for left in tmp_path.iterdir():
        left.unlink()
    records = [{"custom_id": f"c{i}", "prompt": f"{i}"} for i in range(30)]
    num_asked = 0
    for stop in stops:
        batch, place = batch_of(tmp_path, records), Echo(stops_after=stop)
        before = survey(batch).num_answered
        if before + stop < 30:
            with pytest.raises(ClientError, match="what was answered is kept"):
                answered(batch, place, num_each=num_each, give_up_s=0.05)  # time for what is under way
            assert survey(batch).num_answered == before + len(place.asked)
        else:
            answered(batch, place, num_each=num_each)
        num_asked += len(place.asked)
        batch.journal.close()
    batch, place = batch_of(tmp_path, records), Echo()
    answered(batch, place, num_each=num_each)
    assert num_asked + len(place.asked) == 30
    good, bad = results(batch, tmp_path)
    batch.journal.close()
    (tmp_path / "out.journal").unlink()
    batch = batch_of(tmp_path, records[::-1])
    answered(batch, Echo())
    assert (good[::-1], bad) == results(batch, tmp_path)
    batch.journal.close()


def test_what_was_edited_or_failed_is_asked_anew(tmp_path: Path) -> None:
    records = texts(6)
    records[1]["prompt"] = "wrong"
    batch = batch_of(tmp_path, records)
    answered(batch, Echo())
    batch.journal.close()
    records[4]["prompt"] = "edited"
    batch, place = batch_of(tmp_path, records), Echo()
    found = survey(batch)
    assert (found.num_answered, found.num_edited) == (4, 1)
    answered(batch, place)
    assert sorted(sent["prompt"] for sent in place.asked) == ["edited", "wrong"]
    good, bad = results(batch, tmp_path)
    assert [line["response"]["body"]["echo"]["prompt"] for line in good][3] == "edited" and len(bad) == 1
    batch.journal.close()


def test_places_have_as_many_each(tmp_path: Path) -> None:
    batch, places = batch_of(tmp_path, texts(300)), [Echo("a"), Echo("b"), Echo("c")]
    answered(batch, *places, num_each=4)
    assert all(80 <= len(place.asked) <= 120 for place in places), [len(place.asked) for place in places]
    batch.journal.close()


def test_places_are_dealt_as_many_although_one_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process does on a busy machine: for a moment it answers nothing, and the others would take all there is."""
    monkeypatch.setattr(running, "PATIENCE_S", 3600)  # nor does anybody wait when there is nothing left to deal out
    paused = Echo("b", pause=lambda number: asyncio.sleep(0.3 if number <= 4 else 0))
    batch, places = batch_of(tmp_path, texts(24)), [Echo("a", pause=lambda number: asyncio.sleep(0)), paused]
    assert answered(batch, *places, num_each=4).num_done == 24
    assert all(10 <= len(place.asked) <= 14 for place in places)
    batch.journal.close()


def test_a_place_that_is_slow_keeps_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for PATIENCE_S seconds in all."""
    monkeypatch.setattr(running, "PATIENCE_S", 0.2)
    fast = Echo("a", pause=lambda number: asyncio.sleep(0))

    async def until_the_other_has_answered(_: int) -> None:
        while len(fast.asked) < 98:
            await asyncio.sleep(0.01)

    batch, slow = batch_of(tmp_path, texts(100)), Echo("b", pause=until_the_other_has_answered)
    answered(batch, fast, slow, num_each=2)
    assert (len(fast.asked), len(slow.asked)) == (98, 2)
    batch.journal.close()


def test_a_place_that_refuses_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where it comes back, the others do not wait until it has had as many."""
    monkeypatch.setattr(asking, "_FIRST_S", 0.05)
    monkeypatch.setattr(running, "_LOOK_S", 0.01)
    monkeypatch.setattr(running, "PATIENCE_S", 3600)
    batch, dead = batch_of(tmp_path, texts(100)), Echo("b", stops_after=0)

    async def revive(number: int) -> None:
        await asyncio.sleep(0)
        if number == 50:
            dead.stops_after = None

    alive = Echo("a", pause=revive)
    assert answered(batch, alive, dead, num_each=2, give_up_s=60).num_done == 100
    assert 50 <= len(alive.asked) <= 98
    batch.journal.close()


def test_what_a_place_that_goes_was_asked_is_answered_by_the_others(tmp_path: Path) -> None:
    batch, places = batch_of(tmp_path, texts(60)), [Echo("a", stops_after=7), Echo("b"), Echo("c", stops_after=0)]
    meter = answered(batch, *places, num_each=3)
    assert meter.num_done == 60 and len(places[0].asked) == 7 and len(places[1].asked) == 53
    assert len(results(batch, tmp_path)[0]) == 60
    batch.journal.close()


def test_neighbours_within_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that begin alike are asked one after the other, and no window waits for the whole input."""
    monkeypatch.setattr(running, "WINDOW", 6)
    prompts = ["b 1", "a 1", "c 1", "a 2", "b 2", "c 2", "a 3", "c 3"]
    batch = batch_of(tmp_path, [{"prompt": prompt} for prompt in prompts])
    asked = [request.body["prompt"] for request in batch.pending()]
    assert asked == ["a 1", "a 2", "b 1", "b 2", "c 1", "c 2", "a 3", "c 3"]
    batch.journal.close()


def test_an_input_that_changes_meanwhile_is_no_output(tmp_path: Path) -> None:
    batch = batch_of(tmp_path, texts(3))
    answered(batch, Echo())
    (tmp_path / "in.jsonl").write_text('{"prompt": "another"}\n')
    with pytest.raises(UsageError, match="line 1 of the input has changed"):
        results(batch, tmp_path)
    assert not (tmp_path / "out.jsonl").exists()
    batch.journal.close()


def test_errors_of_an_earlier_run_go(tmp_path: Path) -> None:
    batch = batch_of(tmp_path, texts(3))
    (tmp_path / "errors.jsonl").write_text("{}\n")
    answered(batch, Echo())
    assert len(results(batch, tmp_path)[0]) == 3 and not (tmp_path / "errors.jsonl").exists()
    batch.journal.close()


def test_what_is_left_is_reckoned_from_the_last_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(running, "monotonic", lambda: now)
    meter, good = BatchMeter(1000), BatchAnswer(200, None, b'{"usage": {"output_tokens": 10}}')
    assert meter.told() == "0 of 1,000 answered"
    for second in range(1, 501):  # at first one a second, then two
        now = float(second)
        for _ in range(1 if second <= 200 else 2):
            meter.count(good)
        said = meter.told()
    assert said == "800 of 1,000 answered, 20 tokens a second, about 2 min left"
    assert [duration(s) for s in (5.4, 89, 600, 12_000)] == ["5 s", "89 s", "10 min", "3 h 20 min"]


def test_facts(tmp_path: Path) -> None:
    batch = batch_of(tmp_path, [])
    assert facts_of(batch, receipts=True, fingerprint=None) == {"seed": 5, "body": {}, "receipts": True}
    assert facts_of(batch, receipts=False, fingerprint="fp_1")["fingerprint"] == "fp_1"
    batch.journal.close()
