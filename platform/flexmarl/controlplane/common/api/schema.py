"""OpenAPI: what REST framework cannot know of our views — strict parameters, keys, problems."""

from typing import Any, Literal

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

from flexmarl.controlplane.common.api import idempotency
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import ProblemSerializer

_PROBLEM = ("application/problem+json", "Refused: an RFC 9457 problem.")
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "date-time": OpenApiTypes.DATETIME,
    "uuid": OpenApiTypes.UUID,
}


def _as_openapi(parameter: Parameter) -> OpenApiParameter:
    return OpenApiParameter(
        parameter.name,
        type=_TYPES[parameter.kind],
        description=parameter.description,
        required=parameter.required,
        enum=list(parameter.choices) or None,
        many=parameter.many,
    )


class OperationSchema(AutoSchema):
    """Adds the parameters a view declares, the Idempotency-Key of POSTs, and the problem answer of every operation."""

    def get_override_parameters(self) -> list[Any]:
        """Return the query parameters and headers of this operation."""
        given: list[Any] = [_as_openapi(p) for p in getattr(self.view, "parameters_of", lambda _: ())(self.method)]
        if self.method == "POST" and getattr(self.view, "stores_answers", False):
            given.append(
                OpenApiParameter(
                    idempotency.HEADER,
                    location=OpenApiParameter.HEADER,
                    required=getattr(self.view, "key_required", False),
                    description="Random value; a repetition under it is answered from the first one's answer.",
                )
            )
        if (needed := getattr(self.view, "versioned", {}).get(self.method)) is not None:
            given.append(
                OpenApiParameter(
                    "If-Match",
                    location=OpenApiParameter.HEADER,
                    required=needed,
                    description="Entity tag of what was read: 412 when it has changed since.",
                )
            )
        return given

    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> Any:
        bodies = super()._get_response_bodies(direction)
        if direction == "response":
            own = getattr(self.view, "refusal", None)
            kind, about = ("application/json", "Refused, in OpenAI's shape.") if own else _PROBLEM
            refusal = self._get_response_for_code(  # type: ignore[no-untyped-call]
                own or ProblemSerializer, "default", [kind]
            )
            bodies.setdefault("default", {**refusal, "description": about})
        return bodies

    def _map_serializer_field(self, field: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        """A member of any JSON value: null is one, and `oneOf` anything and null would forbid just that."""
        schema = super()._map_serializer_field(  # type: ignore[no-untyped-call]
            field, direction, bypass_extensions
        )
        return {k: v for k, v in schema.items() if (k, v) != ("oneOf", [{}, {"type": "null"}])}

    def get_tags(self) -> list[str]:
        """Group operations by the first part of their path."""
        if self.path.startswith("/v1/"):
            return ["openai"]
        return [self.path.removeprefix("/api/v1/").split("/", maxsplit=1)[0] or "api"]
