"""A stream that outlives its server: python examples/resume_elsewhere.py "Tell me a story." URL URL …

Each URL is a replica of `karat serve`, or a router in front of several. The answer is printed as it comes. If its
replica dies, another goes on at the very next token, and the text is that of an undisturbed answer: tokens depend on
the request, its seed and the tokens so far, and on nothing else.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

from karat.client import resume, stream
from karat.errors import ClientError

TRIES = 3  # of each URL: a router finds out by failures that a replica is dead


def answer(request: Mapping[str, Any], urls: Sequence[str]) -> Iterator[str]:
    """The text of one answer, piece by piece, from the first URL or from where it goes on.

    request: the body for /v1/chat/completions or /v1/completions. Raises ClientError when every URL has failed TRIES
    times in a row.
    """
    token_ids: list[int] = []
    seed, num_failed = None, 0
    for url in cycle(urls):
        try:
            if seed is None:
                pieces = stream(request, url=url)
            else:
                pieces = resume(request, token_ids, seed=seed, url=url)
            for piece in pieces:
                token_ids += piece.token_ids
                seed, num_failed = piece.seed, 0
                yield piece.text
                if piece.finish_reason is not None:
                    return
        except ClientError as error:
            num_failed += 1
            if num_failed == TRIES * len(urls):
                raise
            print(f"[{url}: {error}; going on after {len(token_ids)} tokens]", file=sys.stderr)
            time.sleep(0.1 * (num_failed - 1))


def main() -> None:
    question, *urls = sys.argv[1:]
    for text in answer({"messages": [{"role": "user", "content": question}]}, urls or ["http://127.0.0.1:8000"]):
        print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
