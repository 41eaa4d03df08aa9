"""Unpacking: a body that came in gzip or deflate, with limits on what it unpacks to."""

import zlib

from karat.server.errors import ApiError

MAX_RATIO = 100  # of unpacked to packed: more is a bomb, or so little that it needs no packing
_STEP = 1 << 20  # unpacked at once: the lock is given back meanwhile, and a bomb ends soon
_GZIP, _ZLIB, _RAW = 31, 15, -15  # what zlib calls wbits
_NONE, _GZIPS, _DEFLATES = ("", "identity"), ("gzip", "x-gzip"), ("deflate",)


def is_packed(encoding: str) -> bool:
    """Whether a body with this Content-Encoding has to be unpacked. ApiError 415 for an encoding that is not known."""
    named = encoding.strip().lower()
    if named in _NONE:
        return False
    if named in _GZIPS + _DEFLATES:
        return True
    text = (
        f"the body has the Content-Encoding {encoding[:80]!r}; expected gzip, deflate or none; send it in one of them"
    )
    raise ApiError(415, text, code="unsupported_encoding")


def unpacked(content: bytes, encoding: str, max_bytes: int) -> bytes:
    """The body, for an encoding that `is_packed`. `deflate` is zlib's form or the bare one: clients send both.

    ApiError 413 beyond `max_bytes` or MAX_RATIO, 400 for what is damaged or cut.
    """
    is_gzip = encoding.strip().lower() in _GZIPS
    kind = _GZIP if is_gzip else _ZLIB if _has_zlib_head(content) else _RAW
    parts, num_bytes, rest = list[bytes](), 0, content
    while rest:  # a gzip file may have several members
        stream = zlib.decompressobj(kind)
        try:
            while not stream.eof:
                part = stream.decompress(rest, _STEP)
                rest = stream.unused_data if stream.eof else stream.unconsumed_tail
                num_bytes += len(part)
                _check(num_bytes, len(content), max_bytes)
                parts.append(part)
                if not part and not rest and not stream.eof:
                    raise _damaged(encoding, "it ends early")
        except zlib.error as error:
            raise _damaged(encoding, str(error)) from None
        if rest and not is_gzip:
            raise _damaged(encoding, f"{len(rest)} bytes follow its end")
    return b"".join(parts)


def _check(num_bytes: int, num_packed: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        text = f"the body unpacks to more than {max_bytes} bytes (--max-body-bytes); send less"
        raise ApiError(413, text, code="body_too_large")
    if num_bytes > num_packed * MAX_RATIO:
        text = f"the body unpacks to more than {MAX_RATIO} times its {num_packed} bytes; send it as it is"
        raise ApiError(413, text, code="body_too_large")


def _has_zlib_head(content: bytes) -> bool:
    """RFC 1950: the method is 8, and both bytes are a multiple of 31."""
    return len(content) > 1 and content[0] & 15 == 8 and int.from_bytes(content[:2], "big") % 31 == 0


def _damaged(encoding: str, why: str) -> ApiError:
    text = f"the body is no {encoding.strip().lower()}, which its Content-Encoding says: {why[:100]}; pack it again"
    return ApiError(400, text, code="invalid_encoding")
