"""A stream that outlives its server: python examples/resume_elsewhere.py "Tell me a story." URL URL …

Each URL is a replica of `karat serve`, or a router in front of several. The answer is printed as it comes. If its
replica dies, another goes on at the very next token, and the text is that of an undisturbed answer: tokens depend on
the request, its seed and the tokens so far, and on nothing else.
"""

import sys

from karat.client import URL, stream


def main() -> None:
    question, *urls = sys.argv[1:]
    for piece in stream({"messages": [{"role": "user", "content": question}]}, url=urls or URL):
        print(piece.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
