"""Bodies that are no JSON."""

from typing import IO, Any

from rest_framework.parsers import BaseParser


class AnyBodyParser(BaseParser):
    """Leaves a body as it is, to be read as a stream."""

    media_type = "application/octet-stream"

    def parse(self, stream: IO[Any], media_type: str | None = None, parser_context: Any = None) -> Any:
        """Return the stream."""
        return stream
