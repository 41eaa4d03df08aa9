"""The files of a model held against each other: released ones are right, and each fault built into a copy is named.

Covers: karat.check.text.chat_audit.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, processors

from karat.check.model.checked import open_model
from karat.check.session.session import PROMPT
from karat.check.session.stage import Stage
from karat.check.stages import tokens
from karat.check.stages.tokens import check_tokens
from karat.check.text.chat_audit import audit_chat
from karat.check.text.token_audit import MARKER, Audit, FileAudit, Stated
from karat.checkpoint.gguf import read_header
from karat.config import embedded_model_path
from karat.engine.model_loading.defaults import GenerationDefaults, turn_end_ids
from karat.text import Tokenizer
from karat.text.tokenizer_files import TokenizerFiles
from tests.support.drawn import some

VOCABULARIES = ("deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "qwen35")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
Files = dict[str, Any]  # config.json, generation_config.json, tokenizer.json and tokenizer_config.json by stem


def audited(tokenizer: Tokenizer, *, num_rows: int | None = None) -> Audit:
    """The audit of a tokenizer whose files name no end token but its own."""
    own = tokenizer.eos_token_id
    stops = frozenset(() if own is None else (own,))
    stated = Stated(
        num_rows=num_rows or tokenizer.vocab_size,
        ends={"the tokenizer": tuple(stops)},
        stops=stops,
        chat_stops=stops | turn_end_ids(tokenizer),
    )
    audit, files = Audit(), FileAudit(tokenizer, stated)
    files.run(audit)
    audit_chat(files, audit)
    return audit


def with_files(folder: Path, change: Callable[[Files], None] | None = None) -> Path:
    """A copy of the embedded model, whose small files `change` alters."""
    shutil.copytree(embedded_model_path(), folder, dirs_exist_ok=True)
    stems = ("config", "generation_config", "tokenizer", "tokenizer_config")
    files = {stem: json.loads((folder / f"{stem}.json").read_text(encoding="utf-8")) for stem in stems}
    if change is not None:
        change(files)
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def staged(folder: Path, *, with_hf: bool = False) -> Stage:
    return check_tokens(open_model(str(folder)), Tokenizer.from_folder(folder), PROMPT, with_hf=with_hf)


class TestReleased:
    @pytest.mark.drawn(3)
    @pytest.mark.parametrize("name", VOCABULARIES)
    def test_vocabularies(self, data_dir: Path, name: str) -> None:
        path = data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf"
        audit = audited(Tokenizer.from_gguf(read_header(path).metadata, path))
        assert not audit.bugs and not audit.flags and audit.lines

    @pytest.mark.parametrize("name", ["checkpoint", "stories260k", "tokenizers/torchtitan_tiny"])
    def test_folders(self, data_dir: Path, name: str) -> None:
        audit = audited(Tokenizer.from_folder(data_dir / name))
        assert not audit.bugs and not audit.flags

    def test_the_trained_models_in_whole(self, data_dir: Path) -> None:
        for folder in (embedded_model_path(), data_dir / "checkpoint", data_dir / "stories260k"):
            stage = staged(folder)
            assert stage.verdict == "exact", stage.lines
            assert not any("is no token" in note for note in stage.facts["notes"])
            assert any(line.startswith("7 texts come back from their ids: bare, plain, long") for line in stage.lines)

    def test_templates(self, data_dir: Path, tmp_path: Path) -> None:
        """Every template with a vocabulary that has its marks: nothing is called wrong, and its ends are found."""
        sources = sorted((data_dir / "templates").glob("*.jinja"))
        for path in some(sources, 20, of="audited"):
            source = path.read_text(encoding="utf-8")
            folder = with_files(tmp_path / path.stem, lambda files, text=source: with_template(files, text))
            audit = audited(Tokenizer.from_folder(folder))
            assert not audit.bugs, (path.stem, audit.bugs)
            # One is the template for tools of a model that has another; one closes answers with </assistant>.
            failing = {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"}
            assert bool(audit.flags) == (path.stem in failing), (path.stem, audit.flags)
        assert len(sources) > 40

    @pytest.mark.drawn(1, each="vocabulary")
    @pytest.mark.parametrize(
        ("vocabulary", "template"),
        [
            ("qwen2", "Qwen-Qwen2.5-7B-Instruct"),
            ("qwen2", "Qwen-QwQ-32B"),
            ("qwen2", "Qwen3-Coder"),
            ("llama-bpe", "meta-llama-Llama-3.2-3B-Instruct"),
            ("llama-bpe", "meta-llama-Llama-3.3-70B-Instruct"),
        ],
    )
    def test_templates_on_their_own_vocabularies(self, data_dir: Path, vocabulary: str, template: str) -> None:
        path = data_dir / "tokenizers" / f"ggml-vocab-{vocabulary}.gguf"
        metadata = read_header(path).metadata
        source = (data_dir / "templates" / f"{template}.jinja").read_text(encoding="utf-8")
        metadata.values["tokenizer.chat_template"] = source  # type: ignore[index]
        audit = audited(Tokenizer.from_gguf(metadata, path))
        assert not audit.bugs and not audit.flags
        closing = "<|im_end|>" if vocabulary == "qwen2" else "<|eot_id|>"
        assert any(f"{closing!r}, which no file names" in note for note in audit.notes)


def with_template(files: Files, source: str) -> None:
    """The template, with BOS, EOS and its marks as special tokens of the tokenizer."""
    config = files["tokenizer_config"]
    config |= {"chat_template": source, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    marks = {found[0] for found in MARKER.finditer(source)} | {"[e~[", "]~b]", "]~!b["}
    config.pop("added_tokens_decoder")
    config["additional_special_tokens"] = sorted({*marks, "<|endoftext|>", "<|im_start|>", "<|im_end|>"})


def ends_at(ids: Any) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files["config"]["eos_token_id"] = files["generation_config"]["eos_token_id"] = ids

    return change


def ends_at_none_there_is(files: Files) -> None:
    ends_at(4095 + 9)(files)
    files["tokenizer_config"]["eos_token"] = None


def bos(files: Files, *tokens: str, **flags: object) -> None:
    """`tokens` before a text, and what tokenizer_config.json says of it."""
    parts = [{"SpecialToken": {"id": token, "type_id": 0}} for token in tokens]
    special = {token: {"id": token, "ids": [0], "tokens": [token]} for token in tokens}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    files["tokenizer"]["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*parts, text],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }
    files["tokenizer_config"] |= {"bos_token": "<|endoftext|>", **flags}


def undeclared(files: Files) -> None:
    """<|im_start|> is in the vocabulary, and no longer among the added tokens."""
    files["tokenizer"]["added_tokens"] = [t for t in files["tokenizer"]["added_tokens"] if t["id"] != 1]
    files["tokenizer_config"]["added_tokens_decoder"].pop("1")


def template(source: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files["tokenizer_config"] |= {"chat_template": source}

    return change


def two_bos_in_template(files: Files) -> None:
    bos(files)
    files["tokenizer_config"]["chat_template"] = "{{ bos_token }}<|endoftext|>" + TEMPLATE


def more_pieces(files: Files) -> None:
    vocabulary = files["tokenizer"]["model"]["vocab"]
    vocabulary["ĠKarat"] = len(vocabulary)


def bos_beyond(files: Files) -> None:
    files["tokenizer_config"] |= {"bos_token": "<|begin|>"}


BUGS: dict[str, tuple[Callable[[Files], None], str, str]] = {
    "an end token that is a word": (ends_at([2, 300]), "eos", "an ordinary piece of text"),
    "no end token that there is": (ends_at_none_there_is, "eos", "ends texts at 4104; the tokenizer has 4096 tokens"),
    "BOS is wanted and not added": (
        lambda f: bos(f, add_bos_token=True),
        "bos",
        "bos_token is 0 '<|endoftext|>'; put before a text: none",
    ),
    "BOS twice before a text": (lambda f: bos(f, "<|endoftext|>", "<|endoftext|>"), "bos", "'Hello' becomes [0, 0, "),
    "BOS twice in the template": (two_bos_in_template, "bos", "the prompt of a chat begins [0, 0, 1"),
    "a mark that is not declared": (undeclared, "special-tokens", "writes '<|im_start|>', which is token 1, and"),
    "special tokens are split": (
        lambda f: f["tokenizer_config"].update(split_special_tokens=True),
        "special-tokens",
        "'<|im_end|>' is 2, and",
    ),
    "no generation prompt": (
        template(TEMPLATE.partition("{% if")[0]),
        "template",
        r"'<|im_start|>assistant\n' comes before an answer",
    ),
    "the last message is left out": (
        template(TEMPLATE.replace("in messages", "in messages[:-1]")),
        "template",
        "is 0 times in the prompt",
    ),
    "the message comes twice": (
        template(TEMPLATE.replace("m.content", "m.content + m.content")),
        "template",
        "is 2 times in the prompt",
    ),
    "answers are left out": (
        template(TEMPLATE.replace("messages %", "messages if m.role != 'assistant' %")),
        "template",
        "the answer is",
    ),
    "a piece beyond the embedding": (more_pieces, "token-range", "1 pieces of text from 4096 'ĠKarat' on"),
    "BOS beyond the embedding": (bos_beyond, "token-range", "bos_token: 4096 '<|begin|>'; the embedding has 4096 rows"),
}
FLAGS: dict[str, tuple[Callable[[Files], None], str]] = {
    "one end token of several is none": (ends_at([2, 4104]), "it is never generated"),
    "BOS is not wanted and added": (
        lambda f: bos(f, "<|endoftext|>", add_bos_token=False),
        "add_bos_token is false, and tokenizer.json begins",
    ),
    "a closing mark that is no token": (
        template(TEMPLATE.replace("im_end", "turn_end")),
        "nothing ends an answer there, unless",
    ),
    "a template that refuses": (template("{{ raise_exception('never') }}"), "a single message of a user is not"),
    "an added token beyond the embedding": (
        lambda f: f["tokenizer_config"].update(extra_special_tokens=["<|more|>"]),
        "the added token 4096 '<|more|>'",
    ),
}


@pytest.mark.parametrize("fault", BUGS)
def test_a_fault_is_a_bug_with_its_name(tmp_path: Path, fault: str) -> None:
    change, name, where = BUGS[fault]
    stage = staged(with_files(tmp_path, change))
    assert stage.verdict == "bug"
    assert {bug for bugs in stage.facts["bugs"] for bug in bugs} == {name}, stage.facts
    assert any(where in fault for fault in stage.facts["faults"]), stage.facts["faults"]
    assert any(line.startswith(f"{name}: ") for line in stage.lines)
    assert any(line.startswith("   change ") for line in stage.lines)


@pytest.mark.parametrize("fault", FLAGS)
def test_what_may_be_meant_is_a_flag(tmp_path: Path, fault: str) -> None:
    change, words = FLAGS[fault]
    stage = staged(with_files(tmp_path, change))
    assert stage.verdict == "flagged", stage.lines
    assert any(words in flag for flag in stage.facts["flags"]), stage.facts["flags"]
    unknown = [note for note in stage.facts["notes"] if "is no token" in note]
    assert bool(unknown) == ("mark" in fault), unknown


def test_a_tokenizer_that_cannot_spell_the_text_that_is_tried() -> None:
    """The vocabulary has only digits and BOS. The audit still sees that BOS is added."""
    backend = Backend(models.BPE({"<s>": 0, **{digit: i + 1 for i, digit in enumerate("0123456789")}}, []))
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = Tokenizer(TokenizerFiles(backend, {"bos_token": "<s>"}, {}, None))
    stated = Stated(num_rows=11, ends={}, adds_bos=True, stops=frozenset(), chat_stops=frozenset())
    audit = Audit()
    FileAudit(tokenizer, stated).run(audit)
    assert not audit.bugs and "0 '<s>' is added before a text" in audit.lines


def test_an_end_behind_every_text_is_a_flag(tmp_path: Path) -> None:
    def change(files: Files) -> None:
        bos(files, "<|endoftext|>")
        files["tokenizer"]["post_processor"]["single"].reverse()

    stage = staged(with_files(tmp_path, change))
    assert stage.verdict == "flagged"
    assert stage.facts["flags"] == [
        "0 '<|endoftext|>' ends texts, and is put behind every one: a prompt is over at once"
    ]


def test_what_is_common_is_a_note(tmp_path: Path) -> None:
    """Padding with the end token, files that name different ends, a turn's end in no file, a chat without BOS."""

    def change(files: Files) -> None:
        ends_at(0)(files)
        bos(files, "<|endoftext|>", eos_token="<|endoftext|>", pad_token="<|endoftext|>", add_bos_token=True)

    stage = staged(with_files(tmp_path, change))
    notes = "\n".join(stage.facts["notes"])
    assert stage.verdict == "exact", stage.lines
    assert "padding token 0 '<|endoftext|>' ends texts too" in notes
    assert "closes an answer with 2 '<|im_end|>', which no file names" in notes
    assert "a text begins with 0 '<|endoftext|>', a chat does not" in notes
    differing = staged(with_files(tmp_path / "differing", lambda files: files["config"].update(eos_token_id=0)))
    assert "end tokens differ by file: config.json 0 '<|endoftext|>'; generation_config.json 2" in (
        "\n".join(differing.facts["notes"])
    )


def test_an_engine_that_ignores_an_end_token_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tokens.defaults_of

    def one_only(*args: Any) -> GenerationDefaults:
        found = right(*args)
        return GenerationDefaults(found.params, frozenset({0}), found.notice)

    monkeypatch.setattr(tokens, "defaults_of", one_only)
    stage = staged(with_files(tmp_path))
    assert stage.facts["bugs"] == [["eos"]]
    assert "generation_config.json names 2 '<|im_end|>', and Karat does not end" in stage.facts["faults"][0] or (
        "the tokenizer names 2" in stage.facts["faults"][0]
    )


def test_an_engine_that_ignores_the_end_of_a_turn_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(files: Files) -> None:
        ends_at(0)(files)
        files["tokenizer_config"]["eos_token"] = "<|endoftext|>"

    monkeypatch.setattr(tokens, "turn_end_ids", lambda _: frozenset())
    stage = staged(with_files(tmp_path, change))
    assert stage.facts["bugs"] == [["eos"]] and "closes an answer with 2 '<|im_end|>'" in stage.facts["faults"][0]


def test_texts_that_do_not_come_back(tmp_path: Path) -> None:
    """Characters without a token are a note; a decoder that loses some is a flag."""

    def without_bytes(files: Files) -> None:
        vocabulary = files["tokenizer"]["model"]["vocab"]
        for char in ("ð", "Ñ", "ä"):  # how byte-level BPE writes the first bytes of emoji, Cyrillic and Chinese
            vocabulary["spare" + char] = vocabulary.pop(char)
        files["tokenizer"]["model"]["unk_token"] = "<|endoftext|>"
        files["tokenizer"]["model"]["merges"] = []
        files["tokenizer_config"]["unk_token"] = "<|endoftext|>"

    def lossy(files: Files) -> None:
        files["tokenizer"]["normalizer"] = {"type": "Replace", "pattern": {"String": "t"}, "content": ""}

    stage = staged(with_files(tmp_path / "note", without_bytes))
    assert stage.verdict == "exact" and any("pieces have no token but 0" in note for note in stage.facts["notes"])
    stage = staged(with_files(tmp_path / "flag", lossy))
    assert stage.verdict == "flagged"
    assert any(
        "plain: 'Once upon a time" in flag and "comes back as 'Once upon a ime" in flag for flag in stage.facts["flags"]
    )
