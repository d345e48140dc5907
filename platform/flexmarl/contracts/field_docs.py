"""Docstrings of fields, read from the source when somebody asks for a schema.

pydantic can read them while it makes a class. That costs every process a quarter of a second at its start, and few of
them ever describe a field.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache


@cache
def field_docs(kind: type) -> dict[str, str]:
    """Return the docstrings of a class's annotated fields by name, those of its bases included; its own come first."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= _of_module(base.__module__).get(base.__qualname__, {})
    return found


@cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    """Return class -> field -> docstring of a module; nothing where its source is not there."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (KeyError, OSError, TypeError):
        return {}
    return dict(_of_body(tree.body, ""))


def _of_body(body: list[ast.stmt], outer: str) -> Iterator[tuple[str, dict[str, str]]]:
    for one in body:
        if isinstance(one, ast.ClassDef):
            yield f"{outer}{one.name}", _documented(one)
            yield from _of_body(one.body, f"{outer}{one.name}.")


def _documented(kind: ast.ClassDef) -> dict[str, str]:
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in zip(kind.body, kind.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
