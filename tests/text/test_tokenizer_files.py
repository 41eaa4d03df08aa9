"""What the files of a folder say about its tokenizer, compared with transformers; and what is refused."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from karat.errors import TokenizerError
from karat.text import Tokenizer
from karat.text.byte_vocabulary import BYTE_OF_CHAR
from karat.text.tokenizer_files import read_tokenizer_files

TEMPLATE = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
HELLO = [{"role": "user", "content": "Hello"}]
TEXTS = ["Once upon a time", "<s> x </s>", "<|im_start|>user\nhi<|im_end|>", " <new> <other>a", "  a\n\nb", "é"]


def added(content: str, **flags: bool) -> dict[str, Any]:
    return {
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    } | flags


def write(folder: Path, tokenizer_json: Any, **files: Any) -> Path:
    """A folder with tokenizer.json and others; `a__b` is the file `a.b`, and text is written as it is."""
    for name, content in {"tokenizer__json": tokenizer_json, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        path = folder / name.replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def byte_level(data_dir: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((data_dir / "checkpoint" / "tokenizer.json").read_text(encoding="utf-8"))
    return data


@pytest.fixture(scope="module")
def pieces(data_dir: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((data_dir / "stories260k" / "tokenizer.json").read_text(encoding="utf-8"))
    return data


EOS = {"eos_token": "<|im_end|>"}
NEW = {"4096": added("<new>"), "4097": added("<other>", special=False, lstrip=True)}


def config(**more: Any) -> dict[str, Any]:
    return {"tokenizer_config__json": EOS | more}


BYTE_LEVEL_FOLDERS: dict[str, dict[str, Any]] = {
    "nothing else": {},
    "empty config": {"tokenizer_config__json": {}},
    "end token": config(),
    "end token as object": config(eos_token={**added("<|im_end|>"), "__type": "AddedToken"}),
    "null tokens": config(bos_token=None, unk_token=None),
    "flags without effect": config(bos_token="<|endoftext|>", add_bos_token=True, add_eos_token=True),
    "new named token": config(pad_token="<new>"),
    "token of a role of its own": config(image_token="<new>"),
    "extra tokens": config(extra_special_tokens=["<new>", "<|im_start|>"]),
    "extra tokens by role": config(extra_special_tokens={"image_token": "<new>"}),
    "additional tokens": config(additional_special_tokens=["<new>"], extra_special_tokens={}),
    "declared tokens": config(added_tokens_decoder=NEW),
    "other flags": config(added_tokens_decoder={"2": added("<|im_end|>", lstrip=True)}),
    "made special": config(added_tokens_decoder={"39": added("E")}),
    "made special by role": config(added_tokens_decoder=NEW, sep_token="<other>"),
    "special tokens map": {**config(eos_token="x"), "special_tokens_map__json": EOS},
    "special tokens map with objects": {
        "special_tokens_map__json": {
            "eos_token": added("<new>", lstrip=True),
            "additional_special_tokens": ["<other>"],
        },
    },
    "special tokens map unused": {**config(added_tokens_decoder={}), "special_tokens_map__json": {"eos_token": "x"}},
    "added tokens file": {**config(pad_token="<new>"), "added_tokens__json": {"<new>": 4096, "<other>": 4097}},
    "clean-up of BPE": config(clean_up_tokenization_spaces=True),
    "special tokens split": config(split_special_tokens=True),
    "template in config": config(chat_template=TEMPLATE),
    "templates in config": config(
        chat_template=[{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": "tools"}]
    ),
    "template file": {**config(chat_template="not this"), "chat_template__jinja": TEMPLATE + "é\n"},
    "template files": {"chat_template__jinja": TEMPLATE, "additional_chat_templates/tool_use__jinja": "tools"},
}


PIECES_FOLDERS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no post-processor": {"post_processor": None},
    "truncation and padding": {
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<unk>",
        },
    },
    "decoder without strip": {
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    },
}


def assert_same(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = Tokenizer.from_folder(folder)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))
    assert ours.vocab_size == len(theirs)
    assert ours.special_tokens == theirs.special_tokens_map
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.special_ids == {i for i, token in theirs.added_tokens_decoder.items() if token.special}
    for text in TEXTS:
        for flag in (True, False):
            ids = ours.encode(text, add_special_tokens=flag)
            assert ids == theirs.encode(text, add_special_tokens=flag)
            assert ours.decode(ids, skip_special_tokens=flag) == theirs.decode(ids, skip_special_tokens=flag)
    for tools in (None, []):
        if theirs.chat_template is None:
            assert ours.chat_template is None
        else:
            assert ours.render_chat(HELLO, tools=tools) == theirs.apply_chat_template(
                HELLO, tools=tools, tokenize=False, add_generation_prompt=True
            )


@pytest.mark.parametrize("name", BYTE_LEVEL_FOLDERS)
def test_files_beside_tokenizer_json(name: str, byte_level: dict[str, Any], tmp_path: Path) -> None:
    assert_same(write(tmp_path, byte_level, **BYTE_LEVEL_FOLDERS[name]))


def test_the_files_make_a_difference(byte_level: dict[str, Any], tmp_path: Path) -> None:
    plain = Tokenizer.from_folder(write(tmp_path, byte_level))
    same = set()
    for name, files in BYTE_LEVEL_FOLDERS.items():
        folder = tmp_path / name
        folder.mkdir()
        other = Tokenizer.from_folder(write(folder, byte_level, **files))
        facts = [(t.special_tokens, t.special_ids, [t.encode(x) for x in TEXTS], t._templates) for t in (plain, other)]
        if facts[0] == facts[1]:
            same.add(name)
    assert same == {"nothing else", "empty config"}


@pytest.mark.parametrize("name", PIECES_FOLDERS)
def test_parts_of_tokenizer_json(name: str, pieces: dict[str, Any], tmp_path: Path) -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": True,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    assert_same(write(tmp_path, pieces | PIECES_FOLDERS[name], tokenizer_config__json=config))


def test_added_tokens_are_normalized_unless_special(pieces: dict[str, Any], tmp_path: Path) -> None:
    files = {"tokenizer_config__json": {"pad_token": "<NEW>"}, "added_tokens__json": {"<NEW>": 512, "<OTHER>": 513}}
    write(tmp_path, pieces | {"normalizer": {"type": "Lowercase"}}, **files)
    assert_same(tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("<OTHER><other>", add_special_tokens=False) == [513, 513]
    assert tokenizer.encode("<NEW>", add_special_tokens=False) == [512]
    assert 512 not in tokenizer.encode("<new>")


def test_merges_are_never_left_out_at_random(byte_level: dict[str, Any], tmp_path: Path) -> None:
    """`dropout` is for training; one text has one tokenisation, that of all merges."""
    text = "The quick brown fox jumps over the lazy dog. " * 4
    plain = read_tokenizer_files(write(tmp_path / "plain", byte_level)).backend.encode(text).ids
    byte_level["model"]["dropout"] = 0.5
    dropping = read_tokenizer_files(write(tmp_path / "dropping", byte_level)).backend
    assert [dropping.encode(text).ids for _ in range(4)] == [plain] * 4


def test_a_processors_template_is_not_the_tokenizers(byte_level: dict[str, Any], tmp_path: Path) -> None:
    """As in transformers' tokenizers; a note says what to do."""
    write(tmp_path, byte_level, chat_template__json={"chat_template": "processor"})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.template_source is None
    assert tokenizer.notes == (
        "chat_template.json is not read: it is for processors of images; give it with --chat-template",
    )
    write(tmp_path, byte_level, tokenizer_config__json={"chat_template": "config"})
    assert Tokenizer.from_folder(tmp_path).render_chat(HELLO) == "config"
    write(tmp_path, byte_level, chat_template__jinja="file")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.render_chat(HELLO) == "file" and tokenizer.notes == ()


def test_a_space_before_a_text_that_nothing_puts_is_named(byte_level: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, byte_level, tokenizer_config__json={"add_prefix_space": True})
    (note,) = Tokenizer.from_folder(tmp_path).notes
    assert note.startswith("add_prefix_space=true of tokenizer_config.json has no effect")
    write(tmp_path, byte_level, tokenizer_config__json={"add_prefix_space": False})
    assert Tokenizer.from_folder(tmp_path).notes == ()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tekken.json", "{}", "tekken.json is malformed: 'config'"),
        ("vocab.json", "{}", "has vocab.json, a vocabulary without merges.txt"),
        ("qwen.tiktoken", "", "has qwen.tiktoken, a Tiktoken vocabulary"),
        ("vocab.txt", "", "has vocab.txt, a WordPiece vocabulary"),
        ("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["x.py", null]}}', "asks for code of the checkpoint"),
        ("readme", "", "has no tokenizer; expected tokenizer.json; check the folder"),
    ],
)
def test_other_kinds_are_refused_by_name(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_folder(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="nowhere is not a folder"):
        Tokenizer.from_folder(tmp_path / "nowhere")


def test_code_is_not_needed_beside_tokenizer_json(byte_level: dict[str, Any], tmp_path: Path) -> None:
    config = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "EvilTokenizer"}
    write(tmp_path, byte_level, tokenizer_config__json=config)
    (tmp_path / "evil.py").write_text("raise SystemExit('code of the checkpoint was run')")
    assert Tokenizer.from_folder(tmp_path).vocab_size == 4096


CORRUPT: list[tuple[str, Any, str]] = [
    ("tokenizer_config", "{", r"tokenizer_config\.json: expecting property name .* at character 1; correct"),
    ("tokenizer_config", "[]", r"tokenizer_config\.json: holds \[\]; expected a JSON object"),
    ("tokenizer_config", "[" * 100_000, r"tokenizer_config\.json: nested too deeply"),
    ("tokenizer_config", {"bos_token": 7}, "is malformed: bos_token is an integer, expected a text"),
    ("tokenizer_config", {"eos_token": {"content": None}}, "eos_token is null"),
    ("tokenizer_config", {"extra_special_tokens": "x"}, "extra_special_tokens is a text"),
    ("tokenizer_config", {"added_tokens_decoder": []}, "added_tokens_decoder is a list"),
    ("tokenizer_config", {"added_tokens_decoder": {"a": added("x")}}, "is malformed: invalid literal for int"),
    ("tokenizer_config", {"added_tokens_decoder": {"1": {"color": 1}}}, "added token 1 is null, expected a text"),
    (
        "tokenizer_config",
        {"added_tokens_decoder": {"1": {"content": "x", "special": 1}}},
        "special of added token 1 is a",
    ),
    ("tokenizer_config", {"added_tokens_decoder": {"1": added("<|im_end|>")}}, r"id 1; tokenizer\.json makes it 2"),
    ("tokenizer_config", {"added_tokens_decoder": {"9999": added("<new>")}}, r"id 9999; tokenizer\.json makes it 4096"),
    ("tokenizer_config", {"chat_template": 7}, "chat_template is an integer"),
    ("tokenizer_config", {"chat_template": [{"name": "default"}]}, "is malformed: 'template'"),
    ("tokenizer_config", {"chat_control_tokens": "x"}, "chat_control_tokens is a text"),
    ("tokenizer_config", {"fix_mistral_regex": True}, "sets fix_mistral_regex, which Karat does not follow"),
    ("tokenizer_config", '{"eos_token": "a", "eos_token": "b"}', r"_config\.json: the key 'eos_token' comes twice"),
    ("tokenizer_config", '{"x": {"added": 1, "added": 1}}', "the key 'added' comes twice in one object"),
    ("tokenizer_config", '{"model_max_length": NaN}', "NaN is not JSON"),
    ("special_tokens_map", "nope", r"special_tokens_map\.json: expecting value"),
    ("special_tokens_map", '{"eos_token": "a", "eos_token": "b"}', r"_map\.json: the key 'eos_token' comes twice"),
    ("added_tokens", {"<new>": "1"}, "<new> is a text, expected an integer"),
    ("added_tokens", '{"<new>": 4096, "<new>": 4097}', r"added_tokens\.json: the key '<new>' comes twice"),
]


@pytest.mark.parametrize(("name", "content", "message"), CORRUPT)
def test_corrupt_files_are_named(
    name: str, content: Any, message: str, byte_level: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, byte_level, **{f"{name}__json": content})
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "additional_chat_templates/rag.jinja",
    ],
)
def test_links_out_of_the_folder_are_followed(name: str, byte_level: dict[str, Any], tmp_path: Path) -> None:
    """A work folder links to where models lie. A link to nothing is an error, not an absent file."""
    folder = tmp_path / "model"
    folder.mkdir()
    write(folder, byte_level)
    (folder / "additional_chat_templates").mkdir()
    outside = tmp_path / "outside"
    if name == "tokenizer.json":
        (folder / name).rename(outside)
    else:
        (folder / name).unlink(missing_ok=True)
        outside.write_text("{}")
    (folder / name).symlink_to(outside)
    assert Tokenizer.from_folder(folder).encode("Once")
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "nowhere")
    with pytest.raises(TokenizerError, match=rf"{name}: is a link to .*nowhere, which is not there"):
        Tokenizer.from_folder(folder)


def test_links_within_the_folder_are_followed(byte_level: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, byte_level)
    (tmp_path / "tokenizer.json").rename(tmp_path / "the tokenizer")
    (tmp_path / "tokenizer.json").symlink_to("the tokenizer")
    assert Tokenizer.from_folder(tmp_path).encode("Once")


def test_text_that_is_not_utf_8_is_refused(byte_level: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, byte_level)
    (tmp_path / "chat_template.jinja").write_bytes(b"caf\xe9")
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja is not UTF-8"):
        Tokenizer.from_folder(tmp_path)


def test_a_huge_file_is_refused_unread(byte_level: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, byte_level)
    with (tmp_path / "tokenizer_config.json").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: has 1000000000000 bytes; expected at most"):
        Tokenizer.from_folder(tmp_path)


def test_clean_up_of_other_models_is_refused(byte_level: dict[str, Any], tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    data = {**byte_level, "model": model, "added_tokens": [], "pre_tokenizer": None, "decoder": None}
    assert Tokenizer.from_folder(write(tmp_path, data)).encode("b") == [1]
    write(tmp_path, data, tokenizer_config__json={"clean_up_tokenization_spaces": True})
    with pytest.raises(TokenizerError, match="clean_up_tokenization_spaces for a WordLevel model"):
        Tokenizer.from_folder(tmp_path)


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("decoder", "culprit"),
    [
        ({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}, "CTC"),
        ({"type": "BPEDecoder", "suffix": "</w>"}, "BPEDecoder"),
        ([{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": " ."}, "content": "."}], "Replace"),
        ([{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}], "Strip"),
        ([{"type": "Replace", "pattern": {"String": "a"}, "content": "b"}, BYTE_LEVEL], "ByteLevel"),
    ],
)
def test_decoders_that_change_earlier_text_are_refused(
    decoder: Any, culprit: str, byte_level: dict[str, Any], tmp_path: Path
) -> None:
    if isinstance(decoder, list):
        decoder = {"type": "Sequence", "decoders": decoder}
    write(tmp_path, byte_level | {"decoder": decoder})
    with pytest.raises(TokenizerError, match=f"Karat does not support {culprit} there"):
        Tokenizer.from_folder(tmp_path)


def test_flipped_bytes_end_in_a_tokenizer_or_an_error(data_dir: Path, tmp_path: Path) -> None:
    # The head of the file and its middle: settings, vocabulary and merges.
    whole = (data_dir / "stories260k" / "tokenizer.json").read_bytes()
    chance = random.Random(0)
    messages = []
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 3))):
            data[chance.choice((chance.randrange(1800), chance.randrange(len(data))))] = chance.randrange(256)
        (tmp_path / "tokenizer.json").write_bytes(data[: chance.choice((len(data), chance.randrange(len(data))))])
        try:
            Tokenizer.from_folder(tmp_path).encode("Once upon a time")
        except TokenizerError as error:
            messages.append(str(error))
    assert len(messages) > 200
    assert all("tokenizer.json" in message for message in messages)


class TestTextThatVanishes:
    """A tokenizer that drops what it does not know, or every space: the model would never see it."""

    def broken(self, tmp_path: Path, data_dir: Path, **model: Any) -> Path:
        """A byte-level vocabulary under SentencePiece's pre-tokenizer, as some versions of transformers saved it."""
        shutil.copytree(data_dir / "checkpoint", tmp_path, dirs_exist_ok=True)
        path = tmp_path / "tokenizer.json"
        path.chmod(0o644)
        state = json.loads(path.read_text(encoding="utf-8"))
        state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        state["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
        state["model"] |= model
        path.write_text(json.dumps(state), encoding="utf-8")
        return tmp_path

    def test_without_a_token_for_it(self, tmp_path: Path, data_dir: Path) -> None:
        with pytest.raises(TokenizerError, match="so that text without a token would be lost; expected one of these"):
            Tokenizer.from_folder(self.broken(tmp_path, data_dir))

    def test_spaces(self, tmp_path: Path, data_dir: Path) -> None:
        unknown = self.broken(tmp_path, data_dir, unk_token="<|endoftext|>")
        with pytest.raises(TokenizerError, match="as which spaces are written; expected one, or all spaces"):
            Tokenizer.from_folder(unknown)

    def test_bytes_that_a_byte_level_vocabulary_lacks_are_named(self, data_dir: Path) -> None:
        assert Tokenizer.from_folder(data_dir / "checkpoint").notes == ()
        (note,) = Tokenizer.from_folder(data_dir / "tokenizers" / "torchtitan_tiny").notes
        assert note == "149 bytes of UTF-8, such as 0x00, have no token: text drops them"

    @pytest.mark.parametrize(("without", "is_remark"), [((0x04, 0xF1), True), ((0x04, 0x0A), False), ((0xC3,), False)])
    def test_bytes_that_nobody_writes_are_a_remark(
        self, tmp_path: Path, without: tuple[int, ...], is_remark: bool
    ) -> None:
        letters = {letter: byte for letter, byte in BYTE_OF_CHAR.items() if byte not in without}
        backend = Backend(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.save(str(tmp_path / "tokenizer.json"))
        tokenizer = Tokenizer.from_folder(tmp_path)
        said = (f"{len(without)} bytes of UTF-8, such as {min(without):#04x}, have no token: text drops them",)
        assert (tokenizer.notes, tokenizer.remarks) == (((), said) if is_remark else (said, ()))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
@pytest.mark.parametrize(
    ("head", "said"),
    [("\n<!doctype html>", "a web page: the download failed"), ("version 1 of a pointer", "run `git lfs pull` there")],
)
def test_what_another_file_is_instead(tmp_path: Path, name: str, head: str, said: str) -> None:
    (tmp_path / name).write_text(head)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(TokenizerError, match=said):
        read_tokenizer_files(tmp_path)
