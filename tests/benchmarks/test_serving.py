"""benchmarks.serving: the same answer from a server and from LLM."""

import json

import pytest

from benchmarks import serving

pytest.importorskip("uvicorn", reason="the server's packages are not in this environment")


@pytest.mark.slow
def test_both_are_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from karat.config import embedded_model_path

    words = [str(embedded_model_path()), "--prompt-tokens", "8", "--tokens", "4", "--repeat", "2"]
    monkeypatch.setattr("sys.argv", ["serving", *words])
    serving.main()
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["turns"]) == 2 and all(turn["server_s"] > 0 < turn["llm_s"] for turn in facts["turns"])
    assert facts["server_over_llm"] > 0
