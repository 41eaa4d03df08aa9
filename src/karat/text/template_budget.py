"""Budget: the memory and time of a chat template. Every operation that makes or scans values pays before it runs."""

import re
import sys
import time
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any

import jinja2.exceptions
import jinja2.utils

# Memory and time of a render: a base, and an amount for each byte of the conversation. Released templates use up to 15
# bytes for a byte of 2,000 messages; templates that copy the list of messages at each message use more with each.
BASE_BYTES, BYTES_PER_BYTE = 64 * 1024**2, 256
BASE_CPU_S, CPU_S_PER_BYTE = 2.0, 1e-6  # the rendering thread's processor time: a busy machine does not fail a template
VALUE_BYTES, ITEM_BYTES = 64, 8  # an object, and a reference to one in a container

_WIDE_PERCENT = re.compile(r"[^a-zA-Z]*?(\*|\d{5})")
_WIDE_FORMAT = re.compile(r"\d{5}")


class LimitError(jinja2.exceptions.TemplateRuntimeError):
    """The template needs more time or memory than its budget."""


class TemplateBudget:
    """The bytes that a template may make or scan, and the time it may take, for a conversation of `num_bytes` bytes.

    Time is counted on the thread that makes the budget, so a budget must stay on that thread.
    """

    def __init__(self, num_bytes: int = 0) -> None:
        self.left = BASE_BYTES + BYTES_PER_BYTE * num_bytes
        self.cpu_s = BASE_CPU_S + CPU_S_PER_BYTE * num_bytes
        self.deadline = time.thread_time() + self.cpu_s

    def pay(self, num_bytes: int = 0) -> None:
        """Pay `num_bytes`. Raises `LimitError` when the memory or the time is used up."""
        self.left -= num_bytes
        if self.left < 0:
            raise LimitError("it makes more or larger values than a chat prompt needs")
        if time.thread_time() > self.deadline:
            raise LimitError(f"it runs for more than {self.cpu_s:.1f} s")

    def pay_value(self, value: object) -> int:
        """Pay for `value` and everything in it, once a reference, as printing and comparing cost. Returns the sum.

        Raises `RecursionError` for values nested deeper than Python can print, compare or hash.
        """
        children: Iterable[object] = ()
        if isinstance(value, jinja2.utils.Namespace):
            value = object.__getattribute__(value, "_Namespace__attrs")  # it hides all else from `getattr`
        if isinstance(value, Mapping):
            children = (part for item in value.items() for part in item)
        elif isinstance(value, list | tuple | set | frozenset | ItemsView | ValuesView):
            children = value
        cost = shallow_size(value)
        self.pay(cost)
        return cost + sum(self.pay_value(child) for child in children)

    def pay_product(self, value: object, factors: Iterable[object]) -> None:
        """Pay for an operation that may repeat `value` by each of `factors`: a number, or the length of a text."""
        self.pay(shallow_size(value) * (1 + sum(map(_factor, factors))))

    def pay_format(self, template: str, mark: str, values: object) -> None:
        """Pay for `template % values` or `template.format(values)`, whose conversions start with `mark`."""
        conversions = template.replace(mark * 2, "").split(mark)[1:]
        if any(map(_is_wide_percent if mark == "%" else _is_wide_format, conversions)):
            raise LimitError("it formats to a width of more than 9999 or to one that it computes")
        self.pay(self.pay_value(values) * template.count(mark))

    def listed(self, value: object) -> object:
        """`value`, or a list of its items if it can be iterated only once."""
        return list(self.each(value)) if isinstance(value, Iterator) else value

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield `items`, checking the limits at each."""
        for item in items:
            self.pay()
            yield item


def shallow_size(value: object) -> int:
    """The approximate bytes of `value`, without the contents of a container's elements."""
    if isinstance(value, str | bytes):
        return sys.getsizeof(value)
    if isinstance(value, list | tuple | set | frozenset | Mapping | range | ItemsView | ValuesView):
        return VALUE_BYTES + ITEM_BYTES * len(value)
    return VALUE_BYTES


def _is_wide_percent(conversion: str) -> bool:
    """Whether a conversion (the text after its `%`) may have a width or a precision of five digits or `*`."""
    if conversion.startswith("("):
        _, closing, conversion = conversion.partition(")")
        if not closing:
            return True
    return _WIDE_PERCENT.match(conversion) is not None


def _is_wide_format(field: str) -> bool:
    """Whether a replacement field (the text after its `{`) has five digits in its format, or a field inside it."""
    inside, closing, _ = field.partition("}")
    return not closing or _WIDE_FORMAT.search(inside.partition(":")[2]) is not None


def _factor(value: object) -> int:
    if isinstance(value, tuple | list):
        return sum(map(_factor, value))
    return len(value) if isinstance(value, str) else int(abs(value)) if isinstance(value, int | float) else 0
