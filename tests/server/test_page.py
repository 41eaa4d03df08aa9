"""docs/serving.md says what is there: the table of fields, the options, and curl lines that work.

Covers: karat.server.settings.
"""

import re
import shlex
import shutil
import subprocess

import pytest

from karat.cli.app import command
from karat.server.openapi import ANSWERS
from karat.server.settings import ServerLimits, ServerSettings
from tests.server.conftest import Running
from tools.field_table import PAGE, with_table

TEXT = PAGE.read_text(encoding="utf-8")
LINES = re.findall(r"^curl .*$", TEXT, re.MULTILINE)


def test_the_table_of_fields_is_that_of_the_code() -> None:
    assert with_table(TEXT) == TEXT, "run python -m tools.field_table"


def test_every_route_is_on_the_page() -> None:
    for route in ANSWERS:
        assert route.replace("{model}", "NAME") in TEXT


def test_the_options_of_the_page_are_there_with_their_defaults() -> None:
    known = {option for parameter in command().commands["serve"].params for option in parameter.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) <= known | {
        "--no-install-recommends",
        "--peer",  # of benchmarks.prefix_hits
        "--template",
        "--vocabulary",
        "--openai-api-base",  # of aider
        "--openai-api-key",
        "--from",
        "--shm-size",
        # of vllm-router
        "--policy",
        "--cb-failure-threshold",
        "--worker-urls",
        "--cors-allowed-origins",
    }
    limits, settings = ServerLimits(), ServerSettings(model_names=("m",))
    for option, default in {
        "--max-connections": f"{limits.connections}",
        "--max-body-bytes": f"{limits.body_bytes >> 20} MiB",
        "--max-head-bytes": f"{limits.head_bytes >> 10} KiB",
        "--default-max-tokens": f"{settings.default_max_tokens}",
        "--write-timeout-s": f"{limits.write_s} s",
        "--drain-s": f"{settings.drain_s} s",
        "--head-timeout-s`, `--body-timeout-s": f"{limits.head_s} s, {limits.body_s} s",
    }.items():
        assert f"| `{option}` | {default}" in TEXT, option


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("line", LINES)
def test_the_lines_of_curl_work(server: Running, line: str) -> None:
    words = shlex.split(line.replace("http://127.0.0.1:8000", server.url))
    done = subprocess.run([*words, "-s", "--fail-with-body"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert len(done.stdout) > 40
