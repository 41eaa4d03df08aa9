"""A model with states over ranks, in the engine's own process, and as a server: the answers of LLM, and its memory."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from karat import LLM, AsyncLLM, SamplingParams
from karat.bench.load.servers import MeasuredServer
from karat.cli.inspect import gather
from karat.models.opening import open_model
from karat.ops.native import unavailable_reason
from karat.server.page.files import _FOLDER as FOLDER
from tests.engine.tiny import at_rest, tokens, write_model
from tests.server.conftest import Running, serving

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 72,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "head_dim": 8,
    "intermediate_size": 50,
    "max_position_embeddings": 512,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "use_sliding_window": None,
}
STATE_BYTES = 3 * 4 * (3 * (2 * 4 * 6 + 8 * 10) + 8 * 6 * 10)  # three layers: rows of the convolution, and matrices
SYSTEM = "Once upon a time there was a fox who had a lantern, and it was old, and it was cold. "  # 85 tokens
PROMPTS = [SYSTEM + "Yes.", SYSTEM + "No.", SYSTEM[:50], SYSTEM + "Yes. And", "a"]
PARAMS = [SamplingParams(max_tokens=30, ignore_eos=True, seed=i) for i in range(len(PROMPTS))]
ANSWER = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("stateful"), **CONFIG)


@pytest.fixture(scope="module")
def expected(folder: Path) -> Iterator[list[tuple[int, ...]]]:
    """Each prompt alone, without anything kept."""
    with LLM(folder, threads=1, max_num_seqs=1, enable_prefix_caching=False) as llm:
        yield [tokens(llm.generate([prompt], [param]))[0] for prompt, param in zip(PROMPTS, PARAMS, strict=True)]


@pytest.mark.slow
def test_ranks_have_the_same_answers_and_snapshots(folder: Path, expected: list[tuple[int, ...]]) -> None:
    sizes: dict[str, Any] = {"max_num_batched_tokens": 20, "num_blocks": 32}
    with LLM(folder, threads=1, tensor_parallel_size=2, **sizes) as llm:
        for _ in range(2):
            assert tokens(llm.generate(PROMPTS, PARAMS)) == expected and at_rest(llm)
            llm.engine.scheduler.preempt_all()
        assert llm.engine.scheduler.num_found_tokens > 200
        assert llm.engine.config.state_bytes >= STATE_BYTES, "of both ranks together"


@pytest.mark.slow
def test_the_engine_in_its_own_process_has_the_same_answers(folder: Path, expected: list[tuple[int, ...]]) -> None:
    async def ask() -> None:
        async with await AsyncLLM.open(folder, threads=1, max_num_seqs=3, num_blocks=40) as llm:
            asked = [llm.generate(prompt, param) for prompt, param in zip(PROMPTS, PARAMS, strict=True)]
            left = asyncio.ensure_future(llm.generate(SYSTEM + "Gone", PARAMS[0]))
            outputs = await asyncio.gather(*asked)
            left.cancel()
            assert tokens(outputs) == expected
            again = await llm.generate(PROMPTS[0], PARAMS[0])
            assert tokens([again]) == expected[:1] and again.num_cached_tokens == 80
            stats = await llm.stats()
            assert stats.num_snapshots > 0 and stats.state_bytes > 6 * STATE_BYTES
            prompt = await llm.render([{"role": "user", "content": "Hi"}])
            assert prompt.cache_point is not None and prompt.cache_point <= len(prompt.token_ids)

    asyncio.run(ask())


@pytest.mark.slow
def test_a_server_says_what_its_states_take(folder: Path) -> None:
    room = 5 * 1024**2
    with serving(str(folder), "--threads", "1", "--max-num-seqs", "2", "--state-cache-bytes", str(room)) as server:
        assert server.gauge("karat_state_snapshots") == 0
        messages = [{"role": "user", "content": "Tell me of a fox, and of what he did with his lantern."}]
        cached = []
        for _ in range(3):
            answer = server.chat(messages=messages, **ANSWER)
            assert answer.status == 200, answer.content
            body = json.loads(answer.content)
            cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
            messages += [{"role": "assistant", "content": "Ha."}, {"role": "user", "content": "Go on, please, go on!"}]
        assert cached[0] == 0 < cached[1] < cached[2]
        most = server.gauge("karat_state_snapshots_most")
        size = server.gauge("karat_state_bytes") / (4 + most)
        assert size == LLM(folder, threads=1).engine.config.state_bytes and most == room // size
        assert server.gauge("karat_state_snapshots") >= 3
        states = MeasuredServer("karat", f"http://127.0.0.1:{server.port}", headers={}).states()
        assert states is not None and states["most_kept"] == most and states["bytes"] == (4 + most) * size
        assert states["kept"] >= 3 and states["stateless_tokens"] == server.gauge("karat_prefix_cache_stateless")
        rows = totals_of_the_page(server)
        assert rows["Bytes of states"] == states["bytes"] and rows["States kept"] == states["kept"]
        assert rows["of these from the cache"] == sum(cached) and rows["Requests"] == 3
        assert rows["there, but without a state"] == states["stateless_tokens"]


@pytest.mark.slow
def test_a_page_of_a_model_without_states_says_nothing_of_them() -> None:
    with serving("--threads", "1") as server:
        rows = totals_of_the_page(server)
        assert rows["Steps"] == 0 and not [name for name in rows if "state" in name.lower()]


def totals_of_the_page(server: Running) -> dict[str, float]:
    """The rows under "Since the start", by the page's own code, of what the server says now."""
    if shutil.which("node") is None:
        pytest.skip("Node.js runs the page's code without a browser, and is not installed")
    read = (
        "const { readMetrics, totalsOf } = await import(process.argv[1]);"
        "console.log(JSON.stringify(totalsOf(readMetrics(process.argv[2]))))"
    )
    module, text = (FOLDER / "metrics.js").as_uri(), server.ask("/metrics").content.decode()
    done = subprocess.run(
        ["node", "--input-type=module", "-e", read, module, text], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def test_inspect_counts_two_states(folder: Path) -> None:
    memory = gather(open_model(folder))["memory"]
    assert memory["state_bytes"] == STATE_BYTES
    for row in memory["contexts"]:
        kv_bytes = 2 * 2 * 8 * row["tokens"] * 2  # one layer with two KV heads
        assert row["kv_bytes"]["float16"] == kv_bytes
        assert row["total_bytes"]["float16"] == memory["weight_bytes"] + kv_bytes + 2 * STATE_BYTES
