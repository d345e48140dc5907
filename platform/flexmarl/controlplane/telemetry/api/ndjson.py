"""Bodies of one JSON value per line. A packed body was unpacked before, within the bound of all bodies."""

from collections.abc import Mapping
from typing import Any

import orjson
from rest_framework.parsers import BaseParser

from flexmarl.controlplane.common.problems import FieldError, ValidationProblem

_SHOWN_ERRORS = 50


class NdjsonParser(BaseParser):
    """Gives the lines of a body as a list of values. Empty lines count for nothing."""

    media_type = "application/x-ndjson"

    def parse(  # type: ignore[override] # `request.data` may be any value; the stubs know mappings
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Read the body. Raises ValidationProblem naming the lines that are no JSON."""
        values, errors = [], []
        for number, line in enumerate(line for line in stream.read().splitlines() if line.strip()):
            try:
                values.append(orjson.loads(line))
            except orjson.JSONDecodeError as error:
                hint = "One JSON object per line; NaN and Infinity are not JSON."
                errors.append(FieldError(f"/{number}", "not_json", f"Line {number + 1}: {error}.", hint))
        if errors:
            raise ValidationProblem(
                f"{len(errors)} lines are not JSON; nothing was written.", errors=errors[:_SHOWN_ERRORS]
            )
        return values
