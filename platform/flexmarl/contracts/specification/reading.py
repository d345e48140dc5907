"""When a setting is read, said at its field: JSON Schema carries it as `x-read-when`, and forms hide what nobody reads.

A condition names a setting by its pointer, or by its name alone in the same object; `*` in a pointer stands for the
policy in question. What a type does not have needs no condition: it is in no schema of that type.
"""

from typing import Any

KEY = "x-read-when"

Value = str | float | bool | None


def one_of(pointer: str, *values: Value) -> dict[str, Any]:
    """Return the condition that a setting is one of these."""
    return {"pointer": pointer, "values": list(values), "not": False}


def none_of(pointer: str, *values: Value) -> dict[str, Any]:
    """Return the condition that a setting is none of these."""
    return {"pointer": pointer, "values": list(values), "not": True}


def read_when(*ways: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Return what a field says that is read in any of these ways: in each, all of its conditions hold."""
    return {KEY: [list(way) for way in ways]}
