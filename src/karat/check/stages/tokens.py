"""Stage tokens: files against each other, prompts of several shapes, other tokenizers."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from karat.check.diagnosis.peers import known_ids
from karat.check.model.checked import CheckedModel
from karat.check.record.llamacpp import llamacpp_tokens
from karat.check.session import agreement
from karat.check.session.session import CheckSession
from karat.check.session.stage import Stage, Verdict
from karat.check.text.chat_audit import CHATS, audit_chat, rendered_chats
from karat.check.text.prompt import TokenFinding, findings_of_model, token_lines
from karat.check.text.token_audit import Audit, FileAudit, Stated
from karat.checkpoint import GgufCheckpoint, read_json
from karat.engine.model_loading.defaults import defaults_of, turn_end_ids
from karat.engine.model_loading.llm_options import GenerationSource
from karat.errors import TokenizerError
from karat.text import Tokenizer

SHAPES: Mapping[str, str] = {
    "bare": "",
    "plain": "Once upon a time, there was a small house.",
    "long": "The cat sat on the mat and looked at the moon. " * 12,
    "non-Latin": "你好，世界。Привет, мир! שלום عالم",
    "emoji": "I like 🍎🍐 and 👩‍🚀, a lot!",
    "white space": "a  b\n\n\tc   d\n",
}
_SHOWN = 12


def run(session: CheckSession) -> Stage:
    """The model's files, other tokenizers, and the ids of a trace against the text that it states."""
    plan = session.plan
    if session.no_tokenizer is not None:
        lines = [f"not run: {session.no_tokenizer}"]
        if session.drawn:
            drawn = f"{len(session.ids)} token ids drawn at random (--seed {plan.seed} draws them again)"
            lines.append(f"the other stages compute {drawn}")
        return Stage("tokens", "skipped", lines, {"drawn": session.drawn, "seed": plan.seed})
    stage = check_tokens(
        plan.model,
        session.tokenizer,
        session.prompt,
        with_hf=plan.with_hf,
        with_llamacpp=plan.with_llamacpp,
        generation_config=plan.generation_config,
    )
    if session.other is None:
        return stage
    info = session.other.info
    if info.prompt is None and info.messages is None and info.generated is None:
        return replace(stage, lines=[*stage.lines, "the trace does not say what its ids were made of"])
    found = findings_of_model(plan.model, session.other)
    facts = {**stage.facts, "trace": [list(finding.bugs) for finding in found]}
    if found:
        return replace(stage, verdict="bug", lines=[*stage.lines, *token_lines(found)], facts=facts)
    return replace(
        stage, lines=[*stage.lines, "the trace's ids are those of what it says they were made of"], facts=facts
    )


def check_tokens(
    model: CheckedModel,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    with_hf: bool,
    with_llamacpp: bool = False,
    generation_config: GenerationSource = "auto",
) -> Stage:
    """The files of a model against each other and against other tokenizers.

    Raises TemplateError for a chat template that does not compile, ConfigError for a generation_config.json that cannot
    be used and is not to be passed over.
    """
    audit, stated = Audit(), stated_of(model, tokenizer, generation_config)
    files = FileAudit(tokenizer, stated)
    files.run(audit)
    texts = {**SHAPES, "prompt": prompt}
    _come_back(tokenizer, texts, audit)
    audit_chat(files, audit)
    chats = rendered_chats(tokenizer)
    ours = {name: tokenizer.encode(text) for name, text in texts.items()}
    ours |= {name: tokenizer.encode_chat(CHATS[name]) for name in chats}
    _in_range(ours, model.config.vocab_size, audit)
    side = _Side(model, tokenizer, stated, texts, ours, chats)
    if with_hf:
        _against_transformers(side, audit)
    if with_llamacpp:
        _against_llamacpp(side, audit)
    return _stage(audit, ours, chats)


def stated_of(model: CheckedModel, tokenizer: Tokenizer, source: GenerationSource) -> Stated:
    """The statements of a model's files about tokens, and the end tokens that the engine uses."""
    checkpoint = model.checkpoint
    stops = defaults_of(checkpoint, model.config, tokenizer, source).end_token_ids
    generation = (checkpoint.generation_config or {}).get("eos_token_id")
    own = tokenizer.eos_token_id
    ends = {"config.json": model.config.eos_token_ids, "generation_config.json": _ids(generation)}
    flag: object = None
    if isinstance(checkpoint, GgufCheckpoint):
        ends = {"the file": model.config.eos_token_ids}
        flag = checkpoint.metadata.optional(bool, "tokenizer.ggml.add_bos_token")
    elif (path := model.path / "tokenizer_config.json").is_file():
        flag = read_json(path, TokenizerError).get("add_bos_token")
    ends["the tokenizer"] = () if own is None else (own,)
    return Stated(
        num_rows=model.config.vocab_size,
        ends=ends,
        adds_bos=flag if isinstance(flag, bool) else None,
        stops=stops,
        chat_stops=stops | turn_end_ids(tokenizer),
    )


def _ids(value: object) -> tuple[int, ...]:
    """eos_token_id as a tuple; empty for any value but an id or a list of ids, as the engine passes over it."""
    ids: list[Any] = value if isinstance(value, list) else [value]
    return tuple(ids) if all(type(token_id) is int for token_id in ids) else ()


def _come_back(tokenizer: Tokenizer, texts: Mapping[str, str], audit: Audit) -> None:
    """The ids of a text decode to the text, or to another Unicode form of the same characters."""
    unknown = tokenizer.token_to_id(tokenizer.special_tokens.get("unk_token", ""))
    bad = 0
    for name, text in texts.items():
        ids = tokenizer.encode(text, add_special_tokens=False)
        back = tokenizer.decode(ids, skip_special_tokens=False)
        same = any(unicodedata.normalize(form, text).strip() == back.strip() for form in ("NFC", "NFKC", "NFD"))
        if same or back == text:
            continue
        bad += 1
        if unknown is not None and unknown in ids:
            audit.notes.append(f"{name}: {ids.count(unknown)} of {len(ids)} pieces have no token but {unknown}")
        else:
            audit.flags.append(f"{name}: {text[:40]!r} comes back as {back[:40]!r}")
    if not bad:
        audit.lines.append(f"{len(texts)} texts come back from their ids: {', '.join(texts)}")


def _in_range(ours: Mapping[str, Sequence[int]], num_rows: int, audit: Audit) -> None:
    for name, ids in ours.items():
        if ids and max(ids) >= num_rows:
            where = f"{name}: id {max(ids)}; the embedding has {num_rows} rows"
            audit.bug("token-range", where, "it cannot be computed")


@dataclass(frozen=True, eq=False)
class _Side:
    """Karat's side of a comparison of tokenizers: ids of texts and conversations, rendered prompts."""

    model: CheckedModel
    tokenizer: Tokenizer
    stated: Stated
    texts: Mapping[str, str]
    ids: Mapping[str, Sequence[int]]
    chats: Mapping[str, str]

    def compare(self, name: str, theirs: Sequence[int], other: str, audit: Audit) -> None:
        ours = list(self.ids[name])
        if ours == list(theirs):
            return
        if said := known_ids(other, self.model, self.tokenizer, {**self.texts, **self.chats}[name], theirs):
            audit.notes.append(f"{name}: other ids in {other}, as is known: {said}")
            return
        first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        at = min(len(ours), len(theirs)) if first is None else first
        where = (
            f"{name}: from token {at} on {ours[at : at + _SHOWN]} here, {list(theirs[at : at + _SHOWN])} in {other}; "
            f"{len(ours)} ids and {len(theirs)}"
        )
        audit.bugs.append(TokenFinding(*self._named(ours, list(theirs)), where))

    def _named(self, ours: list[int], theirs: list[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The mistake that turns one side's ids into the other's, and how; empty if none does."""
        special = self.tokenizer.special_ids
        for more, fewer, which in ((ours, theirs, "here"), (theirs, ours, "there")):
            if more[:1] and more[0] in special and more[1:] == fewer:
                return ("bos",), (f"{more[0]} comes before the text {which} only",)
        if differing := sorted((set(ours) ^ set(theirs)) & special):
            return ("special-tokens",), (f"found whole on one side only: {differing[:_SHOWN]}",)
        return (), ()

    def roles(self, theirs: Mapping[str, int | None], other: str, audit: Audit) -> None:
        """Compare BOS and EOS where the files state them; else each library has a default of its own."""
        ours = {"bos": self.tokenizer.bos_token_id, "eos": self.tokenizer.eos_token_id}
        for role, token_id in theirs.items():
            if ours[role] is not None and token_id != ours[role]:
                where = f"{role}_token is {ours[role]} here, {token_id} in {other}"
                audit.bug(role, where, "the files are read otherwise")

    def ends(self, theirs: frozenset[int], other: str, audit: Audit) -> None:
        """Compare the end tokens that the other side reads from the same files."""
        if missing := sorted(i for i in theirs - self.stated.stops if i < self.stated.num_rows):
            audit.bug("eos", f"{other} ends a text at {missing} too", "one of several end tokens is ignored here")


def _against_transformers(side: _Side, audit: Audit) -> None:
    model, texts = side.model, side.texts
    others = agreement.hf_tokenizer(model.path)
    if others is None:
        audit.notes.append("transformers reads no tokenizer here: nothing is compared with it")
        return
    for name, text in texts.items():
        side.compare(name, list(others(text)["input_ids"]), "transformers", audit)
    for name, rendered in side.chats.items():
        found = agreement.hf_chat(others, CHATS[name])
        if found is None:
            continue
        theirs, ids = found
        if theirs != rendered:
            where = f"{name}: {rendered!r} here, {theirs!r} in transformers"
            audit.bug("template", where, "the template renders otherwise")
        else:
            side.compare(name, ids, "transformers", audit)
    side.roles({"bos": others.bos_token_id, "eos": others.eos_token_id}, "transformers", audit)
    side.ends(agreement.hf_end_ids(model.path), "transformers", audit)
    audit.lines.append(
        f"against transformers: the ids of {len(texts)} texts, {len(side.chats)} conversations as rendered text and as "
        "ids, BOS, EOS and end tokens"
    )


def _against_llamacpp(side: _Side, audit: Audit) -> None:
    texts = side.texts
    found = llamacpp_tokens(side.model.path, texts, side.chats)
    for name, ids in found.ids.items():
        side.compare(name, ids, "llama.cpp", audit)
    side.roles({"bos": found.bos, "eos": found.eos}, "llama.cpp", audit)
    own = side.stated.chat_stops
    for more, fewer, who in ((found.ends, own, "llama.cpp"), (own, found.ends, "Karat")):
        if extra := sorted(more - fewer):
            audit.notes.append(f"{who} alone ends an answer at {FileAudit(side.tokenizer, side.stated).named(extra)}")
    what = f"the ids of {len(texts)} texts and {len(side.chats)} rendered prompts, BOS and EOS"
    audit.lines.append(f"against llama.cpp: {what}")


def _stage(audit: Audit, ours: Mapping[str, Sequence[int]], chats: Mapping[str, str]) -> Stage:
    verdict: Verdict = "bug" if audit.bugs else "flagged" if audit.flags else "exact"
    lines = token_lines(audit.bugs)
    lines += [f"flag: {line}" for line in audit.flags]
    lines += [f"note: {line}" for line in audit.notes]
    lines += [] if audit.bugs else audit.lines
    counts = ", ".join(f"{name} {len(ids)}" for name, ids in ours.items())
    lines.append(f"ids: {counts}")
    facts = {
        "faults": [finding.where for finding in audit.bugs],
        "bugs": [list(finding.bugs) for finding in audit.bugs],
        "flags": audit.flags,
        "notes": audit.notes,
        "rendered": dict(chats),
        "ids": {name: list(ids) for name, ids in ours.items()},
    }
    return Stage("tokens", verdict, lines, facts)
