"""docs/api.md is what the script prints, and has every public name."""

import re
from pathlib import Path

import karat
from tools.api_page import page

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_what_the_script_prints() -> None:
    assert (DOCS / "api.md").read_text(encoding="utf-8") == page(), "run python -m tools.api_page > docs/api.md"


def test_every_public_name_is_on_the_page() -> None:
    missing = {name for name in karat.__all__ if name != "__version__" and name not in page()}
    assert not missing
    for method in ("generate", "chat", "stream", "stream_chat", "logits", "close", "get_tokenizer"):
        assert f"### LLM.{method}\n" in page()


def test_every_name_with_a_section_is_in_the_package() -> None:
    titles = set(re.findall(r"^## (\w+)$", page(), re.MULTILINE)) - {"Errors"}
    assert {"LLM", "ChatPrompt", "TokenLogprobs"} <= titles <= set(karat.__all__)
