"""The two model bases every contract type derives from.

Invariants: contract values are immutable, and a field nobody declared is refused at the boundary instead of
being carried along silently.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from flexmarl.contracts.field_docs import field_docs

_EXACT = frozenset({"int", "bool", "float"})


def _whole(value: Any) -> Any:
    """1.0 is a whole number, as in JSON Schema."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _make_exact(node: Any) -> None:
    """Make scalars exact in place. What is exact stays: a model's schema is a part of every schema it stands in."""
    if isinstance(node, dict) and str(node.get("type")) in _EXACT:
        exact: Any = {**node, "strict": True}
        node.clear()
        node.update(core_schema.no_info_before_validator_function(_whole, exact) if exact["type"] == "int" else exact)
    elif isinstance(node, dict) and not _is_exact(node):
        for name, value in node.items():
            if name not in {"metadata", "cls", "default"}:
                _make_exact(value)
    elif isinstance(node, list | tuple):
        for value in node:
            _make_exact(value)


def _is_exact(node: "dict[str, Any]") -> bool:
    return node.get("type") == "function-before" and node["function"]["function"] is _whole


class _Described(BaseModel):
    """Its JSON Schema describes fields by the docstrings behind them."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        properties = handler.resolve_ref_schema(made).get("properties", {})
        for name, text in field_docs(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return made


class Strict(_Described):
    """Refuses unknown fields and mutation; the base of everything users write.

    A text is no number, and a truth value neither: nothing is converted but a whole number to one with a fraction.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Make the scalars of this model exact; other models in it do so themselves."""
        schema = handler(source)
        _make_exact(schema)
        return schema


class Record(_Described):
    """Immutable wire value between our own processes; unknown fields are refused as well."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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
