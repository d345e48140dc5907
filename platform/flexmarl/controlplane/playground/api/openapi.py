"""How the OpenAPI document names serving keys."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension


class ServingKeyScheme(OpenApiAuthenticationExtension):
    target_class = "flexmarl.controlplane.playground.api.authentication.ServingKeyAuthentication"
    name = "serving_key"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Describe the key."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "fmk_<key>.<secret>"}


class ApiKeyScheme(OpenApiAuthenticationExtension):
    target_class = "flexmarl.controlplane.playground.api.authentication.TokenAsApiKey"
    name = "api_key"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Describe where keys and tokens may be sent as well."""
        return {"type": "apiKey", "in": "header", "name": "X-Api-Key"}
