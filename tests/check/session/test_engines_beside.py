"""Which other engines a model is compared with, whatever is installed here."""

import pytest

from karat.check.model.checked import CheckedModel, open_model
from karat.check.record import llamacpp
from karat.check.session import agreement
from karat.check.session.engines_beside import EnginesBeside, engines_beside
from karat.config import embedded_model_path
from karat.convert import MIXES, convert
from karat.errors import UsageError
from karat.models.opening import open_model as open_checkpoint


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CheckedModel]:
    path = tmp_path_factory.mktemp("model") / "a.gguf"
    convert(open_checkpoint(embedded_model_path()), path, MIXES["Q8_0"])
    return {"folder": open_model(None), "file": open_model(str(path))}


@pytest.fixture(params=[(True, True), (True, False), (False, False)])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, bool]:
    """Whether transformers is, and llama.cpp."""
    has_hf, has_llamacpp = request.param
    monkeypatch.setattr(agreement, "has_transformers", lambda: has_hf)
    monkeypatch.setattr(llamacpp, "is_installed", lambda: has_llamacpp)
    return has_hf, has_llamacpp


def test_what_fits_and_is_installed(models: dict[str, CheckedModel], installed: tuple[bool, bool]) -> None:
    has_hf, has_llamacpp = installed
    assert engines_beside(models["folder"], None) == EnginesBeside(has_hf, False)
    assert engines_beside(models["file"], None) == EnginesBeside(False, has_llamacpp)
    for other in ("reference", "a.trace"):
        assert engines_beside(models["folder"], other) == EnginesBeside(False, False)
    changed = engines_beside(models["folder"], None, is_changed=True)
    assert (changed.with_hf, changed.with_llamacpp) == (False, False) and "float64 alone" in str(changed.remark)


@pytest.mark.parametrize(
    ("model", "against", "hybrid", "is_changed", "message"),
    [
        ("file", "hf", (), False, "transformers needs a folder"),
        ("file", None, ("mlp",), False, "transformers needs a folder"),
        ("folder", "llama.cpp", (), False, "llama.cpp needs a GGUF file"),
        ("folder", "hf", (), True, "leave out --override"),
        ("file", "llama.cpp", (), True, "leave out --override"),
        ("folder", None, ("layer:99",), False, "layer:99"),
    ],
)
def test_what_cannot_be_is_refused(
    models: dict[str, CheckedModel],
    installed: tuple[bool, bool],
    model: str,
    against: str | None,
    hybrid: tuple[str, ...],
    is_changed: bool,
    message: str,
) -> None:
    has_hf, has_llamacpp = installed
    if not (has_llamacpp if against == "llama.cpp" else has_hf):
        message = "needs it: pip" if against == "llama.cpp" else "needs torch and transformers"
    elif hybrid:
        pytest.importorskip("torch")
    with pytest.raises(UsageError, match=message):
        engines_beside(models[model], against, hybrid, is_changed=is_changed)
