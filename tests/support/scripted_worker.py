"""The process of AsyncLLM's engine with a scripted model in it (tests.support.scripted)."""

from collections.abc import Sequence

from karat.engine.remote import worker as async_worker
from tests.support.scripted import Scripted


def main(arguments: Sequence[str]) -> None:
    """As karat.engine.remote.worker.main."""
    opened = async_worker._opened

    def scripted(line: async_worker._Line) -> async_worker.LLM:
        llm = opened(line)
        Scripted(llm)
        return llm

    async_worker._opened = scripted
    async_worker.main(arguments)
