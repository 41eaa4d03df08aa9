"""Arguments of an application: from text or values, refused by name, and the same after a journey as bytes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("ray", reason="Ray cannot be had here")
from karat.errors import KaratError, UsageError
from karat.ray.arguments import Arguments, arguments_of, read_arguments


def test_the_command_line_and_a_yaml_file_say_the_same() -> None:
    text = {"model": "/m/a.gguf", "min_replicas": "2", "max_replicas": "5", "cores": "4", "max_model_len": "512"}
    values = {"model": "/m/a.gguf", "min_replicas": 2, "max_replicas": 5, "cores": 4, "max_model_len": 512}
    made = arguments_of(text, 8)
    assert made == arguments_of(values, 8)
    assert made.engine_options() == {"threads": 4, "max_model_len": 512}
    assert read_arguments(msgspec.msgpack.encode(made)) == made


def test_defaults() -> None:
    made = arguments_of({}, 6)
    assert made == Arguments(cores=6) and made.most_replicas == 1 and made.places == 16
    assert made.settings().model_names == ("karat-embedded",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"modell": "x"}, "'modell' is no argument of karat.ray.app"),
        ({"seed": 1}, "'seed' is no argument"),
        ({"options": {}}, "'options' is no argument"),
        ({"min_replicas": "two"}, "min_replicas"),
        ({"min_replicas": 0}, "min_replicas=0: expected at least 1"),
        ({"cores": 0}, "cores=0: expected at least 1"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas=2: expected at least min_replicas=3"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        arguments_of(given, 1)
    assert said in str(raised.value)


def test_text_stays_text_where_it_is_no_value() -> None:
    options = arguments_of({"quantize": "q8_0", "enable_prefix_caching": "false", "dtype": "null"}, 1).options
    assert options == {"quantize": "q8_0", "enable_prefix_caching": False, "dtype": None}


def test_settings(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    made = arguments_of({"model": "org/name", "api_key_file": str(keys), "allowed_host": "a.example, b.example"}, 1)
    settings = made.settings()
    assert settings.model_names == ("name",) and settings.api_keys == ("one", "two")
    assert settings.allowed_hosts == ("a.example", "b.example")
    with pytest.raises(KaratError, match="give a file with a key on each line"):
        arguments_of({"api_key_file": str(tmp_path / "none")}, 1).settings()


def test_replicas_of_other_numbers_are_alike() -> None:
    few = arguments_of({"min_replicas": 1, "max_model_len": 512}, 2)
    many = arguments_of({"min_replicas": 9, "max_replicas": 20, "ingresses": 3, "max_model_len": 512}, 2)
    assert few.of_replica() == many.of_replica() != arguments_of({"max_model_len": 256}, 2).of_replica()
