"""YAML that strangers write, read within bounds: nothing in it costs more than its length, and all of it can be kept.

Refused with the line they stand on: nesting beyond `MAX_DEPTH`, aliases (a few lines of them stand for billions of
values), numbers and times that no machine holds, and text that neither UTF-8 nor a database can hold. The bound on
length is the reader's first: the parser works in Python.
"""

import re
from typing import Any

import yaml

MAX_DEPTH = 64
MAX_LETTERS = 200_000
MAX_BITS = 256
"""Of a whole number: a larger one cannot even be printed. Also most characters of any number."""


def load(text: str) -> Any:
    """Read one document. Raises yaml.YAMLError, with `problem` and mostly `problem_mark`."""
    if len(text) > MAX_LETTERS:
        raise yaml.MarkedYAMLError(problem=f"the text has {len(text)} characters; the limit is {MAX_LETTERS}")
    loader = _BoundedLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


class _BoundedLoader(yaml.SafeLoader):
    """The safe loader, with bounds checked while it reads: nothing is built that is then thrown away."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refused("aliases are not supported; repeat the value", event.start_mark)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refused(f"it is nested more than {MAX_DEPTH} levels deep", event.start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in _NUMBERS and len(node.value) > MAX_BITS:  # `1:59:59...` costs the square of its length to read
            raise _refused("the number is too long", node.start_mark)
        try:
            value = super().construct_object(node, deep)
        except (
            ValueError,
            OverflowError,
            AttributeError,
            LookupError,
        ) as error:  # of a time, number or tag of no sense
            raise _refused("this is not a value of its type", node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise _refused("the number is too large", node.start_mark)
        if isinstance(value, str) and not is_storable(value):
            raise _refused("a text contains a NUL character or half of a surrogate pair", node.start_mark)
        return value


_BoundedLoader.add_implicit_resolver(  # as in YAML 1.2: 1e-3 is a number, with or without a dot
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+"), list("-+0123456789")
)


def is_storable(text: str) -> bool:
    """Say whether PostgreSQL and UTF-8 can hold a text."""
    return "\x00" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _refused(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
