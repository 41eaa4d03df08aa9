"""Engines that read or write the wrong tokens: transformers' tokenizer used wrongly, and loops that choose badly.

The arithmetic is transformers' own and right; the mistakes come before and after it. No mistake uses karat.text or
karat.check.text.prompt.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.model.checked import open_model
from karat.check.record.executors import Steps
from karat.check.record.hf import record_hf
from karat.check.text.prompt import findings_of_model
from karat.check.trace.format import Trace
from karat.config import embedded_model_path
from tests.support import random_models
from tools.zoo.models import FAMILIES
from tools.zoo.run import Case

Ids = list[int]
_WORDS = "the a fox river saw loved kite small and under lantern because 你好 Ünï 🍎 42 , . !".split()
_BOS = "<|endoftext|>"
_END = 2
_SYSTEMS = ("You are a helpful assistant.", "Be brief.", "Answer in rhymes.")


@dataclass(frozen=True, slots=True)
class Reader:
    """A prompt, as a text or as a conversation, and the tokenizer of the folder."""

    tokenizer: Any
    text: str
    messages: list[dict[str, str]] | None
    rng: random.Random

    def ids(self, **options: Any) -> Ids:
        """As transformers reads the prompt."""
        if self.messages is None:
            return list(self.tokenizer(self.text, **options)["input_ids"])
        rendered = self.rendered(self.messages)
        return list(self.tokenizer(rendered, **{"add_special_tokens": False} | options)["input_ids"])

    def rendered(self, messages: list[dict[str, str]], *, generation: bool = True) -> str:
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation))

    def plain(self, text: str) -> Ids:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def bos(reader: Reader) -> Ids:
    """Missing or twice where the tokenizer adds it, and added where it does not."""
    right, token = reader.ids(), reader.tokenizer.bos_token_id
    if right[:1] == [token]:
        return right[1:] if reader.rng.random() < 0.5 else [token, *right]
    return [token, *right]


def template(reader: Reader) -> Ids:
    """A text made a chat; a chat without generation prompt, with another system prompt, or as bare text."""
    if reader.messages is None:
        return reader.plain(reader.rendered([{"role": "user", "content": reader.text}]))
    rest = [message for message in reader.messages if message["role"] != "system"]
    match reader.rng.randrange(4):
        case 0:
            return reader.plain(reader.rendered(reader.messages, generation=False))
        case 1:
            return reader.plain(reader.rendered([{"role": "system", "content": _SYSTEMS[0]}, *rest]))
        case 2:
            return reader.plain(reader.rendered(rest))
        case _:
            return reader.plain("\n".join(message["content"] for message in reader.messages))


def special_tokens(reader: Reader) -> Ids:
    """The pieces of <|im_start|> in its place."""
    return reader.ids(split_special_tokens=True)


READERS: Mapping[str, Callable[[Reader], Ids]] = {"bos": bos, "template": template, "special-tokens": special_tokens}
WRITERS = ("eos", "greedy")
TOKEN_BUGS = (*READERS, *WRITERS)


@dataclass(frozen=True, slots=True)
class TokenRun:
    """The findings on the tokens of one engine, and on its arithmetic: wrong results, largest ratio to the floor.

    changed: whether the mistake changed a token.
    """

    said: tuple[str, ...]
    wrong: tuple[str, ...]
    ratio: float
    changed: bool


def token_run(bug: str | None, seed: str) -> TokenRun | None:
    """An engine with this bug (None: without) and the findings; None if it cannot have the bug."""
    rng = random.Random(seed)
    with TemporaryDirectory(prefix="karat-zoo-") as name:
        model = _write(Path(name), rng)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        reader = _reader(tokenizer, rng, needs_special=bug == "special-tokens")
        right = reader.ids()
        prompt = READERS[bug](reader) if bug in READERS else right
        generated, ends = _written(model, prompt, rng, bug)
        if generated is None:
            return None
        (Path(name) / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        cuts = (0, *range(len(prompt), len(prompt) + len(generated)))
        made = record_hf(model, Steps((*prompt, *generated), cuts))
        info = replace(
            made.info,
            prompt=None if reader.messages else reader.text,
            messages=reader.messages,
            generated=tuple(generated),
            sampling={"temperature": 0},
        )
        opened, trace = open_model(name), Trace(info, made.arrays)
        said = tuple(" = ".join(finding.bugs) or "unexplained" for finding in findings_of_model(opened, trace))
        diagnosis = Diagnoser(opened.graph, opened.weights(), trace, seconds=1).run()
    wrong = tuple(finding.name for finding in diagnosis.findings if finding.is_wrong)
    ratio = max(finding.ratio for finding in diagnosis.findings)
    return TokenRun(said, wrong, ratio, bug in WRITERS or prompt != right)


def token_case(bug: str, seed: str) -> Case | None:
    """The run as a case of the zoo; one whose mistake changes no token cannot have the bug."""
    run = token_run(bug, seed)
    if run is None or not run.changed:
        return None
    if run.said == (bug,) and not run.wrong:
        outcome = "right"
    elif len(run.said) == 1 and bug in run.said[0].split(" = ") and not run.wrong:
        outcome = "class"
    elif not run.said:
        outcome = "missed"
    else:
        outcome = "silent" if run.said == ("unexplained",) else "wrong"
    return Case(bug, seed, outcome, run.said, run.wrong, run.ratio)


def _written(model: Any, prompt: Ids, rng: random.Random, bug: str | None) -> tuple[Ids | None, list[int]]:
    """The tokens that an engine generates at temperature 0, and the end tokens of the model."""
    best = _continued(model, prompt, 8, lambda logits: int(logits.argmax()))
    ends = [_other_than(best)]
    if bug == "eos":  # of several end tokens, one is not known to the engine
        if len(best) < 3:
            return None, ends
        token = best[rng.randrange(len(best) - 2)]
        return best, [token, *ends]
    if bug != "greedy":
        return best[: rng.randrange(6)], ends
    seen = set(prompt)

    def penalised(logits: torch.Tensor) -> int:
        changed = logits.clone()
        for token in seen:
            changed[token] = logits[token] / 2 if logits[token] > 0 else logits[token] * 2
        return int(changed.argmax())

    def nearly_zero(logits: torch.Tensor) -> int:  # a temperature that was not zero after all
        chances = torch.softmax(logits / 1.5, -1).tolist()
        return rng.choices(range(len(chances)), chances)[0]

    chosen = _continued(model, prompt, 8, rng.choice([penalised, nearly_zero]))
    return (None if chosen == best else chosen), [_other_than(chosen)]


def _other_than(chosen: Ids) -> int:
    """A token that was not generated: an engine that goes on after the end has another mistake."""
    return next(token for token in range(4099, 0, -1) if token not in chosen)


def _continued(model: Any, prompt: Ids, count: int, choose: Callable[[torch.Tensor], int]) -> Ids:
    """Up to `count` tokens; the model's own end token is the last: going on behind it is another mistake."""
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) < len(prompt) + count and ids[len(prompt) :][-1:] != [_END]:
            ids.append(choose(model(torch.tensor([ids])).logits[0, -1]))
    return ids[len(prompt) :]


def _write(folder: Path, rng: random.Random) -> Any:
    """A random model with the embedded model's tokenizer, of which some add a token at the beginning."""
    raw = random_models.draw_config(rng, rng.choice(FAMILIES))
    raw |= {"vocab_size": 4100, "eos_token_id": _END}
    model = random_models.build(raw, rng.randrange(2**31))
    model.save_pretrained(folder)
    model.config.save_pretrained(folder)
    source = embedded_model_path()
    backend = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    if rng.random() < 0.5:
        backend["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": _BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {_BOS: {"id": _BOS, "ids": [0], "tokens": [_BOS]}},
        }
    (folder / "tokenizer.json").write_text(json.dumps(backend), encoding="utf-8")
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": _BOS}))
    return model


def _reader(tokenizer: Any, rng: random.Random, *, needs_special: bool) -> Reader:
    def text() -> str:
        return " ".join(rng.choice(_WORDS) for _ in range(rng.randrange(3, 12)))

    if not needs_special and rng.random() < 0.4:
        return Reader(tokenizer, text(), None, rng)
    if needs_special and rng.random() < 0.4:
        return Reader(tokenizer, f"<|im_start|>user\n{text()}<|im_end|>\n", None, rng)
    messages = [{"role": "system", "content": rng.choice(_SYSTEMS[1:])}] if rng.random() < 0.7 else []
    messages.append({"role": "user", "content": text()})
    if rng.random() < 0.3:
        messages += [{"role": "assistant", "content": text()}, {"role": "user", "content": text()}]
    return Reader(tokenizer, "", messages, rng)
