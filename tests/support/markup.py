"""Pages as tests read them."""

from typing import Any


def markup(answer: Any) -> str:
    """Return the HTML of an answer, each run of whitespace as one space: templates break their lines anywhere."""
    return " ".join(answer.content.decode().split())
