"""Mistakes before and after the arithmetic: ids that are not the prompt's, and tokens that are chosen wrongly.

A mistake is named only if it makes exactly the ids that the trace has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from karat.check.model.checked import CheckedModel
from karat.check.trace.format import Trace, TraceInfo
from karat.engine.model_loading.defaults import defaults_of, turn_end_ids
from karat.errors import TemplateError
from karat.text import Tokenizer

_SYSTEM = "You are a helpful assistant."


@dataclass(frozen=True, slots=True)
class TokenFinding:
    """Token ids that are wrong: the bugs that make exactly these ids (none: unexplained), and where they differ."""

    bugs: tuple[str, ...]
    details: tuple[str, ...]
    where: str


def findings_of_model(model: CheckedModel, trace: Trace) -> list[TokenFinding]:
    """The findings of `token_findings`. Without a tokenizer.json only the choice of tokens is judged."""
    info = trace.info
    if info.prompt is None and info.messages is None and info.generated is None:
        return []
    if not (model.path / "tokenizer.json").exists():  # the other mistakes tried here are those of a tokenizer.json
        return list(_greedy_findings(trace)) if len(set(info.sequences)) == 1 else []
    tokenizer = Tokenizer.from_folder(model.path)
    end_ids = defaults_of(model.checkpoint, model.config, tokenizer, "none").end_token_ids
    if info.messages is not None:
        end_ids |= turn_end_ids(tokenizer)
    return token_findings(model.path, tokenizer, end_ids, trace)


def token_findings(folder: Path, tokenizer: Tokenizer, end_ids: frozenset[int], trace: Trace) -> list[TokenFinding]:
    """Judge the ids of a trace of one sequence that states its prompt, or which ids were generated and how."""
    info = trace.info
    if len(set(info.sequences)) > 1:
        return []
    num_prompt = _num_prompt(info)
    if num_prompt is None:
        where = "the generated ids are not the last token_ids of the trace"
        return [TokenFinding((), (), where)]
    prompt = list(info.token_ids[:num_prompt])
    found: list[TokenFinding] = []
    if info.prompt is not None or info.messages is not None:
        found += _prompt_findings(folder, tokenizer, prompt, info.prompt, info.messages)
    if info.generated:
        found += _generated_findings(trace, end_ids)
    return found


def _num_prompt(info: TraceInfo) -> int | None:
    """How many ids come before the generated ones, of which the last need not be computed; None: they do not fit."""
    generated = info.generated or ()
    for computed in (generated, generated[:-1]):
        num_prompt = info.num_tokens - len(computed)
        if info.token_ids[num_prompt:] == computed:
            return num_prompt
    return None


def _prompt_findings(
    folder: Path, tokenizer: Tokenizer, ids: list[int], prompt: str | None, messages: Sequence[Mapping[str, Any]] | None
) -> Iterator[TokenFinding]:
    if messages is not None:
        right = tokenizer.encode(tokenizer.render_chat(messages), add_special_tokens=False)
        mistakes = _chat_mistakes(folder, tokenizer, messages)
    else:
        assert prompt is not None
        right = tokenizer.encode(prompt)
        mistakes = _text_mistakes(folder, tokenizer, prompt)
    if ids == right:
        return
    first = next((i for i, (a, b) in enumerate(zip(ids, right, strict=False)) if a != b), min(len(ids), len(right)))
    where = (
        f"token {first} of the prompt: {ids[first : first + 4]} in the trace, {right[first : first + 4]} expected; "
        f"{len(ids)} ids and {len(right)}"
    )
    known = [(bug, detail) for bug, detail, made in mistakes if made == ids]
    yield TokenFinding(tuple(dict.fromkeys(bug for bug, _ in known)), tuple(detail for _, detail in known), where)


def _text_mistakes(folder: Path, tokenizer: Tokenizer, text: str) -> Iterator[tuple[str, str, list[int]]]:
    right, bare = tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)
    if bare != right:
        yield "bos", "what tokenizer.json puts around a text is missing", bare
    yield from _bos(tokenizer, right)
    yield "special-tokens", "special tokens are split", _split(folder, text, add=True)
    if tokenizer.chat_template:
        chat = [{"role": "user", "content": text}]
        rendered = tokenizer.encode(tokenizer.render_chat(chat), add_special_tokens=False)
        yield "template", "the chat template is applied to a plain text", rendered


def _bos(tokenizer: Tokenizer, right: list[int]) -> Iterator[tuple[str, str, list[int]]]:
    bos = tokenizer.special_tokens.get("bos_token")
    token_id = tokenizer.token_to_id(bos) if isinstance(bos, str) else None
    if token_id is None:
        return
    if right[:1] == [token_id]:
        yield "bos", f"{bos} is missing", right[1:]
        yield "bos", f"{bos} comes twice", [token_id, *right]
    else:
        yield "bos", f"{bos} is added, which this model does not want", [token_id, *right]


def _chat_mistakes(
    folder: Path, tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, list[int]]]:
    text = tokenizer.render_chat(messages)
    right = tokenizer.encode(text, add_special_tokens=False)
    yield from _bos(tokenizer, right)
    around = tokenizer.encode(text)
    if around != right:
        yield "bos", "special tokens are added around what the template rendered", around
    yield "special-tokens", "special tokens are split", _split(folder, text, add=False)
    variants: list[tuple[str, Sequence[Mapping[str, Any]], bool]] = [
        ("no generation prompt", messages, False),
        ("another system prompt: none", [m for m in messages if m["role"] != "system"], True),
        ("another system prompt: an empty one", [{"role": "system", "content": ""}, *_without_system(messages)], True),
        (
            f"another system prompt: {_SYSTEM}",
            [{"role": "system", "content": _SYSTEM}, *_without_system(messages)],
            True,
        ),
    ]
    for detail, changed, generation in variants:
        try:
            rendered = tokenizer.render_chat(changed, add_generation_prompt=generation)
        except TemplateError:
            continue  # the template refuses this conversation, so the trace's ids are not made of it
        yield "template", detail, tokenizer.encode(rendered, add_special_tokens=False)
    contents = [str(message["content"]) for message in messages]
    for joiner, name in (("\n", "line breaks"), (" ", "spaces"), ("", "nothing")):
        for special in (True, False):
            ids = tokenizer.encode(joiner.join(contents), add_special_tokens=special)
            yield "template", f"no template, contents joined by {name}", ids
    last = tokenizer.encode(contents[-1])
    yield "template", "no template, the last message only", last


def _without_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [message for message in messages if message["role"] != "system"]


def _split(folder: Path, text: str, *, add: bool) -> list[int]:
    """The ids of a text if special tokens are read as ordinary text."""
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.encode_special_tokens = True
    return list(backend.encode(text, add_special_tokens=add).ids)


def _generated_findings(trace: Trace, end_ids: frozenset[int]) -> Iterator[TokenFinding]:
    info = trace.info
    generated, sampling = info.generated or (), info.sampling or {}
    early = [i for i, token in enumerate(generated[:-1]) if token in end_ids]
    if early and not sampling.get("ignore_eos"):
        where = (
            f"generated token {early[0]} is {generated[early[0]]}, an end token, and {len(generated)} were generated"
        )
        yield TokenFinding(("eos",), ("text runs on behind an end token",), where)
    yield from _greedy_findings(trace)


def _greedy_findings(trace: Trace) -> Iterator[TokenFinding]:
    """The first generated token of one sequence that is not the argmax of its recorded logits, at temperature 0."""
    generated, sampling, num_prompt = trace.info.generated or (), trace.info.sampling or {}, _num_prompt(trace.info)
    logits = trace.arrays.get("lm_head")
    if logits is None or num_prompt is None or sampling.get("temperature") != 0:
        return
    row_of = {int(token): row for row, token in enumerate(trace.rows_of("lm_head"))}
    flat = logits.reshape(len(row_of), -1)
    for index, token in enumerate(generated):
        row = row_of.get(num_prompt + index - 1)
        if row is not None and np.isfinite(flat[row]).all() and int(flat[row].argmax()) != token:
            best = int(flat[row].argmax())
            where = (
                f"generated token {index} is {token} (logit {flat[row, token]:.6g}), and {best} has the largest "
                f"({flat[row, best]:.6g})"
            )
            yield TokenFinding(("greedy",), ("not the argmax of the recorded logits",), where)
            return


def token_lines(findings: Sequence[TokenFinding]) -> list[str]:
    """The findings in words."""
    from karat.check.mistakes.bugs import BUGS

    lines = []
    for finding in findings:
        if not finding.bugs:
            lines.append(f"unexplained token ids: {finding.where}")
            continue
        names = " or ".join(finding.bugs)
        lines.append(f"{names}: {'; or '.join(BUGS[bug].title for bug in finding.bugs)}")
        lines.append(f"   where      {finding.where}")
        lines.append(f"   how        {'; or '.join(finding.details)}")
        lines += [f"   change     {BUGS[bug].remedy}" for bug in finding.bugs]
    return lines
