"""benchmarks.serving: what it asks, what it makes of the answers, and one client of a server that runs."""

import asyncio
import json

import numpy as np
import pytest

from benchmarks import serving

pytest.importorskip("uvicorn", reason="the server's packages are not in this environment")


def test_prompts_differ_and_have_no_special_tokens() -> None:
    found = serving.prompts(np.random.default_rng(1), 16, 64, 4000)
    assert len({tuple(prompt) for prompt in found}) == 16
    assert all(len(prompt) == 64 and min(prompt) >= 1000 and max(prompt) < 4000 for prompt in found)


def test_ratios_are_of_medians_over_turns() -> None:
    def answered(tokens_per_s: float, seconds: float) -> dict[str, object]:
        times = {"median": seconds, "p99": 2 * seconds}
        return {"tokens_per_s": tokens_per_s, "ttft_s": times, "itl_s": times}

    turns = [{"karat": answered(200 + i, 1), "llama-server": answered(100, 4 + i)} for i in (-1, 0, 1)]
    found = serving.ratios(turns)
    assert found["tokens_per_s"] == 2 and found["ttft_median"] == found["ttft_p99"] == 0.25


def test_clients_of_a_server_are_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model, two clients of four tokens; each event has its time, and the server ends."""
    from karat.config import embedded_model_path

    words = [str(embedded_model_path()), "--clients", "2", "--prompt-tokens", "8", "--tokens", "4", "--repeat", "1"]
    monkeypatch.setattr("sys.argv", ["serving", *words, "--vocab-size", "4000"])
    serving.main()
    facts = json.loads(capsys.readouterr().out)
    (turn,) = facts["turns"]
    assert turn["karat"]["events"] == [4, 4] and turn["karat"]["tokens_per_s"] > 0
    assert 0 < turn["karat"]["ttft_s"]["median"] <= turn["karat"]["ttft_s"]["p99"]


def test_an_answer_that_is_no_success_is_an_error() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 404 Not Found\r\n\r\nno such model")
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with server:
            await serving.complete(server.sockets[0].getsockname()[1], {"prompt": [1]})

    with pytest.raises(OSError, match="404"):
        asyncio.run(ask())
