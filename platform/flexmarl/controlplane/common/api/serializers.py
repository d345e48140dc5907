"""Shapes shared by all apps' API."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from rest_framework import serializers


class StrictSerializer(serializers.Serializer):
    """Refuses members it does not name."""

    def to_internal_value(self, data: Any) -> Any:
        """Check for unknown members first."""
        if isinstance(data, Mapping):
            unknown = {
                name: [
                    serializers.ErrorDetail(
                        f"There is no member {name}. Legal: {', '.join(self.fields)}.", "unknown_field"
                    )
                ]
                for name in data
                if name not in self.fields
            }
            if unknown:
                raise serializers.ValidationError(unknown)
        return super().to_internal_value(data)


class FieldErrorSerializer(serializers.Serializer):
    pointer = serializers.CharField(help_text="JSON pointer into the body, or the name of a parameter or header.")
    location = serializers.ChoiceField(["body", "query", "header", "spec", "scenario"])
    code = serializers.CharField()
    detail = serializers.CharField()
    hint = serializers.CharField(allow_blank=True)


class ProblemSerializer(serializers.Serializer):
    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    instance = serializers.CharField()
    code = serializers.CharField()
    request_id = serializers.CharField()
    errors = FieldErrorSerializer(many=True)
    state = serializers.CharField(required=False)
    allowed_actions = serializers.ListField(child=serializers.CharField(), required=False)


@cache
def listing(row: type[serializers.Serializer]) -> type[serializers.Serializer]:
    """Return the shape of a list of rows."""
    name = row.__name__.removesuffix("Serializer") + "List"
    members = {
        "results": row(many=True),
        "next": serializers.CharField(allow_null=True),
        "previous": serializers.CharField(allow_null=True),
        "count": serializers.IntegerField(allow_null=True),
    }
    return type(name, (serializers.Serializer,), members)
