"""Which build of a package a specification names: found with the rights of whoever submits, pinned by digest, and its
options checked by the schema of its manifest, without any of its code."""

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.specification.scores import checker
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.packages import queries
from flexmarl.controlplane.packages.models import Package

WHERE = "/environment"
SHOWN = 10
MOST_PROBLEMS = 20


def named_in(environment: object) -> Mapping[str, Any] | None:
    """Return the environment when it names a package well enough to look for it; types refuse the rest."""
    if not isinstance(environment, Mapping) or environment.get("type") != "package":
        return None
    texts = [environment.get(name, "") for name in ("package", "environment")]
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        return None
    return environment if isinstance(environment.get("options", {}), Mapping) else None


def pinned(actor: Actor, project: str, named: Mapping[str, Any]) -> dict[str, Any] | list[Problem]:
    """Return an environment with the build that it names, or the refusals.

    A package of a project that the submitter may not read is refused as if it did not exist.
    """
    found = _found(actor, project, named.get("package", ""))
    if isinstance(found, Problem):
        return [found]
    offers = {one["name"]: one for one in found.manifest["environments"]}
    name = named.get("environment") or (next(iter(offers)) if len(offers) == 1 else "")
    offer = offers.get(name)
    if offer is None:
        close = nearest(name, offers) if name else None
        hint = f"Did you mean {close}?" if close else f"It has {', '.join(list(offers)[:SHOWN])}."
        detail = f"{found} has no environment {name}." if name else f"{found} has several environments."
        code = "unknown_environment" if name else "required"
        return [Problem(pointer=f"{WHERE}/environment", code=code, detail=detail, hint=hint)]
    options = {**defaults(offer), **named.get("options", {})}
    if refused := list(refusals(offer["options"], options)):
        return refused
    kept = ("adapter", "entry", "title", "roles", "opens", "best_score")
    pin = {"id": str(found.id), "digest": found.digest, **{key: offer[key] for key in kept}}
    return {**named, "environment": name, "options": options, "pinned": pin}


def defaults(offer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an environment that its schema gives a value."""
    properties = offer["options"].get("properties", {})
    return {name: node["default"] for name, node in properties.items() if "default" in node}


def refusals(schema: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[Problem]:
    """Return what of some options a schema does not take, each with field, rule and legal value."""
    for number, error in enumerate(checker(dict(schema)).iter_errors(dict(options))):
        if number == MOST_PROBLEMS:
            return
        place = [str(part) for part in error.instance_path]
        hint = _legal(schema, place)
        yield Problem(
            pointer="/".join([f"{WHERE}/options", *place]), code="invalid", detail=error.message[:300], hint=hint
        )


def _legal(schema: Mapping[str, Any], place: list[str]) -> str:
    """Say what the schema takes at a place."""
    properties = schema.get("properties", {})
    if not place:
        return f"Its options: {', '.join(sorted(properties)) or 'none'}."
    node = properties.get(place[0], {})
    rules = [
        f"{word} {node[key]}"
        for key, word in (("type", "a value of type"), ("minimum", "from"), ("maximum", "to"), ("enum", "one of"))
        if key in node
    ]
    given = f", for example {node['default']}" if "default" in node else ""
    return f"Legal: {', '.join(rules) or 'see the page of the package'}{given}."


def _found(actor: Actor, project: str, reference: str) -> Package | Problem:
    rows = queries.usable(actor)
    name, _, release = reference.partition("@")
    try:
        found = rows.filter(pk=uuid.UUID(reference)).first()
    except ValueError:
        rows = rows.filter(project=project)
        # Of several builds of one version the newest is meant; a run keeps the one that it was pinned to.
        found = rows.filter(name=name.lower().replace("_", "-"), release=release).first()
    if found is not None:
        return found
    names = [str(one) for one in rows.only("name", "release")[:50]]
    close = nearest(reference, names)
    known = f"Did you mean {close}?" if close else f"There are {', '.join(names[:SHOWN])}." if names else ""
    detail = f"There is no package {reference} that is ready in {project}, or you may not read it."
    hint = known or "Build it first, on the page of packages."
    return Problem(pointer=f"{WHERE}/package", code="unknown_package", detail=detail, hint=hint)
