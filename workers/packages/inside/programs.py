"""Agent programs of a distribution: functions that are called once for each session, `function(session, **options)`.
An attribute `seats` of a function, a tuple of names, says which agents it asks.

Entry points of the group `flexmarl.program` name them; a function that was named as the package's entry is one too.
Environments of the library verifiers are programs as well.
"""

import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from typing import Any

from . import verifiers_environments
from .finding import named_by
from .jobs import Job
from .schemas import of_callable, summary_of

GROUP = "flexmarl.program"

Programs = tuple[list[dict[str, Any]], list[tuple[str, str]]]
"""What is offered, as a manifest says it, and what is left out and why."""


def programs_of(job: Job) -> Programs:
    """Find the programs of the distribution that was asked for."""
    found: list[dict[str, Any]] = []
    broken: list[tuple[str, str]] = []
    if verifiers_environments.loads(job):
        found, broken = verifiers_environments.offered(job)
        if job.entry:
            return found, broken
    if job.entry:
        named = named_by(job.entry)
        return ([_offered(job.entry.rpartition(":")[2], job.entry, named)] if inspect.isfunction(named) else []), []
    for point in _points(job.distribution):
        try:
            found.append(_offered(point.name, point.value, point.load()))
        except Exception as error:  # foreign code: what cannot be loaded is left out with the reason
            broken.append((point.name, f"{type(error).__name__}: {error}"))
    return found, broken


def _points(name: str) -> list[EntryPoint]:
    try:
        points = distribution(name).entry_points
    except PackageNotFoundError:
        return []
    return sorted((point for point in points if point.group == GROUP), key=lambda point: point.name)


def _offered(name: str, entry: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return a program as it stands in a manifest. Raises TypeError where it takes no session."""
    if not callable(function):
        raise TypeError("it is not a function")
    taken = inspect.signature(function).parameters.values()
    first = next(iter(taken), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise TypeError("it takes no session: write it as function(session)")
    options = of_callable(function, without=(first.name,))
    seats = [str(seat) for seat in getattr(function, "seats", ())]
    return {"name": name, "entry": entry, "summary": summary_of(function), "options": options, "seats": seats}
