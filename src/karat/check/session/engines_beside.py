"""Which other engines a model is compared with: those that were asked for, or those that fit it and are installed."""

from collections.abc import Sequence
from dataclasses import dataclass

from karat.check.model.checked import CheckedModel
from karat.check.record import llamacpp
from karat.check.session import agreement
from karat.errors import UsageError

_ALONE = "transformers and llama.cpp read the model's files"


@dataclass(frozen=True, slots=True)
class EnginesBeside:
    """`remark` is what to tell about the choice, if anything."""

    with_hf: bool
    with_llamacpp: bool
    remark: str | None = None


def engines_beside(
    model: CheckedModel, against: str | None, hybrid: Sequence[str] = (), *, is_changed: bool = False
) -> EnginesBeside:
    """Engines for `against`: hf, llama.cpp, any other name for none of them, or None for those that fit.

    hybrid: parts that Karat computes in a transformers model. is_changed: the model is another than its files say.
    Raises UsageError for an engine that is not installed, or cannot read the model as it is.
    """
    if against == "llama.cpp" and not llamacpp.is_installed():
        raise UsageError("--against llama.cpp needs it: pip install llama-cpp-python")
    if (against == "hf" or hybrid) and not agreement.has_transformers():
        option = "--against hf" if against == "hf" else "--hybrid"
        raise UsageError(f"{option} needs torch and transformers: pip install torch transformers")
    if is_changed and (against in ("hf", "llama.cpp") or hybrid):
        raise UsageError(f"{_ALONE} alone; leave out --override and --rope-scaling, or --against and --hybrid")
    is_file = model.path.is_file()
    if (against == "hf" or hybrid) and is_file:
        raise UsageError(f"transformers needs a folder to be compared with, and {model.path} is a file")
    if hybrid:
        from karat.check.record.hybrid import check_part  # needs torch

        for part in hybrid:
            check_part(part, model.config.num_layers)
    if against == "llama.cpp" and not is_file:
        raise UsageError(f"llama.cpp needs a GGUF file; make one of {model.path} with karat convert")
    if against is not None:
        return EnginesBeside(against == "hf", against == "llama.cpp")
    if is_changed:
        return EnginesBeside(False, False, f"compared with float64 alone: {_ALONE} without the overrides")
    return EnginesBeside(
        model.path.is_dir() and agreement.has_transformers(), llamacpp.is_installed() and llamacpp.reads(model)
    )
