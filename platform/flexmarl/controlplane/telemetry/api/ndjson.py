"""Bodies of one JSON value per line, plain or gzip, within bounds."""

import gzip
import io
import zlib
from collections.abc import Mapping
from typing import Any

import orjson
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from flexmarl.controlplane.common.problems import FieldError, ValidationProblem

MAX_BYTES = 16 * 2**20
"""Most bytes of a batch, after it was unpacked."""
_SHOWN_ERRORS = 50


class NdjsonParser(BaseParser):
    """Gives the lines of a body as a list of values. Empty lines count for nothing."""

    media_type = "application/x-ndjson"

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Read the body. Raises ParseError when it cannot be unpacked, ValidationProblem for lines that are no JSON."""
        request = (parser_context or {}).get("request")
        coding = request.headers.get("Content-Encoding", "") if request is not None else ""
        values, errors = [], []
        for number, line in enumerate(line for line in unpacked(stream, coding).splitlines() if line.strip()):
            try:
                values.append(orjson.loads(line))
            except orjson.JSONDecodeError as error:
                hint = "One JSON object per line; NaN and Infinity are no JSON."
                errors.append(FieldError(f"/{number}", "not_json", f"Line {number + 1}: {error}.", hint))
        if errors:
            raise ValidationProblem(
                f"{len(errors)} lines are no JSON; nothing was written.", errors=errors[:_SHOWN_ERRORS]
            )
        return values


def unpacked(stream: Any, coding: str) -> bytes:
    """Return the bytes of a body, unpacked when it is gzip. Raises ParseError above the limit."""
    source = gzip.GzipFile(fileobj=io.BytesIO(stream.read(MAX_BYTES + 1))) if coding == "gzip" else stream
    try:
        body: bytes = source.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ParseError(f"it is no whole gzip stream: {error}.") from None
    if len(body) > MAX_BYTES:
        raise ParseError(f"it has more than {MAX_BYTES} bytes: send several batches.")
    return body
