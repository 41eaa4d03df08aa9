"""benchmarks.prefix_hits: what is new in prompts is counted; a server computes no more than that and a block each."""

from pathlib import Path

import pytest

from benchmarks import prefix_hits
from karat.kv.blocks import BLOCK_SIZE
from karat.ops.native import unavailable_reason

pytest.importorskip("uvicorn", reason="the server's packages are not in this environment")
if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)


def test_new_tokens_are_those_after_the_longest_common_beginning() -> None:
    assert prefix_hits.new_tokens([[1, 2, 3], [1, 2, 4, 5], [1, 2, 3], [1, 2, 3, 4], [9]]) == 3 + 2 + 0 + 1 + 1


@pytest.mark.slow
def test_a_conversation_is_found_again(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = "one conversation of ten turns"
    monkeypatch.setattr(prefix_hits, "SCENES", {scene: prefix_hits.SCENES[scene]})
    vocabulary, template = data_dir / "tokenizers/ggml-vocab-qwen35.gguf", data_dir / "templates/Qwen3.5-4B.jinja"
    model = str(tmp_path / "model.gguf")
    prefix_hits.main([model, "--vocabulary", str(vocabulary), "--template", str(template)])
    head, _, row = capsys.readouterr().out.splitlines()
    assert head == "| scene | prompts | tokens | new | karat |"
    prompts, tokens, new, karat = (int(cell.replace(",", "")) for cell in row.strip("| ").split(" | ")[1:])
    assert prompts == 10 and 0 < new <= karat <= new + prompts * BLOCK_SIZE < tokens
