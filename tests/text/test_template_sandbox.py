"""What a hostile chat template must not do: read, change or call what is not its own, or use up time and memory.

Covers: karat.text.template_budget, karat.text.template_printing.
"""

import threading
import time
import tracemalloc
from itertools import count

import pytest

from karat.errors import TemplateError
from karat.text import template_budget
from karat.text.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "Hello"}]
MAX_PEAK_BYTES = 200 * 1024**2  # of what Python allocates: the budget's 64 MiB, the step that met it, some slack


def render(source: str) -> str:
    return ChatTemplate(source, bos_token="<s>").render(HELLO)


# 60 doublings: each makes a value that holds the one before twice, so it is small until something walks through it.
NESTED = (
    "{% set n = namespace(x=['a'], y=['a']) %}"
    "{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}"
)
NESTED_TUPLE = "{% set n = namespace(x=('a',)) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}"
DOUBLING = "{{% set n = namespace(x={start}) %}}{{% for i in range(100) %}}{{% set n.x{body} %}}{{% endfor %}}"
BIG = "{% set x = 'a' * 1000000 %}"

BOMBS = {
    "range": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "output": "{% for i in range(99999) %}{% for j in range(99999) %}aaaaaaaaaa{% endfor %}{% endfor %}",
    "times": "{{ 'a' * 10 ** 10 }}",
    "times, reversed": "{{ 10 ** 10 * 'a' }}",
    "times a list": "{{ ([1] * 10 ** 9) | length }}",
    "power": "{{ (10 ** 10) ** (10 ** 10) }}",
    "squares": DOUBLING.format(start="3", body=" = n.x * n.x"),
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10 ** 9, 1) }}",
    "percent precision": "{{ '%.1000000000f' % 1.0 }}",
    "percent of a name": "{{ '%(a)1000000000d' % {'a': 1} }}",
    "percent, again and again": BIG + "{{ ('%(a)s' * 100000) % {'a': x} }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format width": "{{ '{:1000000000}'.format(1) }}",
    "format computed width": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "format, again and again": BIG + "{{ ('{0}' * 100000).format(x) }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "format of Markup": "{{ ('{:1000000000}' | safe).format(1) }}",
    "center": "{{ 'a' | center(10 ** 10) }}",
    "ljust": "{{ 'a'.ljust(10 ** 10) }}",
    "zfill by item": "{{ 'a'['zfill'](10 ** 10) }}",
    "zfill by attr": "{{ ('a' | attr('zfill'))(10 ** 10) }}",
    "center by map": "{{ ['a'] | map('center', 10 ** 10) | list | length }}",
    "expandtabs": "{{ '\t'.expandtabs(10 ** 9) }}",
    "indent": "{{ 'a\nb' | indent(10 ** 10) }}",
    "indent by text": BIG + "{{ ('b\n' * 1000000) | indent(x) }}",
    "tojson indent": "{{ [1] | tojson(indent=10 ** 10) }}",
    "tojson separators": BIG + "{{ range(1000) | list | tojson(separators=(x, x)) }}",
    "batch": "{{ [1] | batch(10 ** 10, 1) | list }}",
    "slice": "{{ [1] | slice(10 ** 10) | list }}",
    "round": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "concatenation": DOUBLING.format(start="'aaaa'", body=" = n.x ~ n.x"),
    "addition": DOUBLING.format(start="'aaaa'", body=" = n.x + n.x"),
    "addition of lists": DOUBLING.format(start="[1]", body=" = n.x + n.x"),
    "set block": DOUBLING.format(start="'aaaa'", body=" %}{{ n.x }}{{ n.x }}{% endset"),
    "macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + DOUBLING.format(start="'aaaa'", body=" = f(n.x)"),
    "filter block": DOUBLING.format(
        start="'aaaa'", body=" %}{% filter upper %}{{ n.x }}{{ n.x }}{% endfilter %}{% endset"
    ),
    "replace": DOUBLING.format(start="'a'", body=" = n.x | replace('a', 'aaaaaaaaaa')"),
    "replace method": DOUBLING.format(start="'a'", body=" = n.x.replace('a', 'aaaaaaaaaa')"),
    "replace nothing": BIG + "{{ x.replace('', x) }}",
    "join": BIG + "{{ range(20000) | join(x) }}",
    "join method": BIG + "{{ x.join(['a'] * 20000) }}",
    "join of a generator": "{{ ('a' * 99999).join(range(5000) | map('string')) | length }}",
    "join of one text": BIG + "{{ ([x] * 20000) | join }}",
    "join of Markup": BIG + "{{ (x | safe).join(['a'] * 20000) }}",
    "split": "{{ ('ab ' * 10 ** 6).split(' ') | length }}",
    "list of a text": "{{ ('字' * 10 ** 6) | list | length }}",
    "kept texts": BIG
    + "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = n.l + [x ~ i] %}{% endfor %}",
    "kept slices": BIG
    + "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = n.l + [x[1:]] %}{% endfor %}",
    "kept blocks": "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set y %}"
    + "a" * 99999
    + "{{ i }}{% endset %}"
    "{% set n.l = n.l + [y] %}{% endfor %}",
    "sorts": "{% for i in range(99) %}{% set _ = range(99999) | sort %}{% endfor %}",
    "sum of lists": "{{ ([range(5) | list] * 3000) | sum(start=[]) | length }}",
    "nested, deep": DOUBLING.format(start="('a',)", body=" = (n.x,)").replace("100", "9999") + "{{ {n.x: 1} }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "count in a list": "{{ ([range(2000) | list] * 99999).count(range(2000) | list) }}",
    "slow filter": "{{ ('é ' * 1500000) | urlencode | length }}",
    "bytes": "{{ 'a'.encode() * 10 ** 10 }}",
    "bytes of a number": "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "expandtabs by keyword": "{{ '\t'.expandtabs(tabsize=10 ** 9) }}",
    "percent of a key with %": "{{ '%(%a)1000000000d' % {'%a': 1} }}",
    "percent of a key with )": "{{ '%(())1000000000d' % {'()': 1} }}",
    "format of a key": "{{ '{0[a:b]:1000000000}'.format({'a:b': 1}) }}",
    "format of braces": "{{ '{{{:1000000000}}}'.format(1) }}",
    "strip": BIG + "{{ x.strip('b' * 100000 ~ 'a') }}",
    "trim": BIG + "{{ x | trim('b' * 100000 ~ 'a') }}",
    "backward search": BIG + "{{ x.rfind('b' ~ 'a' * 100000) }}",
    "equal hashes": "{{ dict.fromkeys(range(0, 99999 * (2 ** 61 - 1), 2 ** 61 - 1)) | length }}",
    "time": "{{ strftime_now('%Y' * 1000) }}",
    "striptags": "{{ (('<!---->' * 9999) | safe).striptags() }}",
    "translate": BIG + "{{ x.translate({97: x}) }}",
}
SLOW_BOMBS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops with conditions": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "calls": "{% macro f(n) %}{% if n %}{% set _ = f(n - 1) ~ f(n - 1) %}{% endif %}{% endmacro %}{{ f(99) }}",
    "wide recursive loop": "{% for i in [1] recursive %}{{ loop(range(9999)) if loop.depth < 4 }}{% endfor %}",
    "filters": "{% for i in range(99999) %}{% set _ = range(99999) | select('undefined') | list %}{% endfor %}",
    "searches": BIG + "{% for i in range(99999) %}{% set _ = x.find('a' * 999 ~ 'b') %}{% endfor %}",
    "print": NESTED + "{{ n.x }}",
    "print a namespace": NESTED + "{{ n }}",
    "print in a macro": "{% macro f(x) %}{{ x }}{% endmacro %}" + NESTED + "{{ f(n.x) }}",
    "print items": NESTED + "{{ {1: n.x}.items() }}",
    "concatenate": NESTED + "{% set x = 'a' ~ n.x %}",
    "to JSON": NESTED + "{{ n.x | tojson }}",
    "to safe text": NESTED + "{{ n.x | safe | length }}",
    "to text": NESTED + "{{ n.x | string | length }}",
    "percent": NESTED + "{{ '%s' % [n.x] }}",
    "format": NESTED + "{{ '{}'.format(n.x) }}",
    "raise": NESTED + "{{ raise_exception(n.x) }}",
    "compare": NESTED + "{{ n.x == n.y }}",
    "compare in a list": NESTED + "{{ n.x in [n.y] }}",
    "compare by test": NESTED + "{{ [n.x] | select('eq', n.y) | list }}",
    "compare by index": NESTED + "{{ [n.x].index(n.y) }}",
    "compare by sort": NESTED + "{{ [{'v': n.x}, {'v': n.y}] | map(attribute='v') | sort | length }}",
    "error of an item": NESTED + "{{ {}[n.x].a }}",
    "name of an attribute": NESTED + "{{ messages | attr(n.x) }}",
    "name of a filter": NESTED_TUPLE + "{{ messages | map(n.x) | list }}",
    "compare by changed": NESTED + "{% for i in [n.x, n.y] %}{{ loop.changed(i) }}{% endfor %}",
    "tests": "{% set x = 'A' * 4000000 %}" + "{% if x is upper %}{% endif %}" * 500,
    "hash": NESTED_TUPLE + "{{ {n.x: 1} | length }}",
    "hash by item": NESTED_TUPLE + "{{ {}[n.x] }}",
    "hash by get": NESTED_TUPLE + "{{ {}.get(n.x) }}",
    "hash by unique": NESTED_TUPLE + "{{ [n.x] | unique | list | length }}",
}


REASONS = [
    "it makes more or larger values",
    "it puts out more than",
    "it formats to a width",
    "it computes an integer",
    "it counts beyond 60 bits",
    "it asks for the time",
    "Range too big",
    "RecursionError",
    "is unsafe",
]


@pytest.mark.drawn(30)
@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_before_they_take_memory(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.thread_time", lambda: 0.0)  # time is never up
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError) as caught:
            render(source)
        assert tracemalloc.get_traced_memory()[1] < MAX_PEAK_BYTES
    finally:
        tracemalloc.stop()
    assert any(reason in str(caught.value) for reason in REASONS)


def cpu_s_of_a_million_additions() -> float:
    """How fast this machine is just now."""
    started = time.thread_time()
    assert sum(i for i in range(1_000_000)) == 499_999_500_000
    return time.thread_time() - started


@pytest.mark.drawn(15)
@pytest.mark.parametrize("source", SLOW_BOMBS.values(), ids=SLOW_BOMBS)
def test_slow_templates_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "BASE_CPU_S", 0.1)

    def units_too_long() -> float:
        unit_s = cpu_s_of_a_million_additions()
        started = time.thread_time()
        with pytest.raises(TemplateError, match=r"was stopped: it runs for more than 0\.1 s|more or larger values"):
            render(source)  # would go on for minutes
        took_s = time.thread_time() - started
        return (took_s - 0.1) / max(unit_s, cpu_s_of_a_million_additions())

    # The longest takes two or three units; another attempt, as a machine may be slow for a moment.
    attempts = (units_too_long() for _ in range(3))
    assert any(units < 10 for units in attempts), "an operation that is not paid for in small pieces"


def test_the_limit_is_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    milliseconds = count()
    monkeypatch.setattr("time.thread_time", lambda: next(milliseconds) / 1000)
    with pytest.raises(TemplateError, match=r"line 1, was stopped: it runs for more than 2\.0 s"):
        render(SLOW_BOMBS["loops"])
    assert next(milliseconds) == pytest.approx(2000, abs=5)


def test_what_is_paid_for_is_what_is_made() -> None:
    assert render(BIG + "{{ ', '.join([x] * 9) | length }}") == "9000016"
    assert render(BIG + "{{ x.replace('b', x) | length }}") == "1000000"
    assert render("{{ ('ab ' * 10000).split(' ') | length }}") == "10001"
    assert render("{{ (range(99999) | sort)[-1] }}") == "99998"


def test_integers_are_limited() -> None:
    for source in (BOMBS["power"], BOMBS["squares"]):
        with pytest.raises(TemplateError, match="it computes an integer of more than 100000 bits"):
            render(source)
    assert len(render("{{ 2 ** 9999 }}")) == 3010


def test_output_is_limited() -> None:
    with pytest.raises(TemplateError, match=r"was stopped: it puts out more than 1\d{6} characters"):
        render(BIG + "{{ x }}{{ x }}")
    assert len(render(BIG + "{{ x }}")) == 1_000_000


def test_limits_grow_with_the_conversation() -> None:
    # 3,000 turns, and a template that copies the list of them and asks for its length at every one, as real ones do.
    template = ChatTemplate(
        "{% for m in messages %}{% for n in messages[::-1] %}{% break %}{% endfor %}"
        "{{ m.content if messages | length }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "a" * 2000}] * 3000
    assert template.render(messages) == "a" * 2000 * 3000


SECRETS = {
    "class": "{{ ''.__class__.__mro__ }}",
    "class by item": "{{ ''['__class__']['__mro__'] }}",
    "class by attr": "{{ (''|attr('__class__')).mro() }}",
    "class by joined name": "{{ (''|attr('__cla' ~ 'ss__')).mro() }}",
    "class by format": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "class by format_map": "{{ '{a.__class__.__mro__}'.format_map({'a': 1}) }}",
    "class by format of Markup": "{{ ('{0.__class__.__mro__}' | safe).format(1) }}",
    "class by a kept format": "{% set f = '{0.__class__.__mro__}'.format %}{{ f(1) }}",
    "class by an attr of format": "{{ ('{0.__class__.__mro__}' | attr('format'))(1) }}",
    "class by map": "{{ ([''] | map(attribute='__class__') | first).mro() }}",
    "class by map of attr": "{{ ([''] | map('attr', '__class__') | first).mro() }}",
    "class by sum": "{{ [''] | sum(attribute='__class__') }}",
    "globals of a global": "{{ cycler.__init__.__globals__.os }}",
    "globals of a function": "{{ raise_exception.__globals__.jinja2 }}",
    "code of a function": "{{ strftime_now.__code__.co_consts }}",
    "globals of a method": "{{ self.__init__.__globals__.os }}",
    "context": "{{ self._TemplateReference__context.environment }}",
    "macro": "{% macro f() %}{% endmacro %}{{ f._environment.filters }}",
    "loop": "{% for i in [1] %}{{ loop._iterable.x }}{% endfor %}",
    "generator": "{{ (messages | map(attribute='role')).gi_frame.f_globals }}",
    "namespace": "{{ namespace(a=1)._Namespace__attrs.a }}",
    "owner of a method": "{{ ''.join.__self__.x }}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends 'base' %}",
    "append": "{{ messages.append(1) }}",
    "append by attr": "{{ (messages | attr('append'))(1) }}",
    "append by a kept method": "{% set f = messages.append %}{{ f(1) }}",
    "update": "{{ messages[0].update({'role': 'system'}) }}",
    "set": "{% set messages.x = 1 %}",
    "class in a namespace": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "private in a namespace": "{{ namespace(_a=1) }}",
    "lipsum": "{{ lipsum(n=1) }}",
    "random": "{{ [1, 2] | random }}",
    "metering": "{{ 1 | %paid }}",
}


@pytest.mark.parametrize("source", SECRETS.values(), ids=SECRETS)
def test_what_is_not_the_templates_own_is_out_of_reach(source: str) -> None:
    with pytest.raises(TemplateError, match=r"is unsafe|is undefined|no loader|No filter|namespace|got '%'"):
        render(source)


def test_a_conversation_is_never_run_as_a_template() -> None:
    messages = [{"role": "user", "content": "{{ 7 * 7 }}{% include 'x' %}"}]
    assert ChatTemplate("{{ messages[0].content }}").render(messages) == "{{ 7 * 7 }}{% include 'x' %}"


def test_only_the_time_of_the_rendering_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "BASE_CPU_S", 0.1)
    budget = template_budget.TemplateBudget()
    busy = threading.Thread(target=lambda: sum(range(20_000_000)))
    busy.start()
    busy.join()
    budget.pay()


def test_threads_do_not_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "BASE_CPU_S", 0.6)
    template = ChatTemplate("{% for i in range(messages[0].n) %}{% for j in range(9999) %}{% endfor %}{% endfor %}done")
    results: dict[int, str] = {}

    def run(num_loops: int) -> None:
        try:
            results[num_loops] = template.render([{"n": num_loops}])
        except TemplateError:
            results[num_loops] = "stopped"

    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2, 3, 99999)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1: "done", 2: "done", 3: "done", 99999: "stopped"}


def outcome(source: str) -> str:
    """What is rendered, or what is said."""
    try:
        return render(source)
    except TemplateError as error:
        return str(error)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception }}",
        "{{ range }}",
        "{{ dict }}",
        "{{ 'a'.upper }}",
        "{{ messages.append }}",
        "{{ messages | map('upper') }}",
        "{{ range ~ 'a' }}",
        "{{ range | string }}",
        "{{ range | safe }}",
        "{{ '%s' % range }}",
        "{{ '%s' | format(range) }}",
        "{{ '{}'.format(range) }}",
        "{{ '{a}'.format(a=range) }}",
        "{{ [1, [range]] }}",
        "{{ {'a': range} }}",
        "{{ {'a': range}.items() }}",
        "{{ [range] | join }}",
        "{{ [range] | map('string') | list }}",
        "{{ namespace(a=range) }}",
        "{{ cycler(range).next() }}",
        "{{ joiner }}{{ joiner() }}",
        "{{ self }}",
        "{% macro m() %}{{ range }}{% endmacro %}{{ m() }}",
        "{% set s %}{{ range }}{% endset %}{{ s }}",
        "{{ range | upper }}",
        "{{ strftime_now }}",
    ],
)
def test_no_address_is_printed(source: str) -> None:
    """`<function ... at 0x...>` would be another prompt in each run."""
    assert " at 0x" not in outcome(source)


@pytest.mark.parametrize("source", ["{{ range }}", "{{ [range] }}", "{{ 'a'.upper ~ '' }}", "{{ range | safe }}"])
def test_what_prints_an_address_is_named(source: str) -> None:
    with pytest.raises(TemplateError, match="an address in memory that differs from run to run"):
        render(source)


def test_what_has_a_text_of_its_own_is_printed() -> None:
    assert render("{{ '<a at 0x7f>' }}{{ '%s' % 'b at 0x1' }}") == "<a at 0x7f>b at 0x1"
    assert (
        render("{{ range(3) }}{{ none }}{{ nothing }}{{ {'a': [1.5, true]} }}") == "range(0, 3)None{'a': [1.5, True]}"
    )
    assert render("{% macro m() %}{% endmacro %}{{ m }}").startswith("<Macro")
