"""What is asked for, in the form that every protocol is converted to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from karat.server.asking.terms import Terms
from karat.server.asking.tools import NO_TOOLS, Tools
from karat.server.asking.variables import Effort


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer."""

    model: str | None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False
    progress: bool = False
    timings_per_token: bool = False
    echo: bool = False
    prompt_logprobs: bool = False
    no_answer: bool = False  # max_tokens 0: the echo alone
    structure_field: str = "structured_outputs"  # that gives the form of the answer, if one does
    prompt_field: str = "prompt"
    length_field: str = "max_tokens"
    stop_field: str = "stop"

    @property
    def names(self) -> dict[str, str]:
        """The fields that were sent, by the params of errors."""
        return {
            "structured_outputs": self.structure_field,
            "prompt": self.prompt_field,
            "max_tokens": self.length_field,
            "stop": self.stop_field,
        }


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation. `given` are fields of SamplingParams, `variables` those of the template.

    `unused` names what has no effect: fields, and keys within them. `continues`: the answer goes on with the last
    message. `echo` is what the answer gives back of the request, in its protocol.
    """

    messages: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]
    given: Mapping[str, Any]
    form: AnswerForm
    terms: Terms
    tools: Tools = NO_TOOLS
    efforts: tuple[Effort, ...] = ()
    unused: tuple[str, ...] = ()
    continues: bool = False
    echo: Any = None

    def rendering(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of AsyncLLM.render besides the messages. Control tokens that contents spell stay text."""
        return {
            "tools": self.tools.rendered(),
            "add_generation_prompt": variables["add_generation_prompt"],
            "continue_final_message": self.continues,
            "chat_template_kwargs": {n: v for n, v in variables.items() if n != "add_generation_prompt"} or None,
            "sanitize_control_tokens": True,
        }


@dataclass(frozen=True, slots=True)
class TextRequest:
    """Texts or token ids to be continued. The fields are as those of ChatRequest."""

    prompts: Sequence[str | tuple[int, ...]]
    add_special_tokens: bool
    given: Mapping[str, Any]
    form: AnswerForm
    terms: Terms
    unused: tuple[str, ...] = ()
    echo: Any = None
