"""`karat pull`: fetches a model from the Hugging Face hub."""

import shlex
from typing import Annotated

import typer

from karat.cli.terminal import emit, note

EXAMPLES = """
Examples

  karat pull Qwen/Qwen2.5-0.5B-Instruct
  karat pull org/name@v1.0           a branch, a tag or a commit
  HF_HOME=/big/disk karat pull org/name

HF_TOKEN, HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE are honoured.
"""


def pull(
    model: Annotated[str, typer.Argument(metavar="ORG/NAME[@REVISION][:TYPE]", help="The model's name on the hub.")],
    force: Annotated[bool, typer.Option("--force", help="Fetch again what the cache has.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress and no hint.")] = False,
) -> None:
    """Fetch a model into the hub's cache and print its folder.

    Only configs, tokenizer and safetensors weights are fetched, or the GGUF file of the TYPE, such as Q4_K_M; a fetch
    that was interrupted goes on where it stopped.
    """
    from karat.checkpoint.hub import pull as fetch

    folder = fetch(model, force=force, progress=not quiet)
    emit(f"{folder}\n")
    if not quiet:
        note(f'run it: karat run {shlex.quote(model)} "Once upon a time", or: karat chat {shlex.quote(model)}')
