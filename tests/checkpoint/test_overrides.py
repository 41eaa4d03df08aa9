"""What the user says of a model wins over its files, is named, and computes what transformers computes with it.

Covers: karat.models.opening.
"""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat import LLM, AsyncLLM, SamplingParams
from karat.checkpoint.overrides import Overrides, said
from karat.errors import ConfigError, KaratError, TemplateError, UsageError
from karat.models.opening import open_model
from karat.models.registry import read_config
from karat.ops.native import unavailable_reason
from karat.text import Tokenizer
from tests.checkpoint.gguf.builders import F32, U32, tiny
from tests.engine.tiny import VOCAB, write_model

HELLO = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    path.write_bytes(tiny({"llama.rope.freq_base": (F32, 10000.0)}))
    return path


def opened(path: Path, **words: Any) -> Any:
    return read_config(open_model(path, said(**words)).config)


class TestConfig:
    def test_values_replace_those_of_the_file(self, folder: Path) -> None:
        config = opened(folder, hf_overrides={"rope_theta": 5e5, "rms_norm_eps": 1e-5})
        assert (config.rope.theta, config.rms_norm_eps) == (5e5, 1e-5)
        assert "use_sliding_window" not in open_model(folder, said(hf_overrides={"use_sliding_window": None})).config

    @pytest.mark.parametrize(
        "stated",
        [
            {"rope_theta": 3e4},
            {"rope_theta": 3e4, "rope_scaling": None},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 3e4}, "rope_theta": ...},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4}, "rope_theta": 3e4},
        ],
    )
    def test_of_rope_that_is_stated_in_several_places(self, stated: dict[str, Any], tmp_path: Path) -> None:
        """What the user does not say stays: the base under another scaling, the scaling under another base."""
        model = write_model(tmp_path)
        raw = json.loads((tmp_path / "config.json").read_text()) | stated
        (tmp_path / "config.json").write_text(json.dumps({key: raw[key] for key in raw if raw[key] is not ...}))
        before = opened(model).rope
        assert before.theta == 3e4
        assert opened(model, hf_overrides={"rope_theta": 5e4}).rope == type(before)(
            theta=5e4, rope_type=before.rope_type, factor=before.factor
        )
        for name in ("rope_scaling", "rope_parameters"):
            linear = opened(model, hf_overrides={name: {"rope_type": "linear", "factor": 3.0}}).rope
            assert (linear.rope_type, linear.factor, linear.theta) == ("linear", 3.0, 3e4)
            both = opened(model, hf_overrides={name: {"rope_type": "linear", "factor": 3.0, "rope_theta": 7e4}}).rope
            assert (both.factor, both.theta) == (3.0, 7e4)

    @pytest.mark.parametrize(
        ("words", "error", "message"),
        [
            ({"hf_overrides": {"frob": 1}}, UsageError, "override frob: a model of the type 'qwen2' reads no such key"),
            ({"hf_overrides": {"temperature": 0.5}}, UsageError, "override temperature: .* would change nothing"),
            ({"hf_overrides": {"llama.rope.freq_base": 1}}, UsageError, "override llama: "),
            ({"hf_overrides": {"frob": None}}, UsageError, "override frob=null: the model has no such key"),
            ({"hf_overrides": {"rms_norm_eps": "x"}}, ConfigError, "rms_norm_eps='x': expected a number"),
            ({"hf_overrides": {"num_hidden_layers": 10**9}}, ConfigError, "num_hidden_layers"),
            ({"hf_overrides": {"model_type": "gpt2"}}, ConfigError, "model_type='gpt2'"),
            ({"hf_overrides": [1]}, UsageError, "expected a mapping"),
            ({"rope_scaling": "yarn"}, UsageError, "belong together"),
            ({"rope_scaling": "ntk", "rope_factor": 2}, UsageError, "expected linear or yarn"),
            ({"rope_scaling": "yarn", "rope_factor": 0.5}, UsageError, "rope_factor=0.5: expected a number above 1"),
            (
                {"rope_scaling": "yarn", "rope_factor": 2, "hf_overrides": {"rope_theta": 1e6, "rope_scaling": {}}},
                UsageError,
                "both scale RoPE",
            ),
            ({"chat_template_kwargs": {"messages": []}}, UsageError, "messages is given to the chat template"),
            ({"chat_template": "{{ nonsense"}, TemplateError, "chat template"),
            ({"chat_template": Path("/nowhere/a.jinja")}, TemplateError, "cannot be opened"),
        ],
    )
    def test_what_makes_no_sense_is_refused_by_name(
        self, words: dict[str, Any], error: type[KaratError], message: str, folder: Path
    ) -> None:
        def use() -> None:
            checkpoint = open_model(folder, said(**words))
            read_config(checkpoint.config)
            Tokenizer.of(checkpoint)

        with pytest.raises(error, match=message):
            use()

    def test_a_model_with_scaling_of_its_own_is_not_scaled_twice(self, tmp_path: Path) -> None:
        model = write_model(tmp_path, rope_scaling={"rope_type": "linear", "factor": 2.0})
        with pytest.raises(UsageError, match="the model has RoPE of the kind 'linear' already"):
            opened(model, rope_scaling="yarn", rope_factor=4)


class TestMetadata:
    def test_keys_of_a_file(self, gguf_file: Path) -> None:
        assert opened(gguf_file, hf_overrides={"llama.rope.freq_base": 5000}).rope.theta == 5000
        assert opened(gguf_file, hf_overrides={"llama.rope.scaling.factor": 4.0}).rope.factor == 4  # not in the file
        assert opened(gguf_file, hf_overrides={"llama.rope.freq_base": None}).rope.theta == 10000
        assert opened(gguf_file, hf_overrides={"rope_theta": 7000.0}).rope.theta == 7000  # as of config.json
        assert opened(gguf_file, hf_overrides={"tokenizer.ggml.eos_token_id": 1}).eos_token_ids == (1,)

    def test_a_key_that_no_reader_knows_can_be_taken_away(self, tmp_path: Path) -> None:
        path = tmp_path / "a.gguf"
        path.write_bytes(tiny({"llama.frob": (U32, 3)}))
        with pytest.raises(ConfigError, match=r"llama\.frob=3"):
            opened(path)
        assert opened(path, hf_overrides={"llama.frob": None})

    def test_the_template_of_a_file(self, gguf_file: Path) -> None:
        checkpoint = open_model(gguf_file, said(hf_overrides={"tokenizer.chat_template": "{{ messages[0].content }}!"}))
        assert Tokenizer.of(checkpoint).render_chat(HELLO) == "Hi!"

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("llama.frob", 1, "Karat reads no such key"),
            ("general.name", "x", "Karat reads no such key"),
            ("split.count", 2, "Karat reads no such key"),
            ("llama.context_length", "x", "expected an integer, as the file has it: 64"),
            ("llama.context_length", 64.5, "expected an integer"),
            ("llama.rope.freq_base", True, "expected a number"),
            ("llama.rope.freq_base", [1], "expected a truth value, a number or a text"),
            ("frob", 1, "reads no such key"),
        ],
    )
    def test_what_makes_no_sense_is_refused_by_name(self, key: str, value: Any, message: str, gguf_file: Path) -> None:
        with pytest.raises(UsageError, match=f"override {key}.*{message}"):
            opened(gguf_file, hf_overrides={key: value})


class TestAnswers:
    @pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
    @pytest.mark.parametrize(("kind", "factor"), [("yarn", 4.0), ("yarn", 2.5), ("linear", 3.0)])
    def test_a_longer_context_is_that_of_transformers(
        self, family: str, kind: str, factor: float, folder: Path, tmp_path: Path
    ) -> None:
        """Logits of transformers with the same config, at positions beyond those that the model was trained for."""
        torch = pytest.importorskip("torch", exc_type=ImportError)
        transformers = pytest.importorskip("transformers")
        sizes = {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 64,
        }
        if family == "mistral":
            sizes["sliding_window"] = None
        torch.manual_seed(5)
        small = transformers.AutoConfig.for_model(family, **sizes)
        model = transformers.AutoModelForCausalLM.from_config(small).float()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(tmp_path)
        rope = {**small.rope_parameters, "rope_type": kind, "factor": factor}
        if kind == "yarn":
            rope["original_max_position_embeddings"] = 64
        changed = {**sizes, "max_position_embeddings": int(64 * factor), "rope_parameters": rope}
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, config=transformers.AutoConfig.for_model(family, **changed), dtype=torch.float64
        ).eval()
        ids = np.random.default_rng(3).integers(0, VOCAB, 130).tolist()
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0].numpy()
        shutil.copy(folder / "tokenizer.json", tmp_path)
        llm = LLM(tmp_path, executor="reference", dtype="float64", rope_scaling=kind, rope_factor=factor)
        assert llm.max_model_len == int(64 * factor)
        found = llm.logits(ids)
        assert np.abs(found - expected).max() <= 1e-5 * expected.std()  # logits come as float32
        short = LLM(tmp_path, executor="reference", dtype="float64").logits(ids[:60])
        assert np.abs(found[:60] - short).max() > 1e-3 * expected.std()

    def test_it_is_said_when_the_model_is_loaded(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        LLM(folder, hf_overrides={"rope_theta": 5e5}, rope_scaling="yarn", rope_factor=4)
        assert "instead of what the files say: rope_theta=500000.0" in caplog.text
        assert "the model reads up to 512 tokens and was trained for 128" in caplog.text
        with pytest.raises(UsageError, match="rope_scaling"):
            LLM(folder, max_model_len=500)

    def test_it_is_part_of_the_fingerprint(self, folder: Path) -> None:
        plain = LLM(folder).fingerprint()
        scaled = LLM(folder, rope_scaling="yarn", rope_factor=2).fingerprint()
        based = LLM(folder, hf_overrides={"rope_theta": 5e5}).fingerprint()
        worded = LLM(folder, chat_template="{{ messages[0].content }}").fingerprint()
        assert len({found.configuration for found in (plain, scaled, based)}) == 3
        assert worded.configuration == plain.configuration
        assert worded.chat_template != plain.chat_template
        assert {found.weights for found in (plain, scaled, based, worded)} == {plain.weights}

    @pytest.mark.skipif(unavailable_reason() is not None, reason="ranks need the native executor")
    def test_ranks_have_it_too(self, tmp_path: Path) -> None:
        folder = write_model(tmp_path, hidden_size=72, num_attention_heads=12, intermediate_size=50)
        words: dict[str, Any] = {"hf_overrides": {"rope_theta": 5e5}, "rope_scaling": "yarn", "rope_factor": 2.0}
        with LLM(folder, **words) as alone, LLM(folder, tensor_parallel_size=2, **words) as shared:
            np.testing.assert_array_equal(alone.logits(list(range(150))), shared.logits(list(range(150))))


class TestTemplates:
    SHOUT = "{% for m in messages %}{{ m.content | upper }}{{ ending }}{% endfor %}"

    def test_another_template_and_its_variables(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "shout.jinja").write_text(self.SHOUT)
        for template in (self.SHOUT, tmp_path / "shout.jinja", str(tmp_path / "shout.jinja")):
            llm = LLM(folder, chat_template=template, chat_template_kwargs={"ending": "?"})
            assert llm.chat_prompt(HELLO).text == "HI?"
            assert llm.chat_prompt(HELLO, chat_template_kwargs={"ending": "!"}).text == "HI!"
        assert LLM(folder).chat_prompt(HELLO).text != "HI?"

    def test_variables_alone_go_to_the_own_template(self, folder: Path) -> None:
        llm = LLM(folder, chat_template_kwargs={"prefix": "So: "})
        plain = LLM(folder)
        assert llm.chat_prompt(HELLO).text == plain.chat_prompt(HELLO, chat_template_kwargs={"prefix": "So: "}).text
        assert llm.chat_prompt(HELLO).text.endswith("So: ")
        assert llm.chat_prompt(HELLO, sanitize_control_tokens=True).text.endswith("So: ")

    def test_of_a_tokenizer_that_is_given(self, folder: Path) -> None:
        llm = LLM(folder, tokenizer=Tokenizer.from_folder(folder), chat_template=self.SHOUT)
        assert llm.chat_prompt(HELLO).text == "HI"

    def test_chatml_is_built_in(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its text is what llama.cpp's template of this name writes."""
        talk = [*HELLO, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "So {{ it }} is."}]
        expected = (
            f"<|im_start|>user\n{HELLO[0]['content']}<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
            "<|im_start|>user\nSo {{ it }} is.<|im_end|>\n<|im_start|>assistant\n"
        )
        assert LLM(folder, chat_template="chatml").chat_prompt(talk).text == expected
        monkeypatch.chdir(tmp_path)
        (tmp_path / "chatml").write_text("mine")
        assert said(chat_template="chatml").chat_template == "mine"

    def test_braces_alone_are_no_template(self, tmp_path: Path) -> None:
        (tmp_path / "{a}.jinja").write_text("{# mine #}")
        assert said(chat_template=str(tmp_path / "{a}.jinja")).chat_template == "{# mine #}"

    def test_a_file_that_is_no_template(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "latin.jinja").write_bytes(b"\xff{{ x }}")
        with pytest.raises(TemplateError, match="is not UTF-8"):
            said(chat_template=tmp_path / "latin.jinja")


def test_the_engine_of_a_server_has_it_too(folder: Path) -> None:
    words: dict[str, Any] = {"hf_overrides": {"rope_theta": 5e5}, "chat_template": TestTemplates.SHOUT}
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, seed=1)
    expected = LLM(folder, **words).chat(HELLO, params)[0].outputs[0].token_ids

    async def answer() -> Any:
        llm = await AsyncLLM.open(folder, **words)
        try:
            return await llm.chat(HELLO, params)
        finally:
            await llm.close()

    assert asyncio.run(answer()).outputs[0].token_ids == expected


def test_what_was_said_is_described() -> None:
    words = Overrides(hf_overrides={"rope_theta": 1e6}, chat_template="abc", chat_template_kwargs={"x": False})
    assert words.described() == {
        "rope_theta": 1e6,
        "chat_template": "3 characters",
        "chat_template_kwargs": {"x": False},
    }
    assert Overrides().described() == {}
