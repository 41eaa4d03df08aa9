"""Goals of integers: each is compared with the side it is about, by the kind of processor that the build is for."""

from typing import Any

from benchmarks import integer_goals


def row(side: str, workload: str = "prefill 512", **figures: Any) -> dict[str, Any]:
    return {"side": side, "workload": workload, "bytes": 1, "of_reading": None, "attention_of_peak": None} | figures


BESIDE = {"llama.cpp (llama-avx2)": 1.4, "llama.cpp (llama-native)": 1.3, "avx2 float32": 9.0, "avx512 before": 8.0}


def test_avx2_alone_is_beside_a_llama_cpp_without_more() -> None:
    rows = [
        row("avx2 int16", beside=BESIDE),
        row("avx512-vnni int16", beside=BESIDE),
        row("avx512 int16", beside=BESIDE),  # neither AVX2 only nor VNNI
        row("avx2 float32", beside=BESIDE),
    ]
    found = [
        (line["build"], line["beside"], line["ratio"], line["goal"], line["reached"])
        for line in integer_goals.lines("prefill", {"Q4_0": rows})
    ]
    assert found == [
        ("avx2", "llama.cpp (llama-avx2)", 1.4, 1.35, True),
        ("avx512-vnni", "llama.cpp (llama-native)", 1.3, 1.25, True),
    ]


def test_a_long_prompt_has_three_goals() -> None:
    beside = {"avx512-vnni before": 1.5, "avx2 before": 7.0}
    rows = [
        row("avx512-vnni int16", beside=beside),
        row("avx512-vnni int16", "prefill 8192", beside=beside, attention_of_peak=0.76),
    ]
    lines = integer_goals.lines("long", {"Q4_0": rows})
    assert [(line["what"][:12], line["beside"], line["reached"]) for line in lines] == [
        ("prefill 8192", "avx512-vnni before", True),
        ("prefill 8192", "attention_of_peak", True),
        ("prefill 512,", "avx512-vnni before", False),
    ]
    assert integer_goals.as_table(lines).endswith(
        "| prefill 512, Q4_0, int16 | avx512-vnni | avx512-vnni before | 1.50 | ≥ 1.6 | missed |"
    )


def test_a_real_model_has_whatever_name_its_file_has() -> None:
    rows = [row("avx2-vnni int16", "decode after 128", beside={"llama.cpp": 2.5})]
    (line,) = integer_goals.lines("real", {"any": rows})
    assert (line["ratio"], line["goal"], line["reached"]) == (2.5, 2.0, True)
