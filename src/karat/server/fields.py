"""The one table of the fields of requests. Validation, the OpenAPI document, the page and the tests are made from it.

A field is of one of three classes:

honoured        it does what its description says
without effect  it cannot change the answer: it is accepted and named in the header `karat-without-effect`
refused         any other: 400 with its name and what to do, unless its value switches it off

A field with the value null counts as absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from karat.config import Activations
from karat.request import (
    MAX_BREAKERS,
    MAX_CHOICES,
    MAX_COUNT,
    MAX_IDS,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_WORD,
    MAX_WORDS,
)

FieldClass = Literal["honoured", "without effect", "refused"]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BOTH = (CHAT, TEXT)
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
ANTHROPIC = (MESSAGES, COUNT)
RESPONSES, INPUT_TOKENS = "/v1/responses", "/v1/responses/input_tokens"
STATELESS = (RESPONSES, INPUT_TOKENS)
GENERATING = (*BOTH, MESSAGES, RESPONSES)
CHATTING = (CHAT, *ANTHROPIC, *STATELESS)
VERIFY = "/v1/receipts/verify"
COMPARE = "/v1/receipts/compare"
TOKENIZE, DETOKENIZE, RENDER = "/tokenize", "/detokenize", "/render"

MAX_PROMPTS = 128  # of a request to /v1/completions
MAX_TEXT = 512  # characters of names, keys and the like

_Includable = Literal[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
Flag = bool
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
TokenIds = Annotated[list[TokenId], Meta(max_length=MAX_IDS)]
Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Length = Annotated[int, Meta(ge=-1, le=MAX_COUNT)]  # of an answer; -1: none is given
_NO_LENGTH = (-1,)
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
LastN = Annotated[int, Meta(ge=-1, le=MAX_COUNT)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Share = Annotated[float, Meta(ge=0, le=1)]
PartAbove0 = Annotated[float, Meta(gt=0, le=1)]
Word = Annotated[str, Meta(min_length=1, max_length=MAX_WORD)]
WordIds = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_WORD)]
RepetitionPenalty = Annotated[float, Meta(ge=0.001, le=100)]
StopText = Annotated[str, Meta(max_length=MAX_STOP_CHARS)]  # an empty one stops nothing
Names = Annotated[dict[str, Any], Meta(max_length=64)]
Tools = Annotated[list[dict[str, Any]], Meta(max_length=1024)]
Messages = Annotated[list[dict[str, Any]], Meta(min_length=1)]
Prompt = str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Field:
    """A row of the table.

    `type` is the type that msgspec converts a value to. `samples`: it is the field of SamplingParams of the same name.
    `means` is the field that this one is another name of. `off` are the values that switch a refused field off,
    `absent` those with which an honoured one counts as left out. `text` is its description on the page: what it does,
    why it has no effect, or what to do instead.
    """

    name: str
    routes: tuple[str, ...]
    kind: FieldClass
    text: str
    type: Any = Any
    samples: bool = False
    off: tuple[Any, ...] = ()
    required: bool = False
    means: str | None = None
    absent: tuple[int, ...] = ()


def _honoured(
    name: str, routes: tuple[str, ...], kind: Any, text: str, *, required: bool = False, absent: tuple[int, ...] = ()
) -> Field:
    return Field(name, routes, "honoured", text, kind, required=required, absent=absent)


def _sampling(
    name: str, kind: Any, text: str, routes: tuple[str, ...] = GENERATING, *, absent: tuple[int, ...] = ()
) -> Field:
    return Field(name, routes, "honoured", text, kind, samples=True, absent=absent)


def _alias(name: str, means: str, kind: Any, routes: tuple[str, ...] = GENERATING) -> Field:
    return Field(name, routes, "honoured", f"Another name of {means}.", kind, means=means)


def _harmless(name: str, routes: tuple[str, ...], kind: Any, text: str) -> Field:
    return Field(name, routes, "without effect", text, kind)


def _refused(name: str, routes: tuple[str, ...], text: str, *off: Any) -> Field:
    return Field(name, routes, "refused", text, off=off)


_OLD_TOOLS = "it is of an older protocol; use tools and tool_choice"
_NO_MIROSTAT = "use typical_p, which aims at the same surprise without a state"
_NO_SOUND = "Karat has text alone; leave it out"

_LLAMA_CPP_ORDER = "penalties dry top_n_sigma top_k typ_p top_p min_p xtc temperature".split()  # its default

TABLE: tuple[Field, ...] = (
    _honoured(
        "model",
        (TEXT, *CHATTING, TOKENIZE, DETOKENIZE, RENDER),
        Text,
        "One that /v1/models lists (default: the first).",
    ),
    _honoured(
        "messages",
        (CHAT, RENDER),
        Messages,
        "The conversation. Roles: system, developer (the same), user, assistant (with tool_calls), tool. Contents are "
        "text, or text parts.",
        required=True,
    ),
    _honoured(
        "prompt",
        (TEXT,),
        Prompt,
        f"A text, token ids, or a list of up to {MAX_PROMPTS} texts or lists of ids. Control tokens in it count.",
        required=True,
    ),
    _honoured(
        "messages",
        ANTHROPIC,
        Messages,
        "The conversation. Roles: user, assistant, system. Contents are text, or text blocks. Messages of one role in "
        "a row are one. With a last message of the assistant's the answer goes on with it.",
        required=True,
    ),
    _honoured("system", ANTHROPIC, str | list[dict[str, Any]], "A first message of role system: text, or text blocks."),
    _honoured(
        "input",
        STATELESS,
        str | list[dict[str, Any]],
        "The conversation: a text, or messages. Roles: system, developer (the same), user, assistant. With a last "
        "message of the assistant's whose status is incomplete or in_progress the answer goes on with it.",
        required=True,
    ),
    _honoured("instructions", STATELESS, str, "A first message of role system."),
    # how tokens are chosen
    _sampling("n", Annotated[int, Meta(ge=1, le=MAX_CHOICES)], "Choices for each prompt.", BOTH),
    _sampling("temperature", Annotated[float, Meta(ge=0, le=100)], "0 is greedy."),
    _sampling(
        "top_p",
        Share,
        "Draw from the likeliest tokens that make up this share; 0: the likeliest alone.",
    ),
    _sampling(
        "top_k",
        Annotated[int, Meta(ge=-1, le=MAX_COUNT)],
        "Draw from this number of likeliest tokens; 0, -1: all.",
    ),
    _sampling("min_p", Annotated[float, Meta(ge=0, le=1)], "Drop tokens less likely than this part of the likeliest."),
    _sampling("typical_p", PartAbove0, "Draw from the tokens of typical surprise that make up this share; 1: all."),
    _alias("typ_p", "typical_p", PartAbove0),
    _sampling(
        "top_n_sigma",
        Annotated[float, Meta(ge=-1, le=100)],
        "Drop scores more than this number of standard deviations below the largest; 0, -1: none.",
    ),
    _sampling("xtc_probability", Share, "How often XTC acts; 0: never."),
    _sampling("xtc_threshold", Share, "XTC takes out all tokens at least this probable, save the least (0.1)."),
    _sampling(
        "repetition_penalty",
        RepetitionPenalty,
        "Of tokens in prompt and answer (CTRL's). Below 0.001 scores could overflow.",
    ),
    _alias("repeat_penalty", "repetition_penalty", RepetitionPenalty),
    _sampling("presence_penalty", Penalty, "Taken once from the score of tokens that the answer has."),
    _sampling("frequency_penalty", Penalty, "Taken once for each time the answer has the token."),
    _sampling(
        "repeat_last_n",
        LastN,
        "All three penalties look at this number of last tokens of prompt and answer, as in llama.cpp; -1: at all, 0: "
        "at none. Left out: as said of each, which is vLLM's rule.",
    ),
    _alias("penalty_last_n", "repeat_last_n", LastN),
    _sampling(
        "dry_multiplier",
        Annotated[float, Meta(ge=0, le=100)],
        "Above 0, DRY: what would lengthen a repetition of n tokens loses dry_multiplier * dry_base^(n - "
        "dry_allowed_length).",
    ),
    _sampling("dry_base", Annotated[float, Meta(ge=1, le=100)], "Of DRY (1.75)."),
    _sampling("dry_allowed_length", Annotated[int, Meta(ge=0, le=MAX_COUNT)], "Of DRY: shorter ones are free (2)."),
    _sampling(
        "dry_penalty_last_n", LastN, "DRY looks at this number of last tokens; -1: at all (default), 0: at none."
    ),
    _sampling(
        "dry_sequence_breakers",
        Annotated[list[Word], Meta(max_length=MAX_BREAKERS)],
        'Texts over which no repetition reaches for DRY (line end, ":", \'"\', "*").',
    ),
    _sampling(
        "no_repeat_ngram_size",
        Annotated[int, Meta(ge=0, le=MAX_COUNT)],
        "No so many tokens in a row come twice in prompt and answer (transformers'); 0: off.",
    ),
    _sampling("bad_words", Annotated[list[Word], Meta(max_length=MAX_WORDS)], "Texts that no answer has (vLLM's)."),
    _sampling(
        "bad_words_ids",
        Annotated[list[WordIds], Meta(max_length=MAX_WORDS)],
        "Token ids in a row that prompt and answer do not come to have (transformers').",
    ),
    _sampling(
        "logit_bias",
        Annotated[dict[TokenId, Bias], Meta(max_length=MAX_IDS)]
        | Annotated[list[tuple[TokenId, Bias]], Meta(max_length=MAX_IDS)],
        "Added to the scores of tokens: by id, which /tokenize gives, or as llama.cpp's list of [id, number]. "
        "bad_words_ids bar tokens.",
    ),
    _sampling(
        "allowed_token_ids",
        Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_IDS)],
        "No other token is chosen.",
    ),
    _sampling(
        "seed",
        Annotated[int, Meta(ge=-1, le=MAX_SEED)],
        "Keys the draws; left out or -1, one is drawn from the system's randomness. The answer says which it was.",
        absent=(-1,),
    ),
    # when an answer ends
    _sampling(
        "max_tokens",
        Length,
        "Of each choice. Left out or -1: the rest of the context, as far as --default-max-tokens goes. 0 only with "
        "echo.",
        (TEXT,),
        absent=_NO_LENGTH,
    ),
    _sampling("max_tokens", Length, "As max_completion_tokens, its newer name.", (CHAT,), absent=_NO_LENGTH),
    _honoured("max_output_tokens", (RESPONSES,), Length, "As max_completion_tokens of a chat.", absent=_NO_LENGTH),
    _alias("max_tokens", "max_output_tokens", Length, (RESPONSES,)),
    _alias("max_tokens_to_sample", "max_tokens", Length, (MESSAGES,)),
    _alias("n_predict", "max_tokens", Length, BOTH),
    _alias("max_new_tokens", "max_tokens", Length, BOTH),
    Field(
        "max_tokens",
        (MESSAGES,),
        "honoured",
        "Of the answer; -1: as many as there is room for.",
        Length,
        samples=True,
        required=True,
        absent=_NO_LENGTH,
    ),
    _honoured(
        "max_completion_tokens",
        (CHAT,),
        Length,
        "Of each choice. Left out or -1: the rest of the context, as far as --default-max-tokens goes.",
        absent=_NO_LENGTH,
    ),
    _sampling("min_tokens", Annotated[int, Meta(ge=0, le=MAX_COUNT)], "No end before this number of tokens."),
    _sampling(
        "stop",
        StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)],
        "Texts that end an answer.",
        (*BOTH, RESPONSES),
    ),
    _honoured(
        "stop_sequences",
        (MESSAGES,),
        Annotated[list[StopText], Meta(max_length=MAX_STOPS)],
        "Texts that end an answer.",
    ),
    _alias("stop", "stop_sequences", Annotated[list[StopText], Meta(max_length=MAX_STOPS)], (MESSAGES,)),
    _sampling("stop_token_ids", TokenIds, "Tokens that end an answer."),
    _sampling("include_stop_str_in_output", Flag, "The text of stop stays in the answer."),
    _sampling("ignore_eos", Flag, "The model's end tokens end nothing."),
    _sampling("skip_special_tokens", Flag, "Special tokens are left out of the text (default) or shown."),
    _honoured(
        "response_format",
        BOTH,
        Names,
        "text, json_object (perhaps with schema), or json_schema, which is always kept to; strict closes its objects. "
        "What cannot be kept to is a 400.",
    ),
    _honoured(
        "text",
        STATELESS,
        Names,
        "format: text, json_object or json_schema, as response_format of a chat. verbosity has no effect; say in a "
        "message how long the answer is to be.",
    ),
    _honoured(
        "output_config",
        ANTHROPIC,
        Names,
        "format: json_schema, always kept to; what cannot be kept to is a 400. effort: for templates with a variable "
        "reasoning_effort; it has no effect with others.",
    ),
    _honoured("output_format", ANTHROPIC, Names, "As output_config.format, its newer name."),
    _sampling(
        "structured_outputs", Names, "One of json, regex, choice, grammar (Lark's or GBNF): vLLM's, by llguidance."
    ),
    _honoured("json_schema", BOTH, Names, "As structured_outputs.json (llama.cpp's)."),
    _honoured("grammar", BOTH, str, "As structured_outputs.grammar (llama.cpp's); empty for none."),
    _honoured("guided_json", BOTH, Names | Text, "As structured_outputs.json (earlier vLLM's); so are the next three."),
    _honoured("guided_regex", BOTH, Text, "As structured_outputs.regex."),
    _honoured("guided_choice", BOTH, list[Text], "As structured_outputs.choice."),
    _honoured("guided_grammar", BOTH, Text, "As structured_outputs.grammar."),
    # tools and reasoning
    _honoured(
        "tools",
        (CHAT, RENDER, TOKENIZE, *ANTHROPIC, *STATELESS),
        Tools,
        "Functions that the model may call, if its chat template has a place for tools. Tools of other types are "
        "dropped, each named in the header as tools.NAME, unless one must be called.",
    ),
    _honoured(
        "tool_choice",
        (CHAT, *STATELESS),
        str | dict[str, Any],
        "auto (default), none, required, a tool by its name, which is called once, or allowed_tools. Calls that "
        "must come are kept to the schema.",
    ),
    _honoured(
        "tool_choice",
        ANTHROPIC,
        str | dict[str, Any],
        "auto (default), any, tool, which is called once, or none, perhaps with disable_parallel_tool_use. Calls that "
        "must come are kept to the schema.",
    ),
    _honoured("parallel_tool_calls", (CHAT, *STATELESS), Flag, "Whether an answer may have several calls (default)."),
    _honoured(
        "reasoning_effort",
        (CHAT,),
        Text,
        "For templates with such a variable; where they have enable_thinking alone, none switches the reasoning off. A "
        "model that cannot follow it names it in the header.",
    ),
    _honoured("reasoning", STATELESS, Names, "effort: as reasoning_effort of a chat. Summaries are not made."),
    _honoured(
        "reasoning",
        (CHAT,),
        Names,
        "OpenRouter's: effort, as reasoning_effort; enabled switches the reasoning, where the template can. exclude is "
        "refused.",
    ),
    _honoured(
        "thinking",
        (CHAT, *ANTHROPIC),
        dict[str, Any],
        "enabled, adaptive or disabled: switches the reasoning, where the template has enable_thinking. budget_tokens "
        "has no effect.",
    ),
    _honoured(
        "enable_thinking", CHATTING, Flag, "The template's variable, where it has one, as in chat_template_kwargs."
    ),
    _harmless("verbosity", (CHAT,), Text, "Say in a message how long the answer is to be."),
    # what is reported
    _honoured("logprobs", (CHAT,), Flag, "Log-probabilities of the answer's tokens."),
    _honoured("top_logprobs", (CHAT,), Alternatives, "With logprobs: the number of alternatives of each token."),
    _sampling("logprobs", Alternatives, "Log-probabilities of tokens, and of this number of alternatives.", (TEXT,)),
    _sampling("prompt_logprobs", Alternatives, "The same of the prompt, as vLLM gives them.", BOTH),
    _sampling("explain", Flag, "karat.explain: for each token its probability and rank, and how it was drawn."),
    _honoured("echo", (TEXT,), Flag, "The prompt comes first in the answer, with logprobs if these are asked for."),
    _honoured("stream", GENERATING, Flag, "Server-sent events."),
    _honoured("stream_options", BOTH, dict[str, Any], "include_usage, continuous_usage_stats."),
    _honoured(
        "karat",
        BOTH,
        Names,
        "receipt: true or digests; resume: tokens, seed and choice of an answer to go on with (receipts.md).",
    ),
    _honoured("karat", (MESSAGES, RESPONSES), Names, "receipt: true or digests (receipts.md)."),
    _honoured("return_token_ids", BOTH, Flag, "prompt_token_ids, and token_ids of each choice (vLLM's)."),
    _honoured("return_tokens_as_token_ids", BOTH, Flag, "Tokens of logprobs are written token_id:N (vLLM's)."),
    _honoured("return_progress", BOTH, Flag, "With stream: prompt_progress while a prompt is computed (llama.cpp's)."),
    _honoured("timings_per_token", BOTH, Flag, "With stream: timings in every event, not only in the last."),
    # how the prompt is made, and where it waits
    _honoured(
        "chat_template_kwargs",
        (*CHATTING, RENDER, TOKENIZE),
        Names,
        "Variables of the chat template, enable_thinking say.",
    ),
    _honoured("add_generation_prompt", (CHAT, RENDER, TOKENIZE), Flag, "The template opens an answer (default)."),
    _honoured(
        "continue_final_message",
        (CHAT, RENDER, TOKENIZE),
        Flag,
        "The answer goes on with the last message, which is the assistant's, and has what follows alone; "
        "add_generation_prompt is then false.",
    ),
    _honoured("add_special_tokens", (TEXT, TOKENIZE), Flag, "Whether the tokenizer adds BOS and the like (default)."),
    _honoured(
        "priority", GENERATING, Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)], "Smaller is sooner; 0 if left out."
    ),
    _honoured(
        "cache_salt",
        GENERATING,
        Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)],
        "Only requests of the same salt share cached prefixes.",
    ),
    # /tokenize and /detokenize, in vLLM's form
    _honoured("prompt", (TOKENIZE,), str, "A text. Control tokens in it count."),
    _honoured("messages", (TOKENIZE,), Messages, "Instead of prompt: a conversation, as /render makes its prompt."),
    _honoured("return_token_strs", (TOKENIZE,), Flag, "token_strs: the tokens as the vocabulary spells them."),
    _refused("with_pieces", (TOKENIZE,), "use return_token_strs", False),
    _honoured("tokens", (DETOKENIZE,), list[TokenId], "Token ids.", required=True),
    # /v1/receipts/verify and /v1/receipts/compare
    _honoured("receipt", (VERIFY, COMPARE), dict[str, Any], "The receipt.", required=True),
    _honoured("activations", (COMPARE,), Activations, "Others than the receipt's.", required=True),
    _honoured(
        "by",
        (VERIFY,),
        Literal["native", "reference"],
        "native, the engine that answers (default). reference is refused: karat verify --by reference has it.",
    ),
    _honoured(
        "request", (VERIFY,), dict[str, Any], "The request, whose prompt is compared; a receipt of digests needs it."
    ),
    _honoured("skip_special_tokens", (DETOKENIZE,), bool, "Special tokens are left out (default) or shown."),
    _alias("content", "prompt", str, (TOKENIZE,)),  # llama.cpp's
    _alias("add_special", "add_special_tokens", Flag, (TOKENIZE,)),
    # without effect on the answer
    _harmless("user", (*BOTH, RESPONSES), Text, "Nothing is kept about users."),
    _harmless("safety_identifier", (*BOTH, RESPONSES), Text, "Nothing is kept about users."),
    _harmless("metadata", BOTH, Names, "Nothing is kept."),
    _harmless("client_metadata", (*BOTH, RESPONSES), Names, "Nothing is kept."),
    _harmless("store", (*BOTH, RESPONSES), Literal[False] | None, "Nothing is kept; true is refused."),
    _harmless("service_tier", (*BOTH, RESPONSES), Literal["auto", "default"], "There is one tier; others are refused."),
    _harmless("prompt_cache_key", (*BOTH, RESPONSES), Text, "Prefixes are found by their tokens."),
    _harmless(
        "prompt_cache_retention",
        (*BOTH, RESPONSES),
        Text,
        "Prefixes stay as long as there is room.",
    ),
    _harmless("prompt_cache_options", (*BOTH, RESPONSES), Names, "Prefixes are found by their tokens."),
    _harmless("cache_prompt", BOTH, Literal[True], "Prefixes are always kept (llama.cpp's)."),
    _harmless("id_slot", BOTH, int, "Prefixes are found wherever they are (llama.cpp's)."),
    _harmless("n_keep", BOTH, int, "A context is never shifted (llama.cpp's)."),
    _harmless("grammar_lazy", BOTH, Literal[False], "A grammar holds from the first token on (llama.cpp's)."),
    _harmless("include", BOTH, Annotated[list[Text], Meta(max_length=64)], "There is nothing to include."),
    _harmless("modalities", (CHAT,), list[Literal["text"]], "Answers are text."),
    _harmless("spaces_between_special_tokens", BOTH, Flag, "Tokens are never parted by spaces."),
    _harmless("request_id", BOTH, Text, "Requests are numbered here; the answer's id is new."),
    _honoured("metadata", (RESPONSES,), Annotated[dict[str, Text], Meta(max_length=16)], "Given back in the answer."),
    _harmless("stream_options", (RESPONSES,), dict[Literal["include_obfuscation"], bool], "Events are not padded."),
    _harmless("include", (RESPONSES,), list[_Includable], "There is nothing to include; logprobs are refused."),
    _harmless("max_tool_calls", (RESPONSES,), Count, "It counts calls of built-in tools; there are none."),
    _harmless("truncation", STATELESS, Literal["disabled"], "Nothing is cut; auto is refused."),
    _harmless("top_logprobs", (RESPONSES,), Literal[0], "There are none of responses; more are refused."),
    _harmless("metadata", (MESSAGES,), Names, "Nothing is kept."),
    _harmless("cache_control", ANTHROPIC, Names, "Prefixes are always kept; blocks may have it too."),
    _harmless("service_tier", (MESSAGES,), Literal["auto", "standard_only"], "There is one tier; others are refused."),
    _harmless("user_profile_id", ANTHROPIC, Text, "Nothing is kept about users."),
    _harmless("workspace_id", ANTHROPIC, Text, "There is one."),
    _harmless("diagnostics", (MESSAGES,), Names, "Nothing is kept to compare with."),
    # refused
    _refused("functions", (CHAT,), _OLD_TOOLS, []),
    _refused("function_call", (CHAT,), _OLD_TOOLS, "none", "auto"),
    _refused("reasoning", (TEXT,), "there is none of a text; chats have it"),
    _refused("audio", (CHAT,), _NO_SOUND),
    _refused("prediction", (CHAT,), "there is no speculative decoding yet; leave it out"),
    _refused("moderation", (CHAT, RESPONSES), "nothing is moderated here; leave it out"),
    _refused("web_search_options", (CHAT,), "nothing is searched; leave it out", {}),
    _refused("suffix", (TEXT,), "a text is continued at its end alone; leave it out", ""),
    _refused("best_of", BOTH, "ask for n choices with logprobs, and take the best", 1),
    _refused("use_beam_search", BOTH, "ask for n choices with logprobs, and take the best", False),
    _refused("length_penalty", BOTH, "it belongs to beam search, which there is none of", 1.0, 1),
    _refused("early_stopping", BOTH, "it belongs to beam search, which there is none of", False),
    _refused("logits_processors", BOTH, "logit_bias adds to the scores of tokens", []),
    _refused("n_probs", (TEXT,), "use logprobs", 0),
    _refused("n_probs", (CHAT,), "use logprobs: true and top_logprobs", 0),
    _refused("sampler_priority", BOTH, "the order is fixed (docs/sampling.md); leave it out", []),
    _harmless("mirostat_tau", BOTH, float, "It belongs to Mirostat, which is not there."),
    _harmless("mirostat_eta", BOTH, float, "It belongs to Mirostat, which is not there."),
    _harmless("mirostat_lr", BOTH, float, "It belongs to Mirostat, which is not there."),
    _harmless("dynatemp_exponent", BOTH, float, "The temperature is one number."),
    *(
        _harmless(f"speculative.{name}", BOTH, float, "Drafts are not there; no answer depends on them.")
        for name in ("n_max", "n_min", "p_min")
    ),
    _harmless("backend_sampling", BOTH, Flag, "Tokens are always drawn in one place."),
    _refused("n_discard", BOTH, "a context that is full ends the answer; leave it out", 0),
    _refused("parse_tool_calls", (CHAT,), "calls are always read; leave it out", True),
    _refused(
        "reasoning_format",
        (CHAT,),
        "reasoning is always apart from the content; join the two",
        "auto",
        "deepseek",
        "deepseek-legacy",
    ),
    _refused("mirostat", BOTH, _NO_MIROSTAT, 0),
    _refused("mirostat_mode", BOTH, _NO_MIROSTAT, 0),
    _refused("dynatemp_range", BOTH, "the temperature is one number; leave it out", 0, 0.0),
    _refused("dynamic_temperature", BOTH, "the temperature is one number; leave it out", False),
    _refused("smoothing_factor", BOTH, "use min_p or top_n_sigma", 0, 0.0),
    _refused("penalize_nl", BOTH, "line ends are penalised as other tokens are; leave it out", True),
    _refused("n_indent", BOTH, "no indentation is asked for; leave it out", 0),
    _refused("t_max_predict_ms", BOTH, "use max_tokens", 0, -1),
    _refused("t_max_prompt_ms", BOTH, "a prompt is computed whole; send a shorter one", 0, -1),
    _refused("return_tokens", BOTH, "use return_token_ids", False),
    _refused("n_cmpl", BOTH, "use n", 1),
    _refused("echo", (CHAT,), "the client has the messages; leave it out", False),
    _refused("detokenize", BOTH, "text is always made, and return_token_ids gives the ids, too; leave it out", True),
    _refused("response_fields", BOTH, "answers are whole; leave it out", []),
    _refused("post_sampling_probs", BOTH, "use explain; logprobs are those of the model", False),
    _refused("samplers", BOTH, "the order is fixed (docs/sampling.md); leave it out", [], _LLAMA_CPP_ORDER),
    _refused("lora", BOTH, "there are no adapters yet; leave it out", []),
    _refused("chat_template_kwargs", (TEXT,), "a text has no template; chats have it", {}),
    _refused("min_keep", BOTH, "every sampler keeps one token at least; leave it out", 0, 1),
    _refused("tfs", BOTH, "use min_p or typical_p", 1, 1.0),
    _refused("tfs_z", BOTH, "use min_p or typical_p", 1, 1.0),
    _refused("top_a", BOTH, "use min_p", 0, 0.0),
    _refused("epsilon_cutoff", BOTH, "use min_p", 0, 0.0),
    _refused("eta_cutoff", BOTH, "use min_p or typical_p", 0, 0.0),
    _refused("encoder_repetition_penalty", BOTH, "use repetition_penalty", 1, 1.0),
    _refused("truncate_prompt_tokens", BOTH, "shorten the prompt; /tokenize counts its tokens"),
    _refused("chat_template", (CHAT,), "templates come from the operator alone; chat_template_kwargs sets variables"),
    _refused("documents", (CHAT,), "put the documents into a message", []),
    # vllm-router puts these into every request that it passes on
    _refused("no_stop_trim", BOTH, "use include_stop_str_in_output", False),
    _refused("return_hidden_states", BOTH, "there are none in answers; leave it out", False),
    _refused("include_reasoning", (CHAT,), "leave it out, and drop the reasoning", True),
    _refused("separate_reasoning", (CHAT,), "leave it out, and join reasoning and content", True),
    _refused("stream_reasoning", (CHAT,), "leave it out, and wait for the whole", True),
    _refused("mm_processor_kwargs", BOTH, "there are no images yet; leave it out", {}),
    _refused("previous_response_id", STATELESS, "nothing is kept; send the whole conversation as input", ""),
    _refused("conversation", STATELESS, "nothing is kept; send the whole conversation as input", ""),
    _refused("background", (RESPONSES,), "nothing is kept; wait for the answer, or stream", False),
    _refused("background_options", (RESPONSES,), "nothing is kept; wait for the answer, or stream", {}),
    _refused("prompt", STATELESS, "there are no stored prompts; send input"),
    _refused("context_management", (RESPONSES,), "Karat edits no conversation; shorten the input", []),
    _refused("access_programs", (RESPONSES,), "there are none; leave it out"),
    _refused("image", (RESPONSES,), "Karat has text alone; leave it out"),
    _refused("personality", (INPUT_TOKENS,), "say it in instructions"),
    _refused("messages", STATELESS, "use input"),
    _refused("speed", ANTHROPIC, "there is one speed; leave it out", "standard"),
    _refused("container", (MESSAGES,), "there are none; leave it out"),
    _refused("inference_geo", (MESSAGES,), "it is computed where Karat runs; leave it out", "global"),
    _refused("mcp_servers", (MESSAGES,), "Karat calls no servers; leave it out", []),
    _refused(
        "context_management",
        ANTHROPIC,
        "Karat edits no conversation; shorten the messages",
        {},
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    ),
    _refused("num_ctx", BOTH, "the context is the server's: --max-model-len"),
    _refused("options", BOTH, "give its fields by themselves: temperature, top_k, …", {}),
    _refused("keep_alive", BOTH, "the model stays; leave it out"),
)


def fields_of(route: str) -> Mapping[str, Field]:
    """The table's rows for a route, by name."""
    return keyed(*(field for field in TABLE if route in field.routes))


def keyed(*fields: Field) -> Mapping[str, Field]:
    """Fields by their names: those within another field."""
    return {field.name: field for field in fields}
