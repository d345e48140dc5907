"""Jinja for foreign chat templates: the immutable sandbox, with a bound on time and on what is written.

A chat template renders in the loop of a rollout worker, where nothing can be killed, so it may neither stand still nor
fill the memory. Invariant: between two looks at the clock a template does a few operations, an operation makes at most
`MOST_CHARACTERS`, and all of them together make at most `MOST_MADE`. Counted are the steps of loops, calls, filters,
operators and outputs. What makes more than it was given (`*`, `+`, `~`, `replace`, `join`, `indent`, formats, lists
that hold a list twice) is measured before it is made. What chat templates have no use for and what cannot be measured
so (recursive loops, padding) is refused by name.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MOST_SECONDS = 2.0
"""Most seconds of a processor for one conversation; a template that is well takes thousandths of one."""
MOST_CHARACTERS = 8 * 2**20
"""Most characters that a template writes, and most that one operation makes."""
MOST_MADE = 2**29
"""Most characters that all operations of one conversation make, kept or not."""
LOOK_AFTER, OF_OPERATION = 2**18, 2**12
"""Characters that operations read and make between two looks at the clock, and what an operation counts beside them."""
UNWATCHED_SECONDS = 0.05
"""Time before the processor's is counted, which costs more to ask for than most conversations cost to render."""
OF_ITEM = 8
"""Characters that a place in a list counts as."""
MOST_BITS = 4096
"""Of a whole number."""
FILTERS = frozenset(
    """
    abs capitalize count d default dictsort e escape first float groupby indent int items join last length list
    lower map max min reject rejectattr replace reverse round safe select selectattr sort string sum title tojson
    trim unique upper wordcount
    """.split()  # noqa: SIM905 - read as prose
)
STRING_METHODS = frozenset(
    """
    capitalize casefold count encode endswith find index isalnum isalpha isascii isdecimal isdigit islower
    isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex
    rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
    """.split()  # noqa: SIM905 - read as prose
)
_PADDED = re.compile(r"%[^a-zA-Z%]*(\*|\d{4})|:[^{}]*(\d{4}|\{)")
"""A width in a format that is taken from a value, or has more than three digits."""


class OutOfBounds(Exception):
    """A template takes too long, or makes or writes too much; the text says what."""


class _Work:
    """What one conversation has cost so far."""

    def __init__(self) -> None:
        self._written = self._made = 0
        self._until_look = LOOK_AFTER
        self._began = time.monotonic()
        self._ends: float | None = None

    def count(self, characters: int) -> None:
        """Count an operation that reads or makes so many characters."""
        self._until_look -= characters + OF_OPERATION
        if self._until_look < 0:
            self._until_look = LOOK_AFTER
            if time.monotonic() - self._began > UNWATCHED_SECONDS:
                self._look()

    def _look(self) -> None:
        used = time.thread_time()
        if self._ends is None:
            self._ends = used + MOST_SECONDS
        elif used > self._ends:
            raise OutOfBounds(f"it takes more than {MOST_SECONDS:g} s of a processor")

    def write(self, characters: int) -> None:
        self.count(characters)
        self._written += characters
        if self._written > MOST_CHARACTERS:
            raise OutOfBounds(f"it writes more than {MOST_CHARACTERS} characters")

    def make(self, characters: int) -> None:
        self.count(characters)
        _check(characters)
        self._made += characters
        if self._made > MOST_MADE:
            raise OutOfBounds(f"it makes more than {MOST_MADE} characters on its way")

    def keep(self, value: Any) -> Any:
        """Count what a function of Jinja or Python made, and return it."""
        if isinstance(value, str):
            self.make(len(value))
        elif isinstance(value, (list, tuple)):
            self.make(len(value) * OF_ITEM)
        else:
            self.count(0)
        return value


_work: ContextVar[_Work] = ContextVar("work of a template")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates that end by themselves; call `render_bounded` to render one."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=_written)
        self.filters = {name: bounded_filter(name, self.filters[name]) for name in FILTERS}
        self.filters |= {"_each": _each, "_joined": _joined, "_held": _held, "_kept": _kept}
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Watched().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _OPERATORS[operator](left, right)
        return _work.get().keep(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *values: Any, **named: Any) -> Any:
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(owner, str):
            _check_method(owner, name, values)
        elif not isinstance(function, Macro):
            _make(*values, *named.values())
        return _work.get().keep(super().call(context, function, *values, **named))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        function = super().wrap_str_format(value)
        if function is None:
            return None

        @wraps(function)
        def formatted(*values: Any, **named: Any) -> str:
            _check_format(value.__self__, "{", (*values, *named.values()))
            return function(*values, **named)

        return formatted


def render_bounded(compiled: Any, **variables: Any) -> str:
    """Render a template of a `BoundedEnvironment`. Raises OutOfBounds, and whatever the template raises."""
    token = _work.set(_Work())
    try:
        text: str = compiled.render(**variables)
    finally:
        _work.reset(token)
    return text


class _Watched(NodeTransformer):
    """Puts a filter of ours wherever a template repeats, joins or nests."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise OutOfBounds(f"line {node.lineno}: it has a recursive loop")
        self.generic_visit(node)
        node.iter = _filtered("_each", node.iter)
        # What a step writes as it stands in the template passes no operator.
        fixed = sum(len(text.data) for part in node.body for text in part.find_all(nodes.TemplateData))
        node.iter.args.append(nodes.Const(fixed, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered("_joined", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered("_kept", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filtered("_held", node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered("_held", node) if node.ctx == "load" else node


def _filtered(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


# With the context as an argument a filter is never run while the template is compiled.
@pass_context
def _each(_: Context, items: Iterable[Any], fixed: int) -> Iterator[Any]:
    work = _work.get()
    for item in items:
        work.make(fixed)
        yield item


@pass_context
def _joined(_: Context, parts: list[Any]) -> str:
    _make(*parts)
    return "".join(map(str, parts))


@pass_context
def _held(_: Context, made: Any) -> Any:
    _make(made)
    return made


@pass_context
def _kept(_: Context, made: Any) -> Any:
    return _work.get().keep(made)


@pass_context
def _written(_: Context, value: Any) -> Any:
    _work.get().write(_size(value))
    return value


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that measures what it would make, as far as its name says how, and counts what it made."""
    wanted = getattr(getattr(function, "jinja_pass_arg", None), "name", "")
    measured = _MEASURED.get(name)

    @pass_context
    @wraps(function)
    def bounded(context: Context, *values: Any, **named: Any) -> Any:
        if measured is not None:
            measured(*values, *named.values())
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        given = (first[wanted], *values) if wanted else values
        return _work.get().keep(function(*given, **named))

    return bounded


def _check(made: int) -> None:
    if made > MOST_CHARACTERS:
        raise OutOfBounds(f"one operation makes more than {MOST_CHARACTERS} characters")


def _make(*values: Any) -> None:
    _work.get().make(sum(map(_size, values)))


def _size(value: Any) -> int:
    """Return the characters of a value as text, about: each time that it holds another one counts."""
    if isinstance(value, str):
        return len(value)
    size, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, Mapping):
            left.extend(one.keys())
            left.extend(one.values())
        elif isinstance(one, list | tuple | set):
            left.extend(one)
        elif isinstance(one, Namespace):
            left.append(getattr(one, "_Namespace__attrs"))  # noqa: B009 - mypy knows no private name of a class
        size += 2
        _check(size + len(left))
    return size


def _check_plus(left: Any, right: Any) -> None:
    if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        _check(len(left) + len(right))


def _check_times(left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int):
            _check(_size(one) * other)
    if isinstance(left, int) and isinstance(right, int):
        _check_number(left.bit_length() + right.bit_length())


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_number(left.bit_length() * max(right, 0))


def _check_number(bits: int) -> None:
    if bits > MOST_BITS:
        raise OutOfBounds(f"it makes a number of more than {MOST_BITS} bits")


def _check_remainder(left: Any, right: Any) -> None:
    if isinstance(left, str):
        _check_format(left, "%", right if isinstance(right, tuple) else (right,))


def _check_format(text: str, mark: str, values: Iterable[Any]) -> None:
    if _PADDED.search(text):
        raise OutOfBounds("it formats with a width of more than three digits, or one taken from a value")
    _check(len(text) + text.count(mark) * (1000 + max(map(_size, values), default=0)))


def _check_method(owner: str, name: str, values: tuple[Any, ...]) -> None:
    if name not in STRING_METHODS:
        raise OutOfBounds(f"it calls {name}, which texts in a chat template do not have")
    if name == "replace":
        _check_replaced(owner, *values)
    elif name == "join":
        _check_joined(*values, owner)


def _check_replaced(text: Any, old: Any = "", new: Any = "", *_: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    _check(len(text) + text.count(old) * len(new))


def _check_joined(items: Any, between: Any = "", *_: Any) -> None:
    if isinstance(items, list | tuple | Mapping):
        _check(_size(items) + len(items) * len(str(between)))


def _check_indented(text: Any, width: Any = 4, *_: Any) -> None:
    _check((str(text).count("\n") + 1) * (len(width) if isinstance(width, str) else int(width)))


def _check_json(value: Any, *options: Any) -> None:
    if any(isinstance(one, int) and one > 16 for one in options):
        raise OutOfBounds("it indents JSON by more than 16")
    _make(value)


_OPERATORS = {"+": _check_plus, "*": _check_times, "**": _check_power, "%": _check_remainder}
_MEASURED: dict[str, Callable[..., None]] = {
    "replace": _check_replaced,
    "join": _check_joined,
    "indent": _check_indented,
    "tojson": _check_json,
    "string": _make,
    "e": _make,
    "escape": _make,
}
