"""Calling: which tools an answer may or must call, and what follows for it. One decision for all who ask a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from karat.errors import RequestError
from karat.request import StructuredOutputs, shown
from karat.text.schema_closing import closed, without_nulls
from karat.text.tools.dialect import Dialect
from karat.text.tools.grammar import CallGrammar, Tool

Mode = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool that the model is shown. `parameters` is a JSON Schema, to which a `strict` tool's arguments keep.

    `text`: the form of its only argument, a text; a regex or a grammar.
    """

    name: str
    parameters: dict[str, Any] | None = None
    strict: bool = False
    text: StructuredOutputs | None = None

    def bound(self) -> dict[str, Any]:
        """The schema that arguments keep to. Objects of a strict tool have no names but their properties."""
        given = self.parameters or {"properties": {}}
        return closed(given) if self.strict else without_nulls(given)

    def kept_text(self) -> dict[str, str] | UnsetType:
        """The form of the argument, in a field of StructuredOutputs."""
        if self.text is None:
            return UNSET
        return {"regex": self.text.regex} if self.text.regex is not None else {"grammar": str(self.text.grammar)}


@dataclass(frozen=True, slots=True)
class Calling:
    """The tools that may be called, none where there are none.

    `must_call`: one call at least; `single`: one at most. `is_part`: the model is shown other tools too.
    """

    offers: tuple[Offer, ...] = ()
    must_call: bool = False
    single: bool = False
    is_part: bool = False

    @classmethod
    def chosen(
        cls,
        offers: Sequence[Offer],
        choice: Mode | tuple[str, ...],
        *,
        parallel: bool,
        allowed: Sequence[str] | None = None,
    ) -> "Calling":
        """By a mode, or (name,): exactly one call, of this tool. `allowed`: the names that may be called, of all.

        RequestError for a name that no tool has, and for a call that must come where there are no tools.
        """
        names = [offer.name for offer in offers]
        for name in (*(allowed or ()), *(choice if isinstance(choice, tuple) else ())):
            if name not in names:
                raise RequestError(f"tool_choice names {shown(name)}, which is not among tools; add it")
        if choice == "none":
            return cls()
        if choice == "auto":
            found = _of(offers, allowed)
            return cls(found, single=not parallel, is_part=len(found) < len(offers))
        found = _of(offers, allowed if choice == "required" else choice)
        if not found:
            raise RequestError("tool_choice asks for a call, and there are no tools; give tools, or take auto")
        return cls(found, True, not parallel or choice != "required", len(found) < len(offers))

    def structured(
        self, dialect: Dialect, prompt: str, answer: StructuredOutputs | None = None
    ) -> StructuredOutputs | None:
        """The form of the answer to `prompt`; None where the model writes what it will.

        That is calls where one must come, whose arguments keep to the schemas. Where none must, it is calls or the form
        `answer`, if one is given; else text that may have calls: at most one if it is to be single, and only of tools
        that may be called. Arguments of strict tools keep to their schemas always. A model with tools of none of these
        needs no grammar: what is no call stays text. In channels all headers are kept to their form where there are
        tools or `answer`, which is the form of the last message alone. RequestError for schemas that cannot be kept to.
        """
        if not self.offers and not (dialect.in_channels and answer is not None):
            return answer
        if self.must_call:
            answer = None
        is_strict = any(offer.strict or offer.text is not None for offer in self.offers)
        assert dialect.form is not None
        is_held = dialect.form.in_channels or answer is not None
        if not (self.must_call or self.single or self.is_part or is_strict or is_held):
            return None
        bind = self.must_call or dialect.form.shape.keywords
        tools = [
            Tool(each.name, each.bound() if bind or each.strict else None, each.kept_text()) for each in self.offers
        ]
        asked = CallGrammar.of(
            dialect,
            tools,
            must_call=self.must_call,
            single=self.single,
            prompt=prompt,
            answer=answer,
        )
        return StructuredOutputs(tool_calls=asked.encoded())

    @property
    def schemas(self) -> dict[str, dict[str, Any] | None]:
        """The schemas of parameters by the names of the tools that may be called."""
        return {offer.name: offer.parameters for offer in self.offers}

    def shows_marks(self, dialect: Dialect) -> bool:
        """Whether texts must show special tokens, for some of them are marks of calls or of reasoning."""
        return dialect.hides_marks and (dialect.reasons or bool(self.offers))


def names_shown(names: Sequence[str], choice: Mode | tuple[str, ...]) -> tuple[str, ...]:
    """The names of the tools that the model is shown: all, or the one that is named, or none."""
    if choice == "none":
        return ()
    return tuple(name for name in names if not isinstance(choice, tuple) or name in choice)


def _of(offers: Sequence[Offer], names: Sequence[str] | None) -> tuple[Offer, ...]:
    return tuple(offer for offer in offers if names is None or offer.name in names)
