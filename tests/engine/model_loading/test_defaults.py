"""Default sampling and end tokens of a checkpoint: by hand, and as transformers' generate has them."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers

from karat.engine.model_loading.defaults import GenerationDefaults, end_hint, read_defaults, turn_end_ids
from karat.errors import ConfigError
from karat.models.registry import read_config
from karat.request import SamplingParams
from karat.text import Tokenizer
from tests.engine.tiny import CONFIG, ENDOFTEXT, IM_END, OTHER_END, VOCAB, write_model
from tests.text.tools.models import byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_model(tmp_path_factory.mktemp("model")))


def read(tokenizer: Tokenizer, raw: dict[str, Any] | None, **config: Any) -> GenerationDefaults:
    return read_defaults(raw, read_config(CONFIG | config), tokenizer)


def test_values_are_taken_over(tokenizer: Tokenizer) -> None:
    defaults = read(
        tokenizer,
        {
            "do_sample": True,
            "temperature": 0.7,
            "top_k": 20,
            "top_p": 0.8,
            "min_p": 0.05,
            "repetition_penalty": 1.05,
            "max_new_tokens": 50,
            "min_new_tokens": 2,
            "stop_strings": ["\n\n"],
            "num_return_sequences": 2,
        },
    )
    assert defaults.params == SamplingParams(
        temperature=0.7,
        top_k=20,
        top_p=0.8,
        min_p=0.05,
        repetition_penalty=1.05,
        max_tokens=50,
        min_tokens=2,
        stop=("\n\n",),
        n=2,
    )
    for part in (
        "temperature=0.7",
        "top_k=20",
        "top_p=0.8",
        "min_p=0.05",
        "repetition_penalty=1.05",
        "max_tokens=50",
        "min_tokens=2",
        "n=2",
    ):
        assert part in defaults.notice
    assert "not applied" not in defaults.notice


@pytest.mark.parametrize("raw", [None, {}, {"do_sample": False}, {"do_sample": None, "temperature": None}])
def test_greedy_unless_it_says_do_sample(tokenizer: Tokenizer, raw: dict[str, Any] | None) -> None:
    defaults = read(tokenizer, raw)
    assert defaults.params == SamplingParams(temperature=0)
    assert "temperature=0" in defaults.notice and ("has no generation_config.json" in defaults.notice) == (raw is None)


def test_sampling_values_mean_nothing_to_greedy_and_are_named(tokenizer: Tokenizer) -> None:
    defaults = read(tokenizer, {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1})
    assert defaults.params == SamplingParams(temperature=0, repetition_penalty=1.1)
    assert "not applied: temperature=0.6, top_p=0.9" in defaults.notice


def test_top_k_where_nothing_is_said_is_that_of_transformers(tokenizer: Tokenizer) -> None:
    generation = pytest.importorskip("transformers").GenerationConfig
    defaults = read(tokenizer, {"do_sample": True})
    theirs = generation._get_default_generation_params()
    assert defaults.params.top_k == theirs["top_k"] == 50
    assert defaults.params.temperature == theirs["temperature"]
    assert defaults.params.top_p == theirs["top_p"]
    assert theirs["do_sample"] is False
    assert "top_k=50 (transformers' default)" in defaults.notice
    assert read(tokenizer, {"do_sample": True, "top_k": 0}).params.top_k == 0


def test_samplers_of_transformers_are_applied(tokenizer: Tokenizer) -> None:
    """Those of words with or without sampling; transformers passes over a word that is an end token alone."""
    words: dict[str, Any] = {"no_repeat_ngram_size": 3, "bad_words_ids": [[5], [7, 8], [2]], "eos_token_id": 2}
    for raw in (words, words | {"do_sample": True}):
        defaults = read(tokenizer, raw)
        params = defaults.params
        assert params.no_repeat_ngram_size == 3 and params.bad_words_ids == ((5,), (7, 8))
        assert "bad_words_ids (2 of them)" in (defaults.notice or "")
    assert read(tokenizer, {"do_sample": True, "typical_p": 0.9}).params.typical_p == 0.9
    assert read(tokenizer, {"typical_p": 0.9}).params.typical_p == 1, "greedy"
    with pytest.raises(ConfigError, match="bad_words_ids="):
        read(tokenizer, {"bad_words_ids": [[]]})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_beams", 4),
        ("typical_p", 0.9),
        ("max_length", 4096),
        ("max_time", 3.0),
        ("suppress_tokens", [5]),
        ("forced_eos_token_id", 2),
        ("guidance_scale", 1.5),
        ("exponential_decay_length_penalty", [5, 1.1]),
        ("watermarking_config", {"bias": 2}),
        ("never_heard_of", 1),
        ("min_length", 5),
        ("penalty_alpha", 0.6),
        ("sequence_bias", [[[1], -5.0]]),
    ],
)
def test_what_is_not_supported_is_named(tokenizer: Tokenizer, key: str, value: object) -> None:
    defaults = read(tokenizer, {key: value})
    assert f"not applied: {key}={value!r}" in defaults.notice
    assert defaults.params == SamplingParams(temperature=0)


def test_what_changes_nothing_is_not_named(tokenizer: Tokenizer) -> None:
    """All of transformers' own defaults, and the bookkeeping of a saved file."""
    generation = pytest.importorskip("transformers").GenerationConfig
    raw = generation._get_default_generation_params() | generation().to_dict()
    raw |= {
        "max_length": None,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "use_cache": True,
        "_from_model_config": True,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "transformers_version": "5.0.0",
    }
    assert "not applied" not in read(tokenizer, raw).notice


@pytest.mark.parametrize(
    "raw",
    [
        {"do_sample": "yes"},
        {"do_sample": True, "temperature": "hot"},
        {"do_sample": True, "top_k": -5},
        {"max_new_tokens": 0},
        {"eos_token_id": "2"},
        {"eos_token_id": [1, -2]},
        {"eos_token_id": True},
        {"stop_strings": [1]},
        {"repetition_penalty": 0},
    ],
)
def test_values_of_the_wrong_kind_are_named(tokenizer: Tokenizer, raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"generation_config\.json: .*expected"):
        read(tokenizer, raw)


@pytest.mark.parametrize(
    ("stated", "in_config", "ends"),
    [
        (None, None, set()),
        (5, None, {5}),
        ([5, 7], None, {5, 7}),
        (None, [3, 4], {3, 4}),
        (5, 3, {5}),  # as for transformers, the generation config decides
        ([], 3, {3}),
    ],
)
def test_end_tokens(tokenizer: Tokenizer, stated: object, in_config: object, ends: set[int]) -> None:
    assert read(tokenizer, {"eos_token_id": stated}, eos_token_id=in_config).end_token_ids == ends


def test_the_tokenizers_own_end_token_ends_too(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_model(tmp_path, eos_token="<|im_end|>"))
    assert read(tokenizer, {"eos_token_id": ENDOFTEXT}).end_token_ids == {ENDOFTEXT, IM_END}
    assert read(tokenizer, None).end_token_ids == {IM_END}


def test_end_tokens_outside_the_vocabulary_are_named(tokenizer: Tokenizer) -> None:
    defaults = read(tokenizer, {"eos_token_id": [5, VOCAB]})
    assert defaults.end_token_ids == {5}
    assert f"eos_token_id={VOCAB} (outside the vocabulary)" in defaults.notice


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}", {IM_END}),
        ("{% for m in messages %}{{ m.role }}: {{ m.content | trim }} <|other_end|>{% endfor %}", {OTHER_END}),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", set()),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", set()),
        ("{% for m in messages %}{{ m.content }} END {% endfor %}", set()),  # no token of its own
        ("{% for m in messages %}<|im_start|>{{ m.role }}<|im_end|>{% endfor %}", set()),  # it hides what was said
        ("{{ raise_exception('no') }}", set()),
        ("{% broken", set()),
        (None, set()),
    ],
)
def test_the_token_that_closes_a_turn(tmp_path: Path, template: str | None, ends: set[int]) -> None:
    assert turn_end_ids(Tokenizer.from_folder(write_model(tmp_path, chat_template=template))) == ends


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", "<|im_end|>"),
        ("meta-llama-Llama-3.2-3B-Instruct", "<|eot_id|>"),
        ("google-gemma-2-2b-it", "<end_of_turn>"),
        ("Qwen-QwQ-32B", "<|im_end|>"),
    ],
)
def test_of_released_templates(data_dir: Path, tmp_path: Path, template: str, end: str) -> None:
    source = (data_dir / "templates" / f"{template}.jinja").read_text(encoding="utf-8")
    folder = write_model(tmp_path, chat_template=source)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens([end])
    backend.save(str(folder / "tokenizer.json"))
    assert turn_end_ids(Tokenizer.from_folder(folder)) == {backend.token_to_id(end)}


def test_a_hint_where_the_token_that_closes_a_turn_ends_no_text(tokenizer: Tokenizer) -> None:
    chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    with_template = byte_tokenizer(chatml, special=["<|im_start|>", "<|im_end|>"])
    end = with_template.token_to_id("<|im_end|>")
    assert end is not None
    hint = end_hint(with_template, frozenset({0}))
    assert hint is not None and hint.startswith("<|im_end|> ends a turn") and f"stop_token_ids=[{end}]" in hint
    assert end_hint(with_template, frozenset({end})) is None
    assert end_hint(byte_tokenizer(), frozenset()) is None


def test_a_turn_may_end_with_an_added_token_that_is_not_special(tmp_path: Path) -> None:
    """As in GGUF files whose converter wrote it as "user-defined"; one that is white space or a word ends nothing."""
    for token, ends in (("<turn_end>", True), ("\n\n", False), ("word", False)):
        source = "{% for m in messages %}{{ m.role }}: {{ m.content }} " + token + "{% endfor %}"
        (folder := tmp_path / str(len(token))).mkdir()
        write_model(folder, chat_template=source)
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.add_tokens([tokenizers.AddedToken(token, normalized=False, special=False)])
        backend.save(str(folder / "tokenizer.json"))
        tokenizer = Tokenizer.from_folder(folder)
        expected = {backend.token_to_id(token)} if ends else set()
        assert backend.token_to_id(token) not in tokenizer.special_ids and turn_end_ids(tokenizer) == expected


def test_the_notice_ends_however_much_is_not_applied(tokenizer: Tokenizer) -> None:
    defaults = read(tokenizer, {f"unknown_{i}": "x" * 1000 for i in range(50_000)} | {"y" * 2**20: 1})
    assert len(defaults.notice) < 3000 and "unknown_0='xxx" in defaults.notice
    assert "and 49986 more" in defaults.notice
    ends = read(tokenizer, {"eos_token_id": list(range(10**38, 10**38 + 10_000))})
    assert len(ends.notice) < 3000
