"""The stage of `karat check` that lets a chat model tell stories about words drawn at run time."""

import numpy as np

from karat.check.session import Session
from karat.check.stage import Stage
from karat.config import embedded_model_path

WORDS = (
    "lantern fox river kite button bridge whistle acorn ladder turtle drum candle pebble wagon feather mirror".split()
)


def story_stage(session: Session) -> Stage:
    if session.no_tokenizer is not None:
        return Stage("story", "skipped", [f"not run: {session.no_tokenizer}"])
    if not session.tokenizer.chat_template:
        return Stage("story", "skipped", ["the model has no chat template"])
    rng = np.random.default_rng(session.plan.seed)
    words = [WORDS[i] for i in rng.permutation(len(WORDS))[: session.plan.stories]]
    kind = "story" if session.plan.model.config.num_layers < 12 else "haiku"
    chats = [[{"role": "user", "content": f"Tell me a {kind} about a {word}."}] for word in words]
    outputs = session.llm.chat(chats)
    if fault := next((answer.error for output in outputs if (answer := output.outputs[0]).error), None):
        return Stage("story", "bug", [f"an answer ended with an error: {fault}"], {"asked": words})
    hits = [word in output.outputs[0].text.lower() for word, output in zip(words, outputs, strict=True)]
    lines = [f"{sum(hits)} of {len(hits)} draws of a {kind} have the word that was drawn for them ({', '.join(words)})"]
    facts = {"asked": words, "hits": hits}
    if any(hits):
        return Stage("story", "exact", lines, facts)
    # The embedded model uses the word in eight of ten; of another model nobody knows what it was trained for.
    if session.plan.model.path == embedded_model_path() and len(hits) >= 6:
        return Stage("story", "bug", lines, facts)
    return Stage("story", "skipped", [*lines, "which says nothing of a model that was not trained for it"], facts)
