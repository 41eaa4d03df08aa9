"""The model of a trace, where the command line names none."""

from pathlib import Path
from typing import TYPE_CHECKING

from karat.cli.terminal import note

if TYPE_CHECKING:
    from karat.check.model.checked import CheckedModel
    from karat.check.trace.format import Trace
    from karat.checkpoint.overrides import Overrides


def model_named_by(*traces: "Trace", overrides: "Overrides") -> "CheckedModel | None":
    """The first model that a trace names, if it is here and has the weights of the first trace."""
    from karat.check.model.checked import open_model
    from karat.check.model.weights import digest

    for name in dict.fromkeys(trace.info.model for trace in traces if trace.info.model):
        if (Path(name) / "config.json").is_file() or (name.endswith(".gguf") and Path(name).is_file()):
            found = open_model(name, overrides)
            if traces[0].info.digest in (None, digest(found.stored)):
                note(f"model: {name}, which the trace names")
                return found
            note(f"{name}, which the trace names, has other weights than were run")
    return None
