"""Which build of a package a specification names, for its environment or its agent program: found with the rights of
whoever submits, pinned by digest, and its options checked by the schema of its manifest, without any of its code."""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.specification.package import PinnedBuild
from flexmarl.contracts.specification.scores import checker
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.packages import queries
from flexmarl.controlplane.packages.models import Package

SHOWN = 10
MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class NamedPart:
    """What a specification names of a package."""

    word: str
    """Member of the specification that says which one."""
    offers: str
    """Member of the manifest that lists them."""
    where: str
    """Pointer to what names it."""
    kept: tuple[str, ...]
    """What of an offer is pinned."""


ENVIRONMENT = NamedPart(
    "environment", "environments", "/environment", ("adapter", "entry", "title", "roles", "opens", "best_score")
)
PROGRAM = NamedPart("program", "programs", "/environment/runner", ("entry", "adapter"))


SAID_BY_PROGRAMS = ("seats", "tasks", "held_out", "best_reward")
"""Members of an environment that a program of a package may say."""


def completed(actor: Actor, project: str, environment: object) -> dict[str, Any] | list[Problem] | None:
    """Return an environment with the build that it or its runner names, or the refusals; None where it names none.

    A package of a project that the submitter may not read is refused as if it did not exist.
    """
    if not isinstance(environment, Mapping):
        return None
    runner = environment.get("runner")
    if environment.get("type") == "program" and isinstance(runner, Mapping) and runner.get("type") == "command":
        return _commanded(actor, project, environment, runner)
    if environment.get("type") == "package" and _well(environment, ENVIRONMENT):
        return pinned(actor, project, environment, ENVIRONMENT)
    if environment.get("type") != "program" or not isinstance(runner, Mapping) or runner.get("type") != "process":
        return None
    if _well(runner, PROGRAM):
        found = pinned(actor, project, runner, PROGRAM)
        return found if isinstance(found, list) else {**_said(actor, found), **environment, "runner": found}
    return None


def _commanded(
    actor: Actor, project: str, environment: Mapping[str, Any], runner: Mapping[str, Any]
) -> dict[str, Any] | list[Problem] | None:
    """Return an environment whose command has the build of the package that it names, if it names one.

    A command is code that its submitter wrote, so the right is that of whoever adds packages.
    """
    if not actor.may(Scope.PACKAGES_WRITE, project):
        detail = f"A command runs what it says on hosts of the cluster, which needs packages:write in {project}."
        hint = "Ask an operator of the project, or name a program of a package: {type: process, package: ...}."
        return [Problem(pointer=f"{PROGRAM.where}/type", code="command_forbidden", detail=detail, hint=hint)]
    reference = runner.get("package", "")
    if not isinstance(reference, str) or "\0" in reference:
        return None  # types refuse it
    if not reference:
        return {**environment, "runner": {**runner, "pinned": PinnedBuild().model_dump()}}
    found = found_package(actor, project, reference, f"{PROGRAM.where}/package")
    if isinstance(found, Problem):
        return [found]
    pin = PinnedBuild(id=str(found.id), digest=found.digest).model_dump()
    return {**environment, "runner": {**runner, "pinned": pin}}


def _said(actor: Actor, runner: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a program says of its runs, for one that does not say it: seats, tasks, the highest reward."""
    offers = queries.find_package(actor, uuid.UUID(runner["pinned"]["id"])).manifest["programs"]
    offer = next(one for one in offers if one["name"] == runner["program"])
    return {name: offer[name] for name in SAID_BY_PROGRAMS if offer.get(name)}


def _well(named: Mapping[str, Any], part: NamedPart) -> bool:
    """Tell whether a package is named well enough to look for it; types refuse the rest."""
    texts = [named.get(name, "") for name in ("package", part.word)]
    well = all(isinstance(text, str) and "\0" not in text for text in texts)
    return well and isinstance(named.get("options", {}), Mapping)


def pinned(actor: Actor, project: str, named: Mapping[str, Any], part: NamedPart) -> dict[str, Any] | list[Problem]:
    """Return what names a package with its build, or the refusals."""
    found = found_package(actor, project, named.get("package", ""), f"{part.where}/package")
    if isinstance(found, Problem):
        return [found]
    offers = {one["name"]: one for one in found.manifest.get(part.offers, ())}
    chosen = chosen_offer(found, offers, named.get(part.word, ""), part.word, part.where)
    if isinstance(chosen, Problem):
        return [chosen]
    name, offer = chosen
    options = {**defaults(offer), **named.get("options", {})}
    if refused := list(refusals(offer["options"], options, part)):
        return refused
    pin = {"id": str(found.id), "digest": found.digest, **{key: offer[key] for key in part.kept if key in offer}}
    return {**named, part.word: name, "options": options, "pinned": pin}


def chosen_offer(
    package: Package, offers: Mapping[str, dict[str, Any]], name: str, word: str, where: str
) -> tuple[str, dict[str, Any]] | Problem:
    """Return which of a package's offers is named, the only one where none is, or the refusal of `where`/`word`."""
    name = name or (next(iter(offers)) if len(offers) == 1 else "")
    if (offer := offers.get(name)) is not None:
        return name, offer
    close = nearest(name, offers) if name else None
    hint = f"Did you mean {close}?" if close else f"It has {', '.join(list(offers)[:SHOWN]) or 'none'}."
    many = f"several {word}s" if offers else f"no {word}s"
    detail = f"{package} has no {word} {name}." if name else f"{package} has {many}."
    return Problem(pointer=f"{where}/{word}", code=f"unknown_{word}" if name else "required", detail=detail, hint=hint)


def defaults(offer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an environment that its schema gives a value."""
    properties = offer["options"].get("properties", {})
    return {name: node["default"] for name, node in properties.items() if "default" in node}


def refusals(schema: Mapping[str, Any], options: Mapping[str, Any], part: NamedPart) -> Iterator[Problem]:
    """Return what of some options a schema does not take, each with field, rule and legal value."""
    for number, error in enumerate(checker(dict(schema)).iter_errors(dict(options))):
        if number == MOST_PROBLEMS:
            return
        place = [str(part) for part in error.instance_path]
        hint = _legal(schema, place)
        yield Problem(
            pointer="/".join([f"{part.where}/options", *place]), code="invalid", detail=error.message[:300], hint=hint
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


def found_package(actor: Actor, project: str, reference: str, where: str) -> Package | Problem:
    """Return the package that a reference names, or the refusal of what stands at `where`."""
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
    return Problem(pointer=where, code="unknown_package", detail=detail, hint=hint)
