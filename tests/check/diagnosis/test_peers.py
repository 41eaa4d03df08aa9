"""What another engine is known to do otherwise is said and no bug; whatever it does not explain still is one."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat.check.diagnosis.peers import graph_of, known_difference, known_ids
from karat.check.diagnosis.reference import departure, departure_lines
from karat.check.model.checked import CheckedModel, open_model
from karat.check.record import llamacpp
from karat.check.record.executors import Steps, record
from karat.check.record.llamacpp import LlamaTokens, llamacpp_tokens
from karat.check.replay.replay import Replay
from karat.check.session import session
from karat.check.session.session import CheckPlan, CheckSession
from karat.check.session.stage import Stage, overall
from karat.check.stages import generation, tokens
from karat.check.stages.registry import run_stages
from karat.check.stages.tokens import check_tokens
from karat.check.trace.format import Array, Trace
from karat.check.trace.selection import EVERYTHING, Selection
from karat.checkpoint import GgufCheckpoint
from karat.checkpoint.gguf import read_header
from karat.convert import MIXES, convert
from karat.models.opening import open_model as open_checkpoint
from karat.ops.reference import ReferenceOps
from karat.text import Tokenizer
from tests.convert.folders import FAMILIES, folder_of

needs_llama = pytest.mark.skipif(not llamacpp.is_installed(), reason="llama-cpp-python is not installed")
PROMPT = "Once upon a time, there was a small house. " * 4
WINDOW = "known: llama.cpp computes this model without its window of 24 tokens: from token 24 on its numbers are"
Change = Callable[[dict[str, Array]], object]


@pytest.fixture
def mistral(tmp_path: Path) -> CheckedModel:
    return open_model(str(folder_of(tmp_path / "model", 5, **FAMILIES["mistral with a window"])))


def as_llama_cpp(model: CheckedModel, steps: Steps, selection: Selection = EVERYTHING) -> Trace:
    """A run without the window, by the reference."""
    config = replace(model.config, layer_windows=(None,) * model.config.num_layers)
    made = record(config, model.checkpoint, ReferenceOps("float32"), steps, selection=selection, with_digest=False)
    info = replace(made.info, executor="llama.cpp of llama-cpp-python 0.3.36", kv_dtype="float32")
    return Trace(info, {name: np.array(array) for name, array in made.arrays.items()})


def checked(
    model: CheckedModel, patch: pytest.MonkeyPatch, num_tokens: int, change: Change | None = None
) -> list[Stage]:
    """The stages that compare numbers, against a llama.cpp whose results `change` alters."""

    def recorded(_path: Path, _stored: Any, steps: Steps, *, selection: Selection = EVERYTHING) -> Trace:
        trace = as_llama_cpp(model, steps, selection)
        if change is not None:
            change(dict(trace.arrays))
        return trace

    patch.setattr(session, "record_llamacpp", recorded)
    patch.setattr(generation, "record_llamacpp", recorded)
    plan = CheckPlan(
        model=model,
        prompt=PROMPT,
        num_tokens=num_tokens,
        executor="reference",
        with_llamacpp=True,
        stages=("layers", "logits", "generation"),
    )
    return list(run_stages(CheckSession(plan)))


@pytest.mark.parametrize("num_tokens", [12, 30])
def test_a_window_that_llama_cpp_has_not_is_said_and_no_bug(
    num_tokens: int, mistral: CheckedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the window the sides are compared; of 12 tokens only generation reaches it."""
    stages = {stage.name: stage for stage in checked(mistral, monkeypatch, num_tokens)}
    assert {stage.verdict for stage in stages.values()} <= {"numerics", "exact"}, stages
    for name, stage in stages.items():
        is_said = any(WINDOW in line for line in stage.lines)
        assert is_said == (num_tokens > 24 or name == "generation"), (name, stage.lines)
    if num_tokens == 12:
        assert any(line.startswith("llama.cpp takes the same 13 tokens") for line in stages["generation"].lines)
    else:
        assert "here its ops are held against what it computes" in stages["llama.cpp"].lines[-1]
        assert any(line.startswith("against llama.cpp: at most") for line in stages["layers"].lines)


def scaled(name: str, token: int) -> Change:
    def change(arrays: dict[str, Array]) -> None:
        if name in arrays:
            arrays[name][token] *= 1.1

    return change


def test_what_the_window_does_not_explain_is_still_a_bug(
    mistral: CheckedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result before the window that differs, and an op of llama.cpp that is wrong behind it."""
    found = {stage.name: stage for stage in checked(mistral, monkeypatch, 30, scaled("model.layers.1", 20))}
    assert found["layers"].verdict == "bug" and found["layers"].facts["first_against_llama.cpp"] == "model.layers.1"
    found = {stage.name: stage for stage in checked(mistral, monkeypatch, 30, scaled("model.layers.1.mlp.act", 28))}
    assert found["layers"].verdict == "numerics" and found["llama.cpp"].verdict == "bug", found


def test_it_concerns_neither_another_engine_nor_a_model_without_a_window(mistral: CheckedModel) -> None:
    assert known_difference("transformers 5.0", mistral.config, 99) is None
    assert known_difference("llama.cpp", mistral.config, 24) is None
    known = known_difference("llama.cpp", mistral.config, 25)
    assert known is not None and known.first == 24 and known.config.layer_windows == (None,) * 2
    assert known_difference("llama.cpp", known.config, 99) is None


def test_of_gpt_oss_it_has_the_windows_and_whole_ends_of_the_ramp(tmp_path: Path) -> None:
    model = open_model(str(folder_of(tmp_path / "model", 5, **FAMILIES["gpt_oss"])))
    known = known_difference("llama.cpp of llama-cpp-python 0.3.36", model.config, 80)
    assert known is not None and known.first == 1 and known.config.rope.truncate
    assert known.config.layer_windows == model.config.layer_windows
    assert "from token 1 on" in known.text and known_difference("vllm", model.config, 80) is None


def test_a_reference_trace_of_llama_cpp_is_left_where_the_window_ends(mistral: CheckedModel) -> None:
    steps = Steps(tuple(np.random.default_rng(3).integers(3, 4096, 30).tolist()))
    ours = record(mistral.config, mistral.checkpoint, ReferenceOps("float32"), steps)
    theirs = as_llama_cpp(mistral, steps)
    weights = mistral.weights("float32")

    def left(reference: Trace) -> tuple[bool, str]:
        graph = graph_of(reference.info, mistral)
        found = departure(Replay(mistral.graph, weights, ours), Replay(graph, weights, reference))
        return found.leaves, "\n".join(departure_lines(found, ours, reference, every_op_right=True))

    leaves, text = left(theirs)
    assert not leaves and text.startswith(WINDOW), text
    scaled("model.layers.0", 3)(dict(theirs.arrays))
    leaves, text = left(theirs)
    assert leaves and "first leaves the reference at model.layers.0" in text


def vocabulary(data_dir: Path, name: str, config: Any) -> CheckedModel:
    """A GGUF file that has a vocabulary and nothing else."""
    path = data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf"
    metadata = read_header(path).metadata
    checkpoint = GgufCheckpoint(path, metadata, {}, None, {}, None, ())
    tokenizer = Tokenizer.from_gguf(metadata, path)
    ends = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    config = replace(config, vocab_size=tokenizer.vocab_size, eos_token_ids=ends)
    return CheckedModel(path, config, checkpoint, {}, open_model(None).graph)


def test_ids_that_llama_cpp_is_known_to_make_are_a_note(
    mistral: CheckedModel, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vocabulary(data_dir, "qwen2", mistral.config)
    tokenizer = Tokenizer.of(model.checkpoint)
    text = "a cafe\u0301 there"

    def stage(theirs: list[int]) -> Stage:
        def ids(_path: Path, texts: Mapping[str, str], rendered: Mapping[str, str]) -> LlamaTokens:
            made = {name: tokenizer.encode(shown) for name, shown in {**texts, **rendered}.items()}
            return LlamaTokens({**made, "prompt": theirs}, tokenizer.bos_token_id, tokenizer.eos_token_id, frozenset())

        monkeypatch.setattr(tokens, "llamacpp_tokens", ids)
        return check_tokens(model, tokenizer, text, with_hf=False, with_llamacpp=True)

    apart = [*tokenizer.encode("a cafe"), *tokenizer.encode("\u0301 there")]
    assert apart != tokenizer.encode(text)
    right, wrong = stage(apart), stage(apart[:-1])
    assert right.verdict != "bug", right.lines
    known = "prompt: other ids in llama.cpp, as is known: llama.cpp does not bring a text to Unicode's normal form C"
    assert any(known in line for line in right.lines), right.lines
    assert wrong.verdict == "bug" and wrong.lines[0].startswith("unexplained token ids: prompt"), wrong.lines


@needs_llama
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("qwen2", "cafe\u0301 e\u0301", "normal form C"),
        ("qwen35", "cafe\u0301 e\u0301", "normal form C"),
        ("qwen2", "a</s>b", "takes </s> for one control token"),
        ("phi-3", "<|user|>\nHi<|end|>\n<|assistant|>\n", "knows Phi-3 by name"),
        ("deepseek-llm", "the  \u3000", "cuts spaces beside U+3000"),
    ],
)
def test_live_llama_cpp_differs_as_the_table_says(
    name: str, text: str, said: str, mistral: CheckedModel, data_dir: Path
) -> None:
    model = vocabulary(data_dir, name, mistral.config)
    tokenizer = Tokenizer.of(model.checkpoint)
    theirs = llamacpp_tokens(model.path, {"x": text}, {}).ids["x"]
    assert theirs != tokenizer.encode(text)
    found = known_ids("llama.cpp", model, tokenizer, text, theirs)
    assert found is not None and said in found, (found, theirs, tokenizer.encode(text))
    assert known_ids("llama.cpp", model, tokenizer, text, [*theirs, theirs[-1]]) is None
    assert known_ids("llama.cpp", model, tokenizer, "plain", theirs) is None


@needs_llama
def test_live_llama_cpp_beyond_a_window(mistral: CheckedModel, tmp_path: Path) -> None:
    """A prompt longer than the window, all stages that compare."""
    path = tmp_path / "model.gguf"
    convert(open_checkpoint(mistral.path), path, MIXES["F32"])
    plan = CheckPlan(
        model=open_model(str(path)),
        prompt=PROMPT,
        num_tokens=30,
        with_llamacpp=True,
        stages=("tokens", "layers", "logits", "generation"),
    )
    stages = list(run_stages(CheckSession(plan)))
    assert overall(stages) == "numerics", [stage.lines for stage in stages if stage.verdict == "bug"]
    assert all(any(WINDOW in line for line in stage.lines) for stage in stages if stage.name != "tokens")
