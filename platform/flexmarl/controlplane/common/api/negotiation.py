"""The API answers JSON, whatever a client says it accepts."""

from collections.abc import Iterable
from typing import Any

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request


class AlwaysJson(DefaultContentNegotiation):
    """Chooses a view's first renderer."""

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: Any = None
    ) -> tuple[BaseRenderer, str]:
        """Return the renderer and its media type."""
        first = next(iter(renderers))
        return first, first.media_type
