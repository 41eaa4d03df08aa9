"""Sampling parameters and what a request may ask for beside them. Field names follow vLLM."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, replace
from difflib import get_close_matches
from itertools import islice
from typing import Any, Literal, Self

from karat.errors import RequestError

MAX_LOGPROBS = 64  # alternatives of a token; more are refused, not clamped
MAX_CHOICES = 64
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_IDS = 1024  # in each of logit_bias, stop_token_ids and allowed_token_ids
MAX_SEED = 2**63 - 1
MAX_COUNT = 2**31 - 1  # of tokens, and the largest token id
MAX_GRAMMAR_CHARS = 64 * 1024  # of a schema, an expression, a grammar, or all choices of StructuredOutputs together
MAX_WORDS = 1024  # of bad_words, and of bad_words_ids
MAX_WORD = 128  # characters of each, or tokens
MAX_BREAKERS = 64
BREAKERS = ("\n", ":", '"', "*")  # llama.cpp's

# Names of vLLM's SamplingParams that Karat does not have, and what to do instead.
_ABSENT = {
    "best_of": "ask for n choices and take the best by cumulative_logprob",
    **dict.fromkeys(("n_predict", "max_new_tokens", "num_predict"), "use max_tokens"),
    **dict.fromkeys(("mirostat", "mirostat_mode"), "use typical_p, which aims at the same surprise without a state"),
    "temp": "use temperature",
    "repeat_penalty": "use repetition_penalty",
    "do_sample": "temperature=0 takes the likeliest token",
    "detokenize": "text is always made",
    "early_stopping": "it belongs to beam search, which Karat does not have; leave it out",
    "extra_args": "leave it out",
    "flat_logprobs": "logprobs have one form, a mapping for each token; leave it out",
    "guided_decoding": "structured_outputs has its place: StructuredOutputs(json=…), regex, choice or grammar",
    "length_penalty": "it belongs to beam search, which Karat does not have; leave it out",
    "logits_processors": "logit_bias adds to the scores of tokens",
    "output_kind": "use LLM.stream for the text as it grows, LLM.generate for all of it",
    "spaces_between_special_tokens": "leave it out",
    "truncate_prompt_tokens": "shorten the prompt: LLM.get_tokenizer() encodes it, and LLM.generate takes token ids",
    "use_beam_search": "Karat has no beam search; ask for n choices and take the best by cumulative_logprob",
}

_LISTS = ("stop", "stop_token_ids", "allowed_token_ids", "dry_sequence_breakers", "bad_words", "bad_words_ids")
_INTS = (
    "n top_k repeat_last_n dry_allowed_length dry_penalty_last_n no_repeat_ngram_size seed max_tokens min_tokens "
    "logprobs prompt_logprobs"
).split()
_IDS = ("stop_token_ids", "allowed_token_ids", "bad_words_ids")
_FORMS = ("json", "regex", "choice", "grammar", "tool_calls")
_NO_STRUCTURE = {
    "disable_additional_properties": 'write "additionalProperties": false into the schema',
    "disable_any_whitespace": "white space is bounded: a space, or a line end with its indentation",
    "disable_fallback": "there is one backend; leave it out",
    "json_object": 'json={"type": "object"} asks for any object',
    "structural_tag": "leave it out",
    "whitespace_pattern": "white space is bounded: a space, or a line end with its indentation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """The form of an answer, under vLLM's names; one field is given besides begun. A wrong one raises RequestError.

    json is a JSON Schema, as a mapping or as JSON text, which is what is kept. regex matches the whole answer, in the
    syntax of Rust's regex. choice lists the texts that an answer may be. grammar is a context-free grammar in
    llguidance's Lark syntax or in llama.cpp's GBNF. A schema that cannot be kept to the letter is refused when the
    request is made, with the name of the keyword (an unknown format is an annotation); so is a form that takes longer
    than 5 s to compile, with the name of the field. tool_calls is a karat.text.tools.grammar.CallGrammar as text: calls
    of tools, which the server and `LLM.tool_params` make.

    begun is a text that stands before the answer: a chat that goes on with a message sets it. The form is that of both
    together. Where this text is no beginning of the form, the form is that of the answer alone.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    tool_calls: str | None = None
    begun: str | None = None

    def __new__(cls, *_: object, **fields: object) -> Self:
        for name in fields:
            if name not in cls.__dataclass_fields__:
                why = unknown_name("StructuredOutputs", name, cls.__dataclass_fields__, _NO_STRUCTURE)
                raise RequestError(f"structured_outputs={shown(name)}: {why}", param="structured_outputs")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        given = [name for name in _FORMS if getattr(self, name) is not None]
        if len(given) != 1 or not isinstance(self.begun, str | None):
            raise RequestError(
                f"structured_outputs={', '.join(given) or 'nothing'}: expected one of json, regex, choice, grammar",
                param="structured_outputs",
            )
        if isinstance(self.json, Mapping):
            object.__setattr__(self, "json", _json_text(self.json))
        if isinstance(self.choice, list):
            object.__setattr__(self, "choice", tuple(self.choice))
        value: object = getattr(self, given[0])
        texts = (value,) if given[0] != "choice" else value if isinstance(value, tuple) else ()
        if not texts or not all(isinstance(text, str) and text for text in texts):
            kind = "texts" if given[0] == "choice" else "a JSON Schema" if given[0] == "json" else "a text"
            raise RequestError(
                f"structured_outputs: {given[0]}={shown(value)}: expected {kind}", param="structured_outputs"
            )
        size = sum(len(text) for text in texts if isinstance(text, str))
        if size > MAX_GRAMMAR_CHARS:
            raise RequestError(
                f"structured_outputs: {given[0]} has {size} characters; expected at most {MAX_GRAMMAR_CHARS}; "
                "shorten it",
                param="structured_outputs",
            )


def _json_text(schema: Mapping[str, Any]) -> str:
    import json

    try:
        return json.dumps(dict(schema), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            f"structured_outputs: json={shown(dict(schema))} is no JSON: {error}", param="structured_outputs"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when a choice ends. A wrong value or name raises RequestError with the field's name.

    n choices continue one prompt, each with its own draws.

    Scores are the model's logits plus logit_bias, then penalised. repetition_penalty is CTRL's (arXiv 1909.05858): for
    tokens of the prompt and the output, positive scores are divided by it and negative ones multiplied. For tokens of
    the output, frequency_penalty is subtracted once for each occurrence, and presence_penalty once. This is vLLM's
    rule. With repeat_last_n it is llama.cpp's: all three count within this number of last tokens of prompt and output
    together (-1: all of them, 0: none, which switches the three off).

    dry_multiplier above 0 penalises what would go on with a repetition, by llama.cpp's DRY: a token that would lengthen
    n tokens in a row that were there before, n at least dry_allowed_length, loses
    dry_multiplier * dry_base ** (n - dry_allowed_length). It looks at the last dry_penalty_last_n tokens of prompt and
    output (-1: all, 0: none). No repetition reaches over one of dry_sequence_breakers.

    no_repeat_ngram_size bars tokens that would complete so many tokens in a row as prompt and output have already
    (transformers' rule; 0: off). bad_words bars the last token of each text in the output, at the start of a text and
    after a space (vLLM's rule). bad_words_ids bars the last of token ids in a row, in prompt and output together
    (transformers').

    temperature 0 is greedy: the largest score, ties to the smallest token id. Otherwise scores are divided by it, and
    the candidates are narrowed in this order; each step sees what the one before it has left. top_n_sigma keeps scores
    at most so many standard deviations of the scores below the largest (arXiv 2411.07641; 0 or -1: all). top_k keeps
    the k largest (0 or -1: all). typical_p keeps the fewest tokens that hold this share, those first whose surprise is
    nearest to the mean surprise (arXiv 2202.00666). top_p keeps the fewest most probable tokens that hold this share,
    one at least. min_p keeps those at least this fraction as probable as the most probable one. With probability
    xtc_probability all tokens at least as probable as xtc_threshold are taken out but the least probable of them (XTC).
    One draw, keyed by (seed, choice index, absolute position), then decides; a draw of its own, keyed alike, decides
    whether XTC acts. A seed of None or -1 is derived from the engine's seed and the number of the request.
    docs/sampling.md has an example.

    A choice ends after max_tokens (None or -1: as many as the context has room for), with an end token of the model
    unless ignore_eos, with one of stop_token_ids, or with a stop string. For the first min_tokens tokens, end and stop
    tokens are not chosen; stop strings are looked for only in the text after these tokens. The text ends before the
    stop string or the token that ended it, unless include_stop_str_in_output; token_ids hold all tokens.

    With allowed_token_ids no other token is chosen: end tokens must be among them for a choice to end with one.

    structured_outputs gives the form of the answer. Tokens that do not fit it are taken out before all else, greedy or
    not. A choice ends with "stop" as soon as the form is complete and nothing can follow, or with an end token where it
    may be complete; ignore_eos and min_tokens do not make it go on. Stop strings and stop_token_ids may cut it
    ("stop"), as max_tokens does ("length").

    logprobs=k reports the chosen token and the k most probable ones under the model's own distribution (before bias,
    penalties and temperature); prompt_logprobs=k does the same for the prompt. explain reports how each token of the
    output was drawn (karat.Explanation). None of the three changes a token.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int | None = None
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = BREAKERS
    no_repeat_ngram_size: int = 0
    bad_words: tuple[str, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    structured_outputs: StructuredOutputs | None = None
    explain: bool = False

    def __new__(cls, *_: object, **fields: object) -> Self:
        """Refuse names that are no fields, with advice. A dataclass alone would raise a bare TypeError."""
        for name in fields:
            if name not in cls.__dataclass_fields__:
                raise RequestError(unknown_name("SamplingParams", name, cls.__dataclass_fields__, _ABSENT))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self._normalise()
        self._int("n", 1, MAX_CHOICES)
        self._number("temperature", 0, 100)
        self._int("top_k", 0, MAX_COUNT, "a positive integer, or 0 for all")
        self._number("top_p", 0, 1)
        self._number("min_p", 0, 1)
        self._number("typical_p", 0, 1, above=True)
        self._number("top_n_sigma", 0, 100)
        self._number("xtc_probability", 0, 1)
        self._number("xtc_threshold", 0, 1)
        self._number("repetition_penalty", 0, 100, above=True)
        self._number("presence_penalty", -2, 2)
        self._number("frequency_penalty", -2, 2)
        if self.repeat_last_n is not None:
            self._int("repeat_last_n", -1, MAX_COUNT, "None, a number of tokens, or -1 for all")
        self._number("dry_multiplier", 0, 100)
        self._number("dry_base", 1, 100)
        self._int("dry_allowed_length", 0, MAX_COUNT)
        self._int("dry_penalty_last_n", -1, MAX_COUNT, "a number of tokens, or -1 for all")
        self._texts("dry_sequence_breakers", MAX_BREAKERS, MAX_WORD)
        self._int("no_repeat_ngram_size", 0, MAX_COUNT, "a positive integer, or 0 for none")
        self._texts("bad_words", MAX_WORDS, MAX_WORD)
        words: object = self.bad_words_ids
        self._require(
            "bad_words_ids",
            isinstance(words, tuple)
            and len(words) <= MAX_WORDS
            and all(
                isinstance(word, tuple) and 0 < len(word) <= MAX_WORD and all(is_int(t, 0, MAX_COUNT) for t in word)
                for word in words
            ),
            f"at most {MAX_WORDS} lists of 1 to {MAX_WORD} token ids",
        )
        bias: object = self.logit_bias
        self._require(
            "logit_bias",
            isinstance(bias, Mapping)
            and len(bias) <= MAX_IDS
            and all(is_int(k, 0, MAX_COUNT) and _is_number(v, -100, 100) for k, v in bias.items()),
            f"at most {MAX_IDS} token ids from 0 to {MAX_COUNT} with numbers from -100 to 100",
        )
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        for name, least, most, instead in (
            ("seed", 0, MAX_SEED, ""),
            ("max_tokens", 1, MAX_COUNT, ""),
            ("logprobs", 0, MAX_LOGPROBS, "; LLM.logits gives the logits of the whole vocabulary"),
            ("prompt_logprobs", 0, MAX_LOGPROBS, "; LLM.logits gives the logits of the whole vocabulary"),
        ):
            if getattr(self, name) is not None:
                self._int(name, least, most, f"None or an integer from {least} to {most}{instead}")
        limit = MAX_COUNT if self.max_tokens is None else self.max_tokens
        self._int("min_tokens", 0, limit, f"an integer from 0 to max_tokens={self.max_tokens}")
        self._texts("stop", MAX_STOPS, MAX_STOP_CHARS)
        self._token_ids("stop_token_ids", self.stop_token_ids, f"at most {MAX_IDS}")
        if self.allowed_token_ids is not None:
            self._token_ids("allowed_token_ids", self.allowed_token_ids, f"None, or 1 to {MAX_IDS}", least=1)
        self._require(
            "structured_outputs",
            isinstance(self.structured_outputs, StructuredOutputs | None),
            "None, or StructuredOutputs with one of json, regex, choice, grammar",
        )
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "explain"):
            self._require(name, isinstance(getattr(self, name), bool), "True or False")

    def clone(self) -> Self:
        """An equal SamplingParams. None ever changes; dataclasses.replace makes one with other values."""
        return replace(self)

    def _normalise(self) -> None:
        """Convert accepted spellings: None for a default, one text, lists, 4.0 for 4; all that requests over HTTP have.

        -1 is all in top_k and top_n_sigma, and none in seed and max_tokens.
        """
        for name, known in self.__dataclass_fields__.items():
            if getattr(self, name) is None and known.default is not None:
                default = {} if known.default is MISSING else known.default
                object.__setattr__(self, name, default)
        for name in (*_INTS, *_IDS):
            object.__setattr__(self, name, _whole(getattr(self, name)))
        for name in ("stop", "bad_words", "dry_sequence_breakers"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, (getattr(self, name),))
        for name in _LISTS:
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.stop, tuple):
            object.__setattr__(self, "stop", tuple(text for text in self.stop if text != ""))  # it stops nothing
        words: object = self.bad_words_ids
        if isinstance(words, tuple) and any(isinstance(word, list) for word in words):
            object.__setattr__(self, "bad_words_ids", tuple(tuple(w) if isinstance(w, list) else w for w in words))
        object.__setattr__(self, "logit_bias", _by_id(self.logit_bias))
        form: object = self.structured_outputs
        if isinstance(form, Mapping) and all(isinstance(name, str) for name in form):
            given = {name: value for name, value in form.items() if value is not None}
            object.__setattr__(self, "structured_outputs", StructuredOutputs(**given) if given else None)
        for name, meant in (("top_k", 0), ("seed", None), ("max_tokens", None)):
            if is_int(getattr(self, name), -1, -1):
                object.__setattr__(self, name, meant)
        if _is_number(self.top_n_sigma, -1, -1):
            object.__setattr__(self, "top_n_sigma", 0.0)

    def _require(self, name: str, condition: bool, expected: str) -> None:
        if not condition:
            raise RequestError(f"{name}={shown(getattr(self, name))}: expected {expected}", param=name)

    def _token_ids(self, name: str, ids: object, expected: str, least: int = 0) -> None:
        is_list = isinstance(ids, tuple) and least <= len(ids) <= MAX_IDS
        self._require(name, is_list, f"{expected} token ids from 0 to {MAX_COUNT}")
        assert isinstance(ids, tuple)
        for place, each in enumerate(ids):
            if not is_int(each, 0, MAX_COUNT):
                said = f"{name}[{place}]={shown(each)}: expected a token id, an integer from 0 to {MAX_COUNT}"
                raise RequestError(said, param=name)

    def _texts(self, name: str, most: int, most_chars: int) -> None:
        texts: object = getattr(self, name)
        self._require(
            name,
            isinstance(texts, tuple)
            and len(texts) <= most
            and all(isinstance(text, str) and 0 < len(text) <= most_chars for text in texts),
            f"at most {most} strings of 1 to {most_chars} characters",
        )

    def _int(self, name: str, least: int, most: int, expected: str | None = None) -> None:
        span = f"an integer from {least} to {most}"
        self._require(name, is_int(getattr(self, name), least, most), expected or span)

    def _number(self, name: str, least: float, most: float, *, above: bool = False) -> None:
        value = getattr(self, name)
        span = f"a number above {least}, at most {most}" if above else f"a number from {least} to {most}"
        self._require(name, _is_number(value, least, most) and not (above and value == least), span)


def _whole(value: object) -> object:
    """The value with integers for floats that are whole, in lists too."""
    if isinstance(value, list | tuple):
        return type(value)(map(_whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _by_id(bias: object) -> object:
    """A logit_bias by token id: JSON has ids as texts, and llama.cpp a list of [id, number]."""
    if isinstance(bias, list | tuple) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in bias):
        bias = dict(bias)
    if not isinstance(bias, Mapping):
        return bias
    return {int(k) if isinstance(k, str) and k.isascii() and k.isdecimal() else _whole(k): v for k, v in bias.items()}


def is_int(value: object, least: int, most: int) -> bool:
    """Whether `value` is an integer (no bool) from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: object, least: float, most: float) -> bool:
    """Whether `value` is a number in the range. Comparisons are false for NaN, and exact for integers of any size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def unknown_name(
    owner: str, name: str, known: Iterable[str], absent: Mapping[str, str], accepted: Iterable[str] = ()
) -> str:
    """The message for an argument that `owner` does not take.

    `known` are its arguments. `absent` maps names of other engines to advice. `accepted` are names that it takes
    without effect. A misspelt name is compared with all of them.
    """
    if name in absent:
        return f"{owner} has no {name}; {absent[name]}"
    close = get_close_matches(name, [*known, *absent, *accepted], 1)
    if not close:
        return f"{owner} has no {name}; expected one of {', '.join(sorted(known))}"
    instead = f" {owner} has none either; {absent[close[0]]}" if close[0] in absent else ""
    return f"{owner} has no {name}; did you mean {close[0]}?{instead}"


def shown(value: object) -> str:
    """`value` for an error message: its repr, cut at 80 characters."""
    try:
        text = repr(_beginning(value))
    except (ValueError, RecursionError):  # an integer of more digits than Python prints, or values deep in each other
        return f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= 80 else f"{text[:79]}…"


def _beginning(value: object) -> object:
    """What begins with the same 79 characters: all of a large value would be printed with the interpreter's lock."""
    if type(value) in (str, bytes, list, tuple):
        value = value[:81]  # type: ignore[index]
    if type(value) in (list, tuple):
        return type(value)(map(_beginning, value))  # type: ignore[call-arg, call-overload]
    if type(value) is dict:
        return {_beginning(key): _beginning(item) for key, item in islice(value.items(), 81)}
    return value


@dataclass(frozen=True, slots=True)
class Resume:
    """The tokens that an answer has so far; it goes on after them as if it had never stopped.

    They count as output (max_tokens, min_tokens, penalties, stop strings, structured_outputs). `choice` is the index of
    the choice that they are of, which keys the draws. Outputs and chunks hold only what is new.
    """

    token_ids: tuple[int, ...]
    choice: int = 0


ReceiptWish = bool | Literal["digests"]
