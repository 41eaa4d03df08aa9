"""Backslash escapes of a prompt on the command line, which llama.cpp's programs read unless --no-escape is given."""

import re

from karat.errors import RequestError

_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|([nrt'\"\\]))")
_MEANT = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def has_escapes(text: str) -> bool:
    return _ESCAPE.search(text.encode()) is not None


def unescaped(text: str) -> str:
    r"""`text` with \n, \r, \t, \', \", \\ and \xHH as what they mean; every other backslash stays.

    Raises RequestError for bytes that are no UTF-8.
    """
    made = _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()) if found[1] else _meant(found[2]), text.encode())
    try:
        return made.decode()
    except UnicodeDecodeError as fault:
        raise RequestError(f"the prompt's escapes make no UTF-8 (byte {fault.start}); write the letters") from None


def _meant(letter: bytes) -> bytes:
    return _MEANT.get(letter, letter)
