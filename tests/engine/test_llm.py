"""LLM on small random models: the same answers alone, together and in chunks; texts, streams, chats and refusals.

Tolerances: float64 logits 1e-10, float32 logits 1e-4, of values of deviation above 1: NumPy's matrix products round
differently for other numbers of rows. Tokens must be the same.
"""

import gc
import logging
import subprocess
import sys
import tomllib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import karat
from karat import LLM, SamplingParams
from karat.engine.logprobs import log_softmax
from karat.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    ExecutorError,
    RequestError,
    TemplateError,
    UsageError,
)
from tests.engine.tiny import ENDOFTEXT, IM_END, IM_START, VOCAB, write, write_model

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=20, ignore_eos=True, seed=7, top_p=0.95, logprobs=3)
PROMPTS = ["Once upon a time", "a", "The quick brown fox jumps over the lazy dog, and " * 2, "ÄÖÜ ☃"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def llm(folder: Path) -> LLM:
    return LLM(folder, dtype="float64")


def at_rest(llm: LLM) -> bool:
    llm.engine.scheduler.check()
    return llm.engine.scheduler.blocks.num_free == llm.engine.config.num_blocks and not llm.engine.has_work


def tokens(outputs: list[karat.RequestOutput]) -> list[tuple[int, ...]]:
    return [choice.token_ids for output in outputs for choice in output.outputs]


# The same answer every time


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_alone_together_and_in_chunks(folder: Path, dtype: Any, params: SamplingParams) -> None:
    llm = LLM(folder, dtype=dtype)
    alone = [llm.generate(prompt, params)[0] for prompt in PROMPTS]
    variants = {
        "together": llm.generate(PROMPTS, params),
        "reversed": llm.generate(PROMPTS[::-1], params)[::-1],
        "chunks of 7": LLM(folder, dtype=dtype, max_num_seqs=1, max_num_batched_tokens=7).generate(PROMPTS, params),
        "a token at a time": LLM(folder, dtype=dtype, max_num_seqs=1, max_num_batched_tokens=1).generate(
            PROMPTS, params
        ),
    }
    preempting = LLM(folder, dtype=dtype, num_blocks=9)
    variants["preempted"] = preempting.generate(PROMPTS, params)
    assert preempting.engine.scheduler.num_preemptions > 0
    tolerance = 1e-10 if dtype == "float64" else 1e-4
    for name, outputs in variants.items():
        assert tokens(outputs) == tokens(alone), name
        assert [o.outputs[0].text for o in outputs] == [o.outputs[0].text for o in alone], name
        for got, want in zip(outputs, alone, strict=True):
            for mine, theirs in zip(got.outputs[0].logprobs or (), want.outputs[0].logprobs or (), strict=True):
                assert list(mine) == list(theirs)
                for token_id in mine:
                    assert mine[token_id].logprob == pytest.approx(theirs[token_id].logprob, abs=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-4)])
def test_logits_whole_and_in_chunks(folder: Path, dtype: Any, tolerance: float) -> None:
    token_ids = np.random.default_rng(1).integers(0, 256, 100)
    whole = LLM(folder, dtype=dtype).logits(token_ids)
    assert whole.shape == (100, VOCAB) and whole.dtype == dtype
    assert whole.std() > 1
    for size in (1, 7, 64):
        chunked = LLM(folder, dtype=dtype, max_num_seqs=1, max_num_batched_tokens=size).logits(token_ids)
        assert np.abs(chunked - whole).max() < tolerance
    assert np.abs(LLM(folder, dtype=dtype).logits(token_ids[:50]) - whole[:50]).max() < tolerance


def test_logprobs_are_those_of_logits(llm: LLM) -> None:
    params = SamplingParams(max_tokens=15, seed=3, temperature=1.5, logprobs=5, prompt_logprobs=2, ignore_eos=True)
    (output,) = llm.generate("Tell me", params)
    (choice,) = output.outputs
    prompt = output.prompt_token_ids
    logits = llm.logits([*prompt, *choice.token_ids])
    assert output.prompt_logprobs is not None and choice.logprobs is not None
    reported = [*output.prompt_logprobs[1:], *choice.logprobs]
    for row, token_id, values in zip(logits, [*prompt[1:], *choice.token_ids], reported, strict=False):
        exact = log_softmax(row)
        assert values is not None and next(iter(values)) == token_id
        for other, value in values.items():
            assert value.logprob == pytest.approx(exact[other], abs=1e-9)
            assert value.rank == 1 + (exact > exact[other]).sum()
    assert len(reported) == len(prompt) + 14 and len(choice.logprobs[0]) in (5, 6)


def test_greedy_is_the_largest_logit(llm: LLM) -> None:
    (output,) = llm.generate("Once", GREEDY)
    token_ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    best = np.argmax(llm.logits(token_ids), axis=-1)
    start = len(output.prompt_token_ids) - 1
    assert best[start:-1].tolist() == list(output.outputs[0].token_ids)


# Seeds


def test_a_seed_gives_the_same_answer_and_another_seed_another(llm: LLM) -> None:
    def answer(seed: int, n: int = 1) -> list[tuple[int, ...]]:
        return tokens(llm.generate("Once", SamplingParams(seed=seed, max_tokens=12, n=n)))

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)
    assert len(set(answer(1, n=3))) == 3 and answer(1, n=3)[:1] == answer(1)


def test_without_a_seed_the_llms_seed_and_the_number_of_the_request_decide(folder: Path) -> None:
    params = SamplingParams(max_tokens=12)

    def answers(seed: int) -> list[tuple[int, ...]]:
        llm = LLM(folder, seed=seed)
        return tokens(llm.generate(["Once", "Once"], params)) + tokens(llm.generate("Once", params))

    first = answers(0)
    assert answers(0) == first and len(set(first)) == 3
    assert set(answers(1)).isdisjoint(first)


# Prompts and parameters


def test_kinds_of_prompts(llm: LLM) -> None:
    ids = list(b"abc")
    as_ids = llm.tokenizer.encode("abc")
    (one,) = llm.generate("abc", GREEDY)
    assert one.prompt == "abc" and list(one.prompt_token_ids) == as_ids
    both = llm.generate(["abc", as_ids], GREEDY)
    assert tokens(both) == tokens([one, one]) and both[1].prompt is None
    for prompt in (ids, tuple(ids), np.array(ids), [ids], [np.array(ids)]):
        (output,) = llm.generate(prompt, GREEDY)
        assert output.prompt_token_ids == tuple(ids)
    assert llm.generate([], GREEDY) == []


def test_parameters_for_each_prompt(llm: LLM) -> None:
    short, long = (SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 5))
    assert [len(ids) for ids in tokens(llm.generate(["a", "b"], [short, long]))] == [2, 5]
    with pytest.raises(RequestError, match="1 SamplingParams for 2 prompts"):
        llm.generate(["a", "b"], [short])
    with pytest.raises(RequestError, match="is no SamplingParams"):
        llm.generate("a", {"temperature": 0})


def test_the_whole_context_is_used_where_max_tokens_is_not_given(llm: LLM) -> None:
    (output,) = llm.generate("abc", SamplingParams(temperature=0, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 125 and output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda llm: llm.generate(""), RequestError, "the prompt has no tokens"),
        (lambda llm: llm.generate([[]]), RequestError, "the prompt has no tokens"),
        (lambda llm: llm.generate(["ok", [999]]), RequestError, "999 is no token id"),
        (lambda llm: llm.generate([[1.5]]), RequestError, r"1\.5 is no token id"),
        (lambda llm: llm.generate("x" * 128), CapacityError, "128 tokens, and the context of 128"),
        (lambda llm: llm.generate("x" * 100, SamplingParams(max_tokens=29)), CapacityError, "leaves 28"),
        (lambda llm: llm.stream("x" * 200), CapacityError, "200 tokens, and the context of 128"),
        (lambda llm: llm.logits([]), RequestError, "the text has no tokens"),
        (lambda llm: llm.logits([0] * 129), CapacityError, "129 tokens do not fit the context of 128"),
        (lambda llm: llm.generate(5), RequestError, "prompts=5: expected a text"),
        (lambda llm: llm.generate([None]), RequestError, "a prompt=None: expected a text"),
        (lambda llm: llm.generate({"prompt": "a"}), RequestError, "expected a text, token ids"),
        (lambda llm: llm.chat([[]]), TemplateError, "the conversation is empty"),
    ],
)
def test_refused_before_any_work(llm: LLM, call: Callable[[LLM], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(llm)
    assert at_rest(llm)


def test_logits_beyond_the_limit_are_refused_with_both_numbers(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("karat.engine.llm.MAX_LOGITS_BYTES", 10 * VOCAB * 8)
    assert llm.logits([1] * 10).shape == (10, VOCAB)
    with pytest.raises(CapacityError, match=rf"11 tokens would take {11 * VOCAB * 8} bytes.*at most 10 tokens"):
        llm.logits([1] * 11)


# Streams


def test_a_stream_is_what_generate_gives(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, seed=5, n=2, logprobs=1, prompt_logprobs=1, stop="e")
    (whole,) = llm.generate("Once", params)
    chunks = list(llm.stream("Once", params))
    assert [chunk.prompt_logprobs for chunk in chunks if chunk.prompt_logprobs] == [whole.prompt_logprobs]
    for choice in whole.outputs:
        own = [chunk for chunk in chunks if chunk.index == choice.index]
        assert "".join(chunk.text for chunk in own) == choice.text
        assert sum((chunk.token_ids for chunk in own), ()) == choice.token_ids
        assert sum((chunk.logprobs or () for chunk in own), ()) == choice.logprobs
        assert own[-1].finish_reason == choice.finish_reason and own[-1].stop_reason == choice.stop_reason
        assert not any(chunk.finish_reason for chunk in own[:-1])


def test_a_stream_comes_token_by_token(llm: LLM) -> None:
    stream = llm.stream("Once", GREEDY)
    assert at_rest(llm), "nothing before the first chunk is asked for"
    next(stream)
    assert llm.engine.scheduler.num_running == 1
    assert sum(1 for _ in stream) == 19
    assert at_rest(llm)


@pytest.mark.parametrize("num_chunks", [0, 1, 5])
@pytest.mark.parametrize("leave", ["close", "drop"])
def test_an_abandoned_stream_frees_its_blocks(llm: LLM, num_chunks: int, leave: str) -> None:
    stream = llm.stream("Once", GREEDY)
    for _ in range(num_chunks):
        next(stream)
    if leave == "close":
        stream.close()
    else:
        del stream
        gc.collect()
    assert at_rest(llm) and not llm._inbox


def test_streams_side_by_side_and_a_batch_between_them(llm: LLM) -> None:
    alone = [[chunk.token_ids for chunk in llm.stream(prompt, SAMPLED)] for prompt in PROMPTS[:2]]
    streams = [llm.stream(prompt, SAMPLED) for prompt in PROMPTS[:2]]
    got: list[list[tuple[int, ...]]] = [[], []]
    got[0].append(next(streams[0]).token_ids)
    got[1].append(next(streams[1]).token_ids)
    assert tokens(llm.generate("abc", GREEDY)) == tokens(LLM(llm.path, dtype="float64").generate("abc", GREEDY))
    llm.logits([1, 2, 3])
    got[1] += [chunk.token_ids for chunk in streams[1]]
    got[0] += [chunk.token_ids for chunk in streams[0]]
    assert got == alone
    assert at_rest(llm)


def test_an_interrupted_batch_frees_its_blocks(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    run = llm.engine._run

    def interrupt(batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return run(batch)

    monkeypatch.setattr(llm.engine, "_run", interrupt)
    stream = llm.stream("another", GREEDY)
    next(stream)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY)
    assert llm.engine.scheduler.num_running == 1, "the stream is still there"
    assert sum(1 for _ in stream) == 19
    assert at_rest(llm)


def test_interrupted_logits_free_their_blocks(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(batch: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.engine, "_run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.logits([1, 2, 3])
    assert at_rest(llm)


# Chat and end tokens


def test_chat_runs_the_rendered_prompt(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert list(output.prompt_token_ids) == llm.tokenizer.encode_chat(messages)
    assert tokens([output]) == tokens(llm.generate(list(output.prompt_token_ids), GREEDY))
    many = llm.chat([messages, messages[:1]], GREEDY)
    assert tokens(many) == tokens([output, output])
    assert "".join(chunk.text for chunk in llm.stream_chat(messages, GREEDY)) == output.outputs[0].text


def test_text_gets_the_tokenizers_bos_and_a_rendered_chat_does_not(tmp_path: Path) -> None:
    llm = LLM(write_model(tmp_path, add_bos=True))
    assert llm.generate("a", GREEDY)[0].prompt_token_ids == (ENDOFTEXT, *llm.tokenizer.encode("a")[1:])
    assert llm.generate("", GREEDY)[0].prompt_token_ids == (ENDOFTEXT,), "a bare BOS is a prompt"
    assert llm.generate([97], GREEDY)[0].prompt_token_ids == (97,), "ids are taken as they are"
    (output,) = llm.chat([{"role": "user", "content": "a"}], GREEDY)
    assert output.prompt_token_ids[0] == IM_START and ENDOFTEXT not in output.prompt_token_ids


def test_chat_options_reach_the_template(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}|{{ tools[0].name }}|{{ strftime_now('%Y') }}|{{ mood }}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    llm = LLM(write_model(tmp_path, chat_template=template))
    options: dict[str, Any] = {
        "tools": [{"name": "dice"}], "now": datetime(1999, 1, 1), "template_variables": {"mood": "calm"},
    }  # fmt: skip
    (output,) = llm.chat([{"role": "user", "content": "Hi"}], GREEDY, **options)
    assert output.prompt == "Hi|dice|1999|calm>"
    (output,) = llm.chat([{"role": "user", "content": "Hi"}], GREEDY, add_generation_prompt=False, **options)
    assert output.prompt == "Hi|dice|1999|calm"


def test_a_conversation_ends_with_the_templates_token_though_no_config_names_it(llm: LLM) -> None:
    assert llm.end_token_ids == frozenset() and llm.chat_end_token_ids == {IM_END}
    pushed = SamplingParams(temperature=0, max_tokens=5, logit_bias={IM_END: 100})
    (answer,) = llm.chat([{"role": "user", "content": "Hi"}], pushed)[0].outputs
    assert (answer.text, answer.token_ids, answer.finish_reason, answer.stop_reason) == ("", (IM_END,), "stop", IM_END)
    (text,) = llm.generate("Hi", pushed)[0].outputs
    assert text.token_ids == (IM_END,) * 5 and text.finish_reason == "length"


@pytest.mark.parametrize("generation_config", ["auto", "none"])
def test_every_end_token_of_generation_config_ends(tmp_path: Path, generation_config: Any) -> None:
    ends = [ENDOFTEXT, 65]
    llm = LLM(write_model(tmp_path, generation_config={"eos_token_id": ends}), generation_config=generation_config)
    for end in ends:
        (choice,) = llm.generate("Hi", SamplingParams(temperature=0, max_tokens=5, logit_bias={end: 100}))[0].outputs
        assert (choice.token_ids, choice.finish_reason, choice.stop_reason) == ((end,), "stop", end)
        ignored = SamplingParams(temperature=0, max_tokens=5, logit_bias={end: 100}, ignore_eos=True)
        (choice,) = llm.generate("Hi", ignored)[0].outputs
        assert choice.token_ids == (end,) * 5 and choice.finish_reason == "length"


def test_without_a_chat_template(tmp_path: Path) -> None:
    llm = LLM(write_model(tmp_path, chat_template=None))
    assert llm.chat_end_token_ids == frozenset()
    with pytest.raises(TemplateError, match="no chat template"):
        llm.chat([{"role": "user", "content": "Hi"}])


# Defaults


def test_defaults_of_generation_config_are_applied_and_shown_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = {"do_sample": True, "temperature": 0.7, "top_k": 3, "max_new_tokens": 4, "num_beams": 2}
    folder = write_model(tmp_path, generation_config=raw)
    llm = LLM(folder, seed=5)
    assert llm.default_params == SamplingParams(temperature=0.7, top_k=3, max_tokens=4)
    with caplog.at_level(logging.WARNING, "karat"):
        explicit = llm.generate("abc", llm.default_params)
        assert caplog.messages == [], "nothing was applied behind anybody's back"
        given = LLM(folder, seed=5).generate("abc")
        assert tokens(given) == tokens(explicit) and len(given[0].outputs[0].token_ids) == 4
        assert len(caplog.messages) == 1 and "temperature=0.7" in caplog.text and "num_beams=2" in caplog.text
        llm.generate("abc")
        llm.generate("abc")
        list(llm.stream("abc"))
        assert len(caplog.messages) == 2, "once for each LLM"


def test_defaults_can_be_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw = {"do_sample": True, "temperature": 0.7, "max_new_tokens": 4}
    llm = LLM(write_model(tmp_path, generation_config=raw), generation_config="none")
    assert llm.default_params == SamplingParams() and llm.defaults_notice is None
    with caplog.at_level(logging.INFO, "karat"):
        llm.generate("x" * 120)
    assert caplog.messages == []


# Loading


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dtype": "float16"}, ExecutorError, "dtype='float16'"),
        ({"executor": "abacus"}, ExecutorError, "executor='abacus' is unknown"),
        ({"kv_dtype": "int8"}, UsageError, "kv_dtype='int8': expected one of float16"),
        ({"generation_config": "vllm"}, UsageError, "expected 'auto' or 'none'"),
        ({"seed": -1}, UsageError, "seed=-1: expected an integer from 0"),
        ({"seed": 1.5}, UsageError, r"seed=1\.5"),
        ({"max_num_seqs": 0}, UsageError, "max_num_seqs=0"),
        ({"max_num_batched_tokens": 15}, UsageError, "max_num_batched_tokens=15: expected an integer of at least 16"),
        ({"max_model_len": 0}, UsageError, "max_model_len=0"),
        ({"max_model_len": 129}, UsageError, "max_model_len=129: the model was made for 128"),
        ({"num_blocks": 4, "kv_cache_bytes": 5}, UsageError, "give one"),
        ({"num_blocks": 0}, UsageError, "num_blocks=0"),
        ({"kv_cache_bytes": "1G"}, UsageError, "kv_cache_bytes='1G'"),
        (
            {"num_blocks": 7},
            CapacityError,
            r"max_model_len=128 tokens takes 32\.0 KiB.*28\.0 KiB \(given\).*112 tokens",
        ),
        ({"kv_cache_bytes": 16 * 256 * 7 + 5}, CapacityError, "given.*112 tokens"),
    ],
)
def test_arguments_are_checked(folder: Path, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LLM(folder, **({"kv_dtype": "float32"} | arguments))


def test_unknown_arguments_are_an_error(folder: Path) -> None:
    with pytest.raises(TypeError, match="tensor_parallel"):
        LLM(folder, tensor_parallel=2)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        LLM(tmp_path / "nothing")
    folder = write_model(tmp_path)
    write(folder / "generation_config.json", {"do_sample": "perhaps"})
    with pytest.raises(ConfigError, match="do_sample='perhaps'"):
        LLM(folder)


@pytest.mark.parametrize("kv_dtype", ["float16", "bfloat16", "float32", "float64", None])
def test_kv_dtypes(folder: Path, kv_dtype: Any) -> None:
    llm = LLM(folder, kv_dtype=kv_dtype, executor="reference")
    assert llm.kv_dtype == (kv_dtype or "float32")
    exact = LLM(folder, dtype="float64").logits(range(64))
    error = np.abs(llm.logits(range(64)) - exact).max()
    bound = {"float16": 0.1, "bfloat16": 1.0}.get(llm.kv_dtype, 1e-3)
    floor = {"float16": 1e-4, "bfloat16": 1e-3}.get(llm.kv_dtype, 0)
    assert floor < error < bound


def test_the_cache_is_as_large_as_told(folder: Path) -> None:
    def num_blocks(kv_dtype: Any = "float32", **arguments: Any) -> int:
        return LLM(folder, kv_dtype=kv_dtype, **arguments).engine.config.num_blocks

    block_bytes = 16 * 2 * 2 * 2 * 8 * 4  # tokens, K and V, layers, KV heads, head_dim, float32
    assert num_blocks(num_blocks=11) == 11
    assert num_blocks(kv_cache_bytes=20 * block_bytes + 1) == 20
    assert num_blocks(kv_cache_bytes=20 * block_bytes, kv_dtype="float16") == 40
    assert num_blocks(max_num_seqs=3) == 3 * 8, "three contexts of 128 tokens"
    assert num_blocks(max_num_seqs=3, max_model_len=17) == 3 * 2


def test_the_default_cache_takes_a_share_of_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block_bytes = 16 * 2 * 2 * 2 * 8 * 4
    monkeypatch.setattr("karat.engine.memory.available_bytes", lambda: 100 * block_bytes)
    assert LLM(folder, kv_dtype="float32").engine.config.num_blocks == 40, "rather than 128"
    monkeypatch.setattr("karat.engine.memory.available_bytes", lambda: 10 * block_bytes)
    with pytest.raises(CapacityError, match=r"40% of the 40\.0 KiB of memory that are available.*64 tokens"):
        LLM(folder, kv_dtype="float32")
    assert LLM(folder, kv_dtype="float32", max_model_len=64).engine.config.num_blocks == 4


# The public face


def test_public_names() -> None:
    assert all(getattr(karat, name) is not None for name in karat.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        _ = karat.Llm


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert karat.__version__ == project["version"]


def test_importing_karat_imports_no_numpy() -> None:
    code = "import karat, sys; karat.SamplingParams; assert not {'numpy', 'tokenizers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_really_trained_model(data_dir: Path) -> None:
    """As transformers and llama.cpp continue it (data README); its end tokens are 1 and 2."""
    llm = LLM(data_dir / "stories260k")
    assert llm.end_token_ids == {1, 2} and llm.default_params == SamplingParams(temperature=0)
    (output,) = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=42))
    assert output.outputs[0].text.startswith(
        ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball."
    )


def test_a_default_limit_gives_way_to_the_context(tmp_path: Path) -> None:
    """What nobody asked for is no reason to refuse; what somebody asked for is."""
    folder = write_model(tmp_path, generation_config={"max_new_tokens": 100, "min_new_tokens": 20})
    llm = LLM(folder, max_model_len=32)
    for prompt_len, rest in ((4, 28), (20, 12)):
        (output,) = llm.generate([65] * prompt_len)
        assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (rest, "length")
    assert llm.default_params.max_tokens == 100
    with pytest.raises(CapacityError, match="max_tokens=100"):
        llm.generate([65] * 20, llm.default_params)
