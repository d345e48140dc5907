"""The two model bases every contract type derives from.

Invariants: contract values are immutable, and a field nobody declared is refused at the boundary instead of
being carried along silently.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Refuses unknown fields and mutation; the base of everything users write."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Record(BaseModel):
    """Immutable wire value between our own processes; unknown fields are refused as well."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


R = TypeVar("R", bound=Record)
_new, _set = object.__new__, object.__setattr__


def known(kind: type[R], values: dict[str, Any], given: set[str]) -> R:
    """Return a record of values that this process worked out itself, without looking at them again.

    For records that are made by the hundred thousand: checking them costs several times what they are made of. `values`
    are those of all fields, of the declared types and in the declared order; `given` names those that are no defaults.
    """
    made = _new(kind)
    _set(made, "__dict__", values)
    _set(made, "__pydantic_fields_set__", given)
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made
