"""A process that becomes another program: what karat.children starts ends with us, and so does what takes its place."""

import os
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Replace this process by the program `arguments`."""
    os.execvp(arguments[0], list(arguments))
