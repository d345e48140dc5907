"""JSON bodies, without what neither the database nor an answer can hold: NUL, lone surrogates, bottomless nesting."""

import json
from collections.abc import Mapping
from typing import Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from flexmarl.contracts.yaml_text import MAX_DEPTH
from flexmarl.contracts.yaml_text import is_storable as is_safe

__all__ = ["MAX_DEPTH", "SafeJsonParser", "is_safe", "safe_json"]


class SafeJsonParser(JSONParser):
    """Refuses values that would fail further in."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        """Read the body. Raises ParseError."""
        try:
            body = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError(f"it is nested more than {MAX_DEPTH} levels deep.") from None
        _check(body, 0)
        return body


def safe_json(text: str | bytes) -> Any:
    """Read a document that is no body of the API under the same rules. Raises ValueError."""
    try:
        value = json.loads(text)
        _check(value, 0)
    except (RecursionError, ParseError) as error:
        raise ValueError(str(error)) from error
    return value


def _check(node: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ParseError(f"it is nested more than {MAX_DEPTH} levels deep.")
    if isinstance(node, str) and not is_safe(node):
        raise ParseError("a text contains a NUL character or half of a surrogate pair.")
    if isinstance(node, Mapping):
        for key, value in node.items():
            _check(key, depth + 1)
            _check(value, depth + 1)
    elif isinstance(node, list):
        for value in node:
            _check(value, depth + 1)
