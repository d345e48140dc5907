"""Refusals that several actions share."""

from collections.abc import Iterable

from flexmarl.controlplane.common.problems import FieldError, ValidationProblem


def bad(pointer: str, code: str, detail: str, hint: str = "") -> ValidationProblem:
    """Return the refusal of one value."""
    return ValidationProblem(detail, errors=[FieldError(pointer, code, detail, hint)])


def require_known(value: str, legal: Iterable[str], pointer: str, what: str) -> None:
    """Refuse a value that is none of the legal ones."""
    known = list(legal)
    if value not in known:
        raise bad(pointer, "unknown_value", f"{value} is not {what}.", f"Known: {', '.join(known)}.")
