"""LLM on small random models: the same answers alone, together and in chunks; texts, streams, chats and refusals.

Tolerances: float64 logits 1e-10, float32 logits 1e-4, of values of deviation above 1: NumPy's matrix products round
differently for other numbers of rows. Tokens must be the same.

Covers: karat.engine.model_loading.llm_options.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import karat
from karat import LLM, SamplingParams
from karat.errors import CapacityError, RequestError, TemplateError, TokenizerError
from tests.engine.tiny import GREEDY, PROMPTS, SAMPLED, VOCAB, at_rest, tokens, write_model

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
        exact = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
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


@pytest.mark.parametrize("more", [{"temperature": 0}, {"seed": 3}, {"seed": 3, "top_k": 9, "logit_bias": {7: 100}}])
def test_only_allowed_tokens_are_chosen(llm: LLM, more: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=30, ignore_eos=True, allowed_token_ids=[65, 66, 67], **more)
    ((ids,), (free,)) = (tokens(llm.generate("Once", p)) for p in (params, replace(params, allowed_token_ids=None)))
    assert set(ids) <= {65, 66, 67} and not set(free) <= {65, 66, 67}
    logits = llm.logits([*llm.tokenizer.encode("Once"), *ids])[-31:-1, 65:68]
    if "temperature" in more:
        assert list(logits.argmax(axis=1) + 65) == list(ids)
    barred = replace(params, allowed_token_ids=[65, 65], stop_token_ids=[65], min_tokens=1)
    with pytest.raises(RequestError, match="min_tokens=1: until then no token that ends an answer is chosen"):
        llm.generate("Once", barred)
    with pytest.raises(RequestError, match="allowed_token_ids: 264 is no token id"):
        llm.generate("Once", SamplingParams(allowed_token_ids=[264]))


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
        (lambda llm: llm.generate({"text": "a"}), RequestError, "expected {'prompt': a text}"),
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


def test_continuing_a_text_imports_what_that_needs() -> None:
    """No template engine, no ranks, no peers: a model of 0.5B should answer a second after its process started."""
    code = (
        "import sys; from karat.cli import main; main(['run', 'Once', '--max-tokens', '1', '-q']); "
        "print(sorted({'jinja2', 'karat.ranks.processes', 'karat.engine.ranks.rank_model', 'karat.check', "
        "'karat.bench', 'huggingface_hub', 'torch', 'asyncio'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_faulty_tokenizer_ends_loading(ranks: int, tmp_path: Path) -> None:
    """It is read while weights are; its own error is what one gets, and no rank is started."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text() if children.exists() else ""
    broken = write_model(tmp_path, hidden_size=72, num_attention_heads=12, intermediate_size=50)
    (broken / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        LLM(broken, tensor_parallel_size=ranks)
    assert (children.read_text() if children.exists() else "") == before


def test_a_really_trained_model(data_dir: Path) -> None:
    """As transformers and llama.cpp continue it (data README); its end tokens are 1 and 2."""
    llm = LLM(data_dir / "stories260k")
    assert llm.end_token_ids == {1, 2} and llm.default_params == SamplingParams(temperature=0)
    (output,) = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=42))
    assert output.outputs[0].text.startswith(
        ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball."
    )
