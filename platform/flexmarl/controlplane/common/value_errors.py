"""What pydantic finds wrong with a value of a body, in the words of refusals: field, what it is, what is legal."""

from collections.abc import Sequence
from typing import Any

from flexmarl.controlplane.common.problems import FieldError

_CODES = {"missing": "required", "extra_forbidden": "unknown_field"}


def field_error(error: Any, under: str, place: Sequence[object], hint: str = "") -> FieldError:
    """Return one error of `ValidationError.errors()`; `place` is where below the pointer `under`, `hint` a legal value
    where one is known better than by its rule."""
    kind, context = error["type"], error.get("ctx", {})
    name = next((str(part) for part in reversed(place) if not isinstance(part, int)), under.rpartition("/")[2])
    detail, rule = str(error["msg"]).removeprefix("Value error, "), ""
    if kind == "string_pattern_mismatch":
        detail, rule = f"{name} cannot be {error['input'][:80]!r}.", f"It must match {context['pattern']}."
    elif kind == "literal_error":
        detail, rule = f"{name} cannot be {str(error['input'])[:80]!r}.", f"Legal values: {context['expected']}."
    elif kind == "string_type":
        detail = f"{name} is not a text."
    elif kind == "missing":
        detail = f"{name} is required."
    elif kind == "extra_forbidden":
        detail, rule = f"{name} is not a known field.", "Remove it."
    pointer = "/".join([under, *map(str, place)])
    return FieldError(pointer, _CODES.get(kind, "invalid"), detail, hint or rule)
