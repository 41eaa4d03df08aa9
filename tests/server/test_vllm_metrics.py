"""vLLM's names: the same values as Karat's, and the table of docs/serving.md.

Covers: karat.server.metrics, karat.server.vllm_metrics.
"""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from karat.server.metrics import Metrics
from karat.server.vllm_metrics import ALIASES
from tests.server.conftest import Running

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def samples(page: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_every_alias_has_karats_values() -> None:
    metrics = Metrics("name")
    tally = metrics.tally([5, 7])
    metrics.ended(tally, "ok")
    gauges = {alias.karat: ("text", float(number + 1)) for number, alias in enumerate(ALIASES[:6])}
    found = samples(metrics.page(gauges).decode())
    for alias in ALIASES:
        endings = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}[alias.kind]
        for ending in endings:
            ours = found[alias.karat + ("" if alias.karat in found else ending)]
            theirs = found[alias.vllm + ending]
            assert [value for _, value in theirs] == [value for _, value in ours], alias
            assert all(labels["model_name"] == "name" and labels["engine"] == "0" for labels, _ in theirs)
    assert found["vllm:prompt_tokens_total"][0][1] == 12


def test_what_a_server_says(server: Running) -> None:
    server.text(max_tokens=2, ignore_eos=True)
    found = samples(server.ask("/metrics").content.decode())
    assert {alias.vllm for alias in ALIASES if alias.kind == "gauge"} <= set(found)
    labels, value = found["vllm:kv_cache_usage_perc"][0]
    assert 0 <= value <= 1 and labels["model_name"] == "karat-embedded"
    assert found["vllm:e2e_request_latency_seconds_count"][0][1] >= 1
    assert found["karat_device"] == [({"device": "cpu"}, 1)]


def test_the_table_of_the_docs_is_this_one() -> None:
    rows = re.findall(r"^\| `(vllm:[\w:]+)` \| `(karat_\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    bare = {(vllm.removesuffix("_total"), karat.removesuffix("_total")) for vllm, karat in rows}
    assert bare == {(alias.vllm, alias.karat) for alias in ALIASES}
