"""How the OpenAPI document names our ways to sign in."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension


class BearerScheme(OpenApiAuthenticationExtension):
    target_class = "flexmarl.controlplane.accounts.authentication.BearerAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Describe the token."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "fmx_<key>.<secret>"}


class SessionScheme(OpenApiAuthenticationExtension):
    target_class = "flexmarl.controlplane.accounts.authentication.BrowserSessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Describe the browser's session."""
        return {"type": "apiKey", "in": "cookie", "name": "flexmarl_session"}
