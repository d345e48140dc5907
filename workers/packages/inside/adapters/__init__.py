"""Adapters by protocol: what a package offers, and how one of its environments is played."""

from importlib import import_module
from typing import Any

from ..jobs import Job
from ..shapes import ADAPTERS, ForeignEnvironment, Offer

Found = tuple[list[Offer], list[tuple[str, str]]]
"""What is offered, and what is left out and why."""

MODULES = {
    "flexmarl": "own_protocol",
    "gymnasium": "gymnasium_text",
    "textarena": "textarena_words",
    "pettingzoo": "pettingzoo_text",
    "trl": "trl_classes",
    "openenv": "openenv_servers",
}
"""Module of each adapter: it has `offers(job)` and `environment(job)`."""


def environment_of(job: Job) -> ForeignEnvironment:
    """Return an environment that can be played. Raises whatever importing it raises."""
    made: ForeignEnvironment = _module(job.adapter).environment(job)
    return made


def offers_of(job: Job, broken: list[tuple[str, str]] | None = None) -> Found:
    """Ask every adapter what a distribution offers. Raises LookupError where that is nothing.

    `broken`: its programs and servers that cannot be used; None: it has others, so that no environment is needed.
    """
    offers: list[Offer] = []
    left_out: list[tuple[str, str]] = []
    for name in ADAPTERS:
        found, missing = _module(name).offers(job)
        offers += found
        left_out += missing
    if not offers and broken is not None:
        known = ", ".join(ADAPTERS)
        why = "; ".join(f"{name}: {reason}" for name, reason in [*broken, *left_out][:5])
        nothing = f"no program, no server of tools and no environment of {known} was found in {job.distribution}"
        raise LookupError(f"{nothing} ({why})" if why else nothing)
    return offers, left_out


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{MODULES[name]}")
