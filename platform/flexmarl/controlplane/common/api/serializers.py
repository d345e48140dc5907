"""Shapes shared by all apps' API."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from flexmarl.contracts.ids import NAME

_JSON_TYPES: tuple[tuple[type[serializers.Field[Any, Any, Any, Any]], tuple[type, ...]], ...] = (
    (serializers.BooleanField, (bool,)),
    (serializers.IntegerField, (int,)),
    (serializers.FloatField, (int, float)),
    (serializers.CharField, (str,)),
    (serializers.ChoiceField, (str,)),
)
"""Field -> JSON types of its values. REST framework would turn "1" into 1, "yes" into true and 7 into "7"."""


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses members it does not name, and values of another JSON type than theirs."""

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Return the members; those of a choice name the legal values when they refuse another one."""
        found = super().get_fields()
        for field in found.values():
            one = field.child if isinstance(field, serializers.ListField) else field
            if isinstance(one, serializers.ChoiceField):
                legal = ", ".join(map(str, one.choices)).replace("{", "{{").replace("}", "}}")
                one.error_messages["invalid_choice"] = f'"{{input}}" is not legal. Legal values: {legal}.'
        return found

    def to_internal_value(self, data: Any) -> Any:
        """Check for unknown members first."""
        if isinstance(data, Mapping):
            unknown = {
                name: [
                    serializers.ErrorDetail(
                        f"{name} is not a known member. Known members: {', '.join(self.fields)}.", "unknown_field"
                    )
                ]
                for name in data
                if name not in self.fields
            }
            if unknown:
                raise serializers.ValidationError(unknown)
            wrong = {name: error for name, value in data.items() if (error := _mistyped(self.fields[name], value))}
            if wrong:
                raise serializers.ValidationError({**self._refused(data), **wrong})
        return super().to_internal_value(data)

    def _refused(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """What REST framework refuses of a body: a wrong type in one member does not hide what is wrong in another."""
        try:
            super().to_internal_value(data)
        except serializers.ValidationError as error:
            return dict(error.detail) if isinstance(error.detail, dict) else {}
        return {}


def _mistyped(field: serializers.Field[Any, Any, Any, Any], value: Any) -> Any:
    """Return what REST framework says of a value it cannot read, when a value is only of another type; else nothing."""
    if isinstance(field, serializers.ListField) and isinstance(value, list):
        found = {index: error for index, one in enumerate(value) if (error := _mistyped(field.child, one))}
        return found or None
    legal = next((types for kind, types in _JSON_TYPES if isinstance(field, kind)), None)
    if legal is None or value is None or (isinstance(value, legal) and (bool in legal or not isinstance(value, bool))):
        return None
    code = "invalid_choice" if isinstance(field, serializers.ChoiceField) else "invalid"
    said = str(field.error_messages[code]).format(input=value)
    return [serializers.ErrorDetail(said, code)]


class VersionedNameField(serializers.RegexField):
    """Name of what is kept in versions, as specifications write it."""

    def __init__(self, **options: Any) -> None:
        rule = "A name has lower-case letters, digits and _, 32 at most, and begins with a letter, such as my_name."
        text = "Lower case, digits and _; a new name or one that gets another version."
        super().__init__(NAME, error_messages={"invalid": rule}, help_text=text, **options)


def one_of(*shapes: Mapping[str, Any], required: bool = False) -> serializers.JSONField:
    """Return a member of one of several shapes, for the document."""
    described = extend_schema_field({"anyOf": [dict(shape) for shape in shapes]})(type("ShapeField", (_AnyField,), {}))
    field: serializers.JSONField = described(required=required)
    return field


class _AnyField(serializers.JSONField):
    pass


class FieldErrorSerializer(serializers.Serializer[Any]):
    pointer = serializers.CharField(help_text="JSON pointer into the body, or the name of a parameter or header.")
    location = serializers.ChoiceField(["body", "query", "header", "spec", "scenario"])
    code = serializers.CharField()
    detail = serializers.CharField()
    hint = serializers.CharField(allow_blank=True)


class ProblemSerializer(serializers.Serializer[Any]):
    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    instance = serializers.CharField()
    code = serializers.CharField()
    request_id = serializers.CharField()
    errors = FieldErrorSerializer(many=True)  # type: ignore[assignment]
    state = serializers.CharField(required=False)
    allowed_actions = serializers.ListField(child=serializers.CharField(), required=False)


@cache
def listing(row: type[serializers.Serializer[Any]]) -> type[serializers.Serializer[Any]]:
    """Return the shape of a list of rows."""
    name = row.__name__.removesuffix("Serializer") + "List"
    members = {
        "results": row(many=True),
        "next": serializers.CharField(allow_null=True),
        "previous": serializers.CharField(allow_null=True),
        "count": serializers.IntegerField(allow_null=True),
    }
    return type(name, (serializers.Serializer[Any],), members)
