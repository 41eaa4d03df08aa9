"""The prompts that a chat template renders, against the tokenizer and the end tokens. No other renderer takes part.

Released models differ, and all of this is right in one of them: nothing is written before an answer because the user's
turn ends with a mark ([/INST]); the last answer is left open; it ends with a text; the model thinks first.
"""

from collections.abc import Collection, Mapping, Sequence

from karat.check.text.token_audit import Audit, FileAudit, markers
from karat.errors import TemplateError
from karat.text import Tokenizer

Chat = Sequence[Mapping[str, str]]
_QUESTION, _ANSWER, _NEXT = "Where does the moon go by day?", "Behind the sky it sleeps.", "And who wakes it?"
_RULE = "You are a patient teacher."
_USER = [{"role": "user", "content": _QUESTION}]
_TURN = [*_USER, {"role": "assistant", "content": _ANSWER}]
CHATS: Mapping[str, Chat] = {
    "chat": _USER,
    "chat with a system message": [{"role": "system", "content": _RULE}, *_USER],
    "chat of three turns": [*_TURN, {"role": "user", "content": _NEXT}],
}


def rendered_chats(tokenizer: Tokenizer) -> dict[str, str]:
    """The prompts of those conversations that the template takes; none without a template."""
    found = {}
    for name, chat in CHATS.items() if tokenizer.template_source is not None else ():
        try:
            found[name] = tokenizer.render_chat(chat)
        except TemplateError:
            continue
    return found


def audit_chat(files: FileAudit, audit: Audit) -> None:
    """Add findings to `audit`. Raises TemplateError for a template that does not compile."""
    tokenizer = files.tokenizer
    if tokenizer.chat_template is None:
        audit.lines.append("no chat template")
        return
    prompts = rendered_chats(tokenizer)
    refused = [name for name in CHATS if name not in prompts]
    if "chat" not in prompts:
        try:
            tokenizer.render_chat(CHATS["chat"])
        except TemplateError as fault:
            audit.flags.append(f"a single message of a user is not rendered: {fault}")
        return
    audit.notes += [f"the template does not take a {name}" for name in refused]
    for name, prompt in prompts.items():
        _contents(audit, name, prompt)
    _begins(files, audit, prompts["chat"])
    _split(files, audit, prompts.values())
    if "chat of three turns" in prompts:
        _turns(files, audit, prompts["chat"])


def _contents(audit: Audit, name: str, prompt: str) -> None:
    """The last message is in the prompt, once."""
    said = CHATS[name][-1]["content"]
    if prompt.count(said) != 1:
        times = prompt.count(said)
        where = f"{name}: what the user said is {times} times in the prompt: {prompt[-120:]!r}"
        audit.bug("template", where, "the last message is left out" if not times else "it is repeated")


def _begins(files: FileAudit, audit: Audit, prompt: str) -> None:
    tokenizer = files.tokenizer
    ids, bos = tokenizer.encode_chat(CHATS["chat"]), tokenizer.bos_token_id
    if bos is None:
        return
    if ids[:2] == [bos, bos]:
        where = f"the prompt of a chat begins {ids[:4]}: {prompt[:60]!r}"
        audit.bug("bos", where, f"{files.shown(bos)} comes twice: the template writes it, and it is there already")
        return
    added = tokenizer.encode("Hello")[:1] == [bos]
    if ids[:1] == [bos]:
        audit.lines.append(f"the template writes {files.shown(bos)} itself; nothing is put around what it renders")
    elif added:
        audit.notes.append(
            f"a text begins with {files.shown(bos)}, a chat does not: the template writes none (as in transformers; "
            "llama.cpp adds it)"
        )


def _split(files: FileAudit, audit: Audit, prompts: Collection[str]) -> None:
    """A mark that the template writes is encoded as one token, if the vocabulary has it."""
    tokenizer = files.tokenizer
    seen: dict[str, str] = {}
    for prompt in prompts:
        for mark in markers(prompt):
            seen.setdefault(mark, prompt)
    for mark, prompt in seen.items():
        token_id = tokenizer.token_to_id(mark)
        pieces = tokenizer.encode(mark, add_special_tokens=False)
        if token_id is not None and token_id not in tokenizer.encode(prompt, add_special_tokens=False):
            where = f"the template writes {mark!r}, which is token {token_id}, and becomes {pieces}"
            audit.bug("special-tokens", where, f"{files.named(pieces[:6])}; it is not declared as an added token")
        elif token_id is None:
            audit.notes.append(f"the template writes {mark!r}, which is no token: {len(pieces)} ordinary pieces")


def _turns(files: FileAudit, audit: Audit, prompt: str) -> None:
    """The text before an answer is in the prompt that asks for one; the text after an answer ends it."""
    tokenizer = files.tokenizer
    closed = tokenizer.render_chat(_TURN, add_generation_prompt=False)
    before, found, after = closed.rpartition(_ANSWER)
    if not found:
        where = f"the answer is not in {closed[-120:]!r}"
        audit.bug("template", where, "answers given before are left out")
        return
    without = tokenizer.render_chat(_USER, add_generation_prompt=False)
    missing = before[len(prompt) :] if before.startswith(prompt) else ""
    if prompt == without and missing.strip():
        where = f"a chat's prompt ends {prompt[-40:]!r}, and {missing!r} comes before an answer"
        audit.bug("template", where, "add_generation_prompt changes nothing: the model is not asked for an answer")
    _closing(files, audit, after)


def _closing(files: FileAudit, audit: Audit, after: str) -> None:
    """The template's text after an answer, against the tokens that end one."""
    tokenizer = files.tokenizer
    stops = files.stated.chat_stops
    ids = tokenizer.encode(after.strip(), add_special_tokens=False) if after.strip() else []
    if not ids:
        _open_end(files, audit)
        return
    marks = [i for i in ids if i in tokenizer.added_tokens]
    ending = [i for i in marks if i in stops]
    stated = {i for place in files.stated.ends.values() for i in place}
    if ending:
        audit.lines.append(f"an answer of a chat ends at {files.named(sorted(stops))}")
        if ending[0] not in stated:
            audit.notes.append(
                f"the template closes an answer with {files.shown(ending[0])}, which no file names as an end token: "
                "Karat ends an answer there, an engine that reads the files alone runs on"
            )
    elif ids[0] in tokenizer.added_tokens:
        where = f"the template closes an answer with {files.named(marks[:3])}; it ends at {files.named(sorted(stops))}"
        audit.bug("eos", where, "an answer runs on into a turn of the user")
    elif marks or any(markers(after)):
        audit.flags.append(
            f"the template closes an answer with {after.strip()!r}, which begins with {files.shown(ids[0])}: nothing "
            "ends an answer there, unless the model was made to say an end token of its own"
        )
    else:
        _open_end(files, audit)


def _open_end(files: FileAudit, audit: Audit) -> None:
    if files.stated.chat_stops:
        audit.lines.append(f"an answer of a chat ends at {files.named(sorted(files.stated.chat_stops))}")
    else:
        audit.flags.append("nothing ends an answer: the template closes it with no token, and no file names one")
