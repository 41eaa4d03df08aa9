"""Canonical JSON against the examples of RFC 8785."""

import json
import struct

import pytest

from karat.errors import UsageError
from karat.receipts.canonical import canonical, digest

# Appendix B: the bits of a float64, and its text.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}

# Section 3.2.2, and what section 3.2.3 makes of it.
SAMPLE = r"""{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}"""
WRITTEN = (
    r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
    r'"string":"€$\u000f\nA' + r"'B\"\\\\\"/" + '"}'
)

# Section 3.2.3: the order of keys.
KEYS = ["\r", "1", "\x80", "ö", "€", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize("bits", NUMBERS)
def test_numbers_of_the_rfc(bits: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    written = canonical(value).decode()
    assert written == NUMBERS[bits] and float(written) == value


def test_the_sample_of_the_rfc() -> None:
    assert canonical(json.loads(SAMPLE)).decode() == WRITTEN


def test_keys_are_in_the_order_of_utf_16() -> None:
    text = canonical(dict.fromkeys(sorted(KEYS), 0))
    assert list(json.loads(text)) == KEYS


def test_equal_values_have_one_digest() -> None:
    assert digest({"a": 1, "b": (1.0, 2)}) == digest({"b": [1, 2.0], "a": 1.0})
    assert digest({"a": 1}) != digest({"a": 2})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, {1: 2}, b"a", {3}, ["\ud800"], {"\ud800": 1}])
def test_what_json_does_not_hold_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="canonical JSON"):
        canonical(value)
