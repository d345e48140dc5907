"""When a setting is read, said at its field: JSON Schema carries it as `x-read-when`, and forms hide what nobody reads.

A condition names a setting by its pointer, or by its name alone in the same object; `*` in a pointer stands for the
policy in question. What a type does not have needs no condition: it is in no schema of that type. Which plug-ins there
are is asked only when the schema is made: the options of other distributions import the modules that say conditions.
"""

from collections.abc import Callable
from typing import Any

from flexmarl.contracts.plugins import Kind

KEY = "x-read-when"

Value = str | float | bool | None
Condition = Callable[[], dict[str, Any]]


def one_of(pointer: str, *values: Value) -> Condition:
    """Return the condition that a setting is one of these."""
    return lambda: {"pointer": pointer, "values": list(values), "not": False}


def none_of(pointer: str, *values: Value) -> Condition:
    """Return the condition that a setting is none of these."""
    return lambda: {"pointer": pointer, "values": list(values), "not": True}


def is_such(kind: Kind[Any], flag: str) -> Condition:
    """Return the condition that the plug-in of a kind is one whose options set a class variable."""
    return lambda: {"pointer": f"{kind.pointer}/type", "values": _such(kind, flag), "not": False}


def is_no_such(kind: Kind[Any], flag: str) -> Condition:
    """Return the opposite condition."""
    return lambda: {"pointer": f"{kind.pointer}/type", "values": _such(kind, flag), "not": True}


def _such(kind: Kind[Any], flag: str) -> list[str]:
    return [name for name, options in kind.variants().items() if getattr(options, flag)]


def read_when(*ways: tuple[Condition, ...]) -> Callable[[dict[str, Any]], None]:
    """Return what a field says that is read in any of these ways: in each, all of its conditions hold."""

    def extend(node: dict[str, Any]) -> None:
        node[KEY] = [[condition() for condition in way] for way in ways]

    return extend
