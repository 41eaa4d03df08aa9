"""SandboxEnvironment: the Jinja environment of chat templates, which are part of a checkpoint and thus untrusted.

Jinja's immutable sandbox protects Python's internals and the caller's data, but does not limit time and memory. Here
every operation that allocates or scans in proportion to its operands first pays for them from a `Budget`. The syntax
tree is rewritten so that loops, `~`, comparisons and slices, which Jinja compiles to plain Python, pay too. The work
between two payments is bounded by the amount paid, so both limits hold.

One environment serves one render and owns its budget. Nothing is shared between threads.
"""

from collections.abc import Callable, Iterable, Mapping, Sized
from functools import wraps
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any, NoReturn, cast

import jinja2.exceptions
import jinja2.ext
import jinja2.utils
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.visitor import NodeTransformer

from karat.text.template_budget import ITEM_BYTES, VALUE_BYTES, LimitError, TemplateBudget, shallow_size
from karat.text.template_printing import refuse_addresses

MAX_INT_BITS = 100_000

# Filters whose cost is the number of elements at most, independent of the elements' contents.
_SHALLOW_FILTERS = frozenset(
    "attr count d default first items last length list map reject rejectattr reverse select selectattr".split()
)
# Filters and str methods whose result or time grows with the product of their operands.
_AMPLIFIERS = frozenset(
    "batch center expandtabs indent join ljust lstrip rfind rindex rjust round rpartition rsplit rstrip slice strip "
    "tojson trim wordwrap zfill".split()
)
# Filters that iterate over the whole value, and compare, hash or add its items.
_CONSUMING_FILTERS = frozenset("batch groupby join max min slice sort sum unique".split())
_SLOW_FILTERS = frozenset("pprint title urlencode wordcount wordwrap".split())
_SLOWNESS = 16
_SORTING_FILTERS = frozenset("dictsort groupby sort".split())
# `random`: a prompt must be a function of the conversation. The others are slow by design.
_MISSING_FILTERS = ("random", "striptags", "urlize", "xmlattr")
# Bytes make integers of any size. The others are slow by design.
_UNSAFE_METHODS = frozenset("encode from_bytes striptags to_bytes translate".split())
_COMPARING_TESTS = frozenset("== != < <= > >= eq equalto ge greaterthan gt in le lessthan lt ne".split())


class _Metering(NodeTransformer):
    """Sends operands of operations that Jinja compiles to plain Python through the filters `%paid` and `%each`."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.generic_visit(node)
        if isinstance(node, nodes.Concat):
            node.nodes = [_through("%printed", operand) for operand in node.nodes]
        elif isinstance(node, nodes.Compare):
            node.expr = _through("%paid", node.expr)
            for operand in node.ops:
                operand.expr = _through("%paid", operand.expr)
        elif isinstance(node, nodes.Pair):
            node.key = _through("%paid", node.key)  # hashed
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            node.node = _through("%paid_shallow", node.node)
        elif isinstance(node, nodes.For):
            node.iter = _through("%each", node.iter)
        return node


def _through(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the assistant's text for training. Here it renders its body.

    It is a call block, as in transformers, because that gives the body its own scope.
    """

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller: Macro) -> Any:
        return caller()


class _Dict:
    """The global `dict`: callable, without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """The global `namespace`, without attributes that start with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # without a name `self`, which an attribute may have
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"it stores {name!r} in a namespace; names must not start with `_`")


class Refusal(jinja2.exceptions.TemplateError):
    """The template refused the conversation by calling `raise_exception`."""


def _raise_exception(message: object) -> NoReturn:
    raise Refusal(str(message))


class SandboxEnvironment(ImmutableSandboxedEnvironment):
    """Renders as transformers' environment does, within `budget`. `functions` are further globals.

    `lipsum` and the filters of `_MISSING_FILTERS` do not exist.
    """

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(
        self,
        budget: TemplateBudget,
        filters: Mapping[str, Callable[..., Any]],
        functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
            finalize=self._printed,
        )
        self.budget = budget
        self.filters |= filters
        for name in _MISSING_FILTERS:
            del self.filters[name]
        for name, function in self.filters.items():
            self.filters[name] = self._metered_filter(name, function)
        self.filters |= {"%each": budget.each, "%paid": self._paid, "%paid_shallow": self._paid_shallow}
        self.filters["%printed"] = self._printed
        for name, test in self.tests.items():
            self.tests[name] = self._metered_test(name, cast(Callable[..., Any], test))
        del self.globals["lipsum"]
        self.globals |= {
            "range": _range,
            "raise_exception": _raise_exception,
            "dict": _Dict(),
            "namespace": _Namespace,
            **functions,
        }

    def compile_metered(self, source: str) -> tuple[CodeType, str]:
        """Code for `Template.from_code` in any `SandboxEnvironment`, and the literal text of `source`, joined by NUL.

        Errors of Jinja and of Python's compiler pass through.
        """
        tree = self.parse(source)
        literals = {node.data for node in tree.find_all(nodes.TemplateData)}
        literals |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        return self.compile(_Metering().visit(tree)), "\0".join(sorted(literals))

    def _compile(self, source: str, filename: str) -> CodeType:
        """Jinja's hook. Its code has a number beyond float64, such as 1e400, as `inf`, and no such name."""
        return super()._compile(f"inf = 1e999; nan = inf - inf; {source}", filename)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _UNSAFE_METHODS and super().is_safe_attribute(obj, attr, value)

    def concat(self, parts: Iterable[str]) -> str:
        """The joined output of a macro, a call or a `set` block."""
        text = "".join(self.budget.each(parts))
        self.budget.pay(shallow_size(text))
        return text

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str | int):  # hashed, or printed in an error
            self.budget.pay_value(argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            self.budget.pay_format(left, "%", right)
            refuse_addresses(right)
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    self.budget.pay(ITEM_BYTES * len(value) * max(times, 0))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int):
            _check_bits(result.bit_length())
        self.budget.pay(shallow_size(result))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        @wraps(wrapped)
        def metered(*args: Any, **kwargs: Any) -> str:
            self.budget.pay_format(value.__self__, "{", (*args, *kwargs.values()))
            refuse_addresses((args, kwargs))
            return wrapped(*args, **kwargs)

        return metered

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, BuiltinMethodType | MethodType):
            args = tuple(map(self.budget.listed, args))
            self._pay_method(obj.__name__, obj.__self__, (*args, *kwargs.values()))
        elif not isinstance(obj, Macro):
            self.budget.pay_value((*args, *kwargs.values()))
        return self._paid_result(getattr(obj, "__self__", None), super().call(context, obj, *args, **kwargs))

    def _paid(self, value: Any) -> Any:
        self.budget.pay_value(value)
        return value

    def _printed(self, value: Any) -> Any:
        refuse_addresses(self._paid(value))
        return value

    def _paid_shallow(self, value: Any) -> Any:
        self.budget.pay(shallow_size(value))
        return value

    def _paid_result(self, value: Any, result: Any) -> Any:
        """Pay for `result`, made from `value`. Items of a container existed before; parts of a text are new."""
        if isinstance(value, str) and isinstance(result, list):
            self.budget.pay(VALUE_BYTES * len(result))
        return self._paid_shallow(result)

    def _metered_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # The value is the first argument, or the second after a context, environment or evaluation context of Jinja.
        first = int(hasattr(function, "jinja_pass_arg"))

        def metered(*args: Any, **kwargs: Any) -> Any:
            passed, value, rest = args[:first], args[first], args[first + 1 :]
            options = (*rest, *kwargs.values())
            self.budget.pay_value(options)
            if name in _SHALLOW_FILTERS:
                self._paid_shallow(value)
            else:
                if name in _CONSUMING_FILTERS:
                    value = self.budget.listed(value)
                self.budget.pay_value(value)
                self._pay_operation(name, value, options)
                refuse_addresses((value, options))  # the filter may print its arguments
            return self._paid_result(value, function(*passed, value, *rest, **kwargs))

        return _passed_like(function, metered)

    def _metered_test(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def metered(*args: Any, **kwargs: Any) -> Any:
            if name in _COMPARING_TESTS:
                self.budget.pay_value(args)
            else:
                self.budget.pay(sum(map(shallow_size, args)))
            return function(*args, **kwargs)

        return _passed_like(function, metered)

    def _pay_method(self, name: str, owner: Any, args: tuple[Any, ...]) -> None:
        """Pay for the method `name` of `owner`."""
        self._paid_shallow(owner)
        total = self.budget.pay_value(args)
        if isinstance(owner, str):
            if name == "join":
                self.budget.pay_product(args[0] if args else (), (owner,))
            else:
                self._pay_operation(name, owner, args)
        elif isinstance(owner, list | tuple) and name in ("count", "index"):
            self.budget.pay(total * len(owner))

    def _pay_operation(self, name: str, value: Any, args: tuple[Any, ...]) -> None:
        """Pay for the result of the filter or str method `name`. `value` and `args` are already paid for."""
        pay = self.budget.pay
        if name in _AMPLIFIERS:
            self.budget.pay_product(value, args)
        if name in _SLOW_FILTERS:
            self.budget.pay_product(value, (_SLOWNESS,))
        if name in _SORTING_FILTERS and isinstance(value, Sized):  # a sort is one call: all comparisons are paid before
            pay(ITEM_BYTES * len(value) * len(value).bit_length())
        if name == "replace" and len(args) >= 2:
            pay(str(value).count(str(args[0])) * len(str(args[1])))
        elif name == "sum" and any(isinstance(arg, list | tuple) for arg in args):  # each step copies the sum so far
            pay(self.budget.pay_value(value) * len(value))
        elif name == "format" and isinstance(value, str):
            self.budget.pay_format(value, "%", args)


def _passed_like(function: Callable[..., Any], metered: Callable[..., Any]) -> Callable[..., Any]:
    """`metered`, marked so that Jinja passes it its context or environment if it passes it to `function`."""
    if hasattr(function, "jinja_pass_arg"):
        setattr(metered, "jinja_pass_arg", function.jinja_pass_arg)  # noqa: B010 - functions are typed without it
    return metered


def _range(*args: int) -> range:
    for arg in args:
        if arg.bit_length() > 60:  # beyond, integers of equal hash are easily found
            raise LimitError("it counts beyond 60 bits")
    return safe_range(*args)


def _check_bits(num_bits: int) -> None:
    if num_bits > MAX_INT_BITS:
        raise LimitError(f"it computes an integer of more than {MAX_INT_BITS} bits")
