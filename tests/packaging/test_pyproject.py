"""pyproject.toml is what the tools that read it expect: cibuildwheel's part is read on other machines only."""

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
TOOLS = ("cibuildwheel", "mypy", "pytest", "ruff", "scikit-build")  # whose schemas are compiled: all take seconds
WHEELS = tomllib.loads(TEXT)["tool"]["cibuildwheel"]
INSTALLS = "is not in this environment; `make test` installs it"

Validate = Callable[[str], Any]


@pytest.fixture(scope="module")
def validate() -> Iterator[Validate]:
    """Raises ValueError for what a schema of the standards or of a tool does not allow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VALIDATE_PYPROJECT_NO_NETWORK", "1")  # it would fetch the list of classifiers
        api = pytest.importorskip("validate_pyproject.api", reason=f"validate-pyproject {INSTALLS}")
        pytest.importorskip("validate_pyproject_schema_store", reason=f"validate-pyproject-schema-store {INSTALLS}")
        from validate_pyproject.plugins import list_from_entry_points

        plugins = [plugin for plugin in list_from_entry_points() if plugin.tool in TOOLS]
        assert {plugin.tool for plugin in plugins} == set(TOOLS)
        validator = api.Validator(plugins)
        validator({"project": {"name": "compiles", "version": "1"}})
        yield lambda text: validator(tomllib.loads(text))


def test_it_is_valid(validate: Validate) -> None:
    validate(TEXT)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('build-frontend = "build"', 'build-frontend = "make"'),
        ('archs = ["auto64"]', "archs = 64"),
        ("test-command = ", "test-comand = "),
        ("[tool.cibuildwheel.macos]", "[tool.cibuildwheel.mac]"),
        ('name = "karat-llm"', 'name = "karat llm"'),
        ('cmake.build-type = "Release"', "cmake.build-type = 3"),
    ],
)
def test_a_slip_is_seen(validate: Validate, right: str, wrong: str) -> None:
    assert TEXT.count(right) == 1
    with pytest.raises(ValueError, match="must"):
        validate(TEXT.replace(right, wrong))


def test_wheels_are_made_for_the_pythons_that_karat_is_for() -> None:
    project = tomllib.loads(TEXT)["project"]
    built = [int(minor) for minor in re.findall(r"cp3(\d+)-\*", WHEELS["build"])]
    named = [int(minor) for line in project["classifiers"] for minor in re.findall(r"Python :: 3\.(\d+)$", line)]
    assert project["requires-python"] == f">=3.{min(built)}"
    assert set(named) <= set(built)


def test_what_tries_the_wheels_is_there() -> None:
    script = WHEELS["test-command"].removeprefix("python {project}/")
    assert (ROOT / script).is_file()
