"""Engines that serve one version at a time: one refusal per broken rule, with a legal value."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec

_TWO = "engine_versions: 2 in /resources"


def serving_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return every broken rule of how many versions an engine serves."""
    if spec.resources.engine_versions == 1:
        yield from _lag(spec)
        yield from _mechanisms(spec)


def _lag(spec: ExperimentSpec) -> Iterator[Problem]:
    """Engines that change weights each at its own time need groups of several versions, each made by one."""
    for name in spec.trainable_policies():
        lag = spec.lag_policy_of(name)
        where = spec.lag_policy_pointer(name)
        if lag.bound == 0:
            yield Problem(
                pointer=f"{where}/bound",
                code="needs_bound",
                detail="With one version per engine, groups of several versions are played at once; the bound of "
                f"{name} is 0.",
                hint=f"Set 1 or more, or {_TWO}.",
            )
        elif lag.in_flight != "finish":
            yield Problem(
                pointer=f"{where}/in_flight",
                code="not_with_one_version",
                detail="An engine that serves one version finishes its groups before it loads another; in_flight of "
                f"{name} is {lag.in_flight}.",
                hint=f"Set finish, or {_TWO}.",
            )


def _mechanisms(spec: ExperimentSpec) -> Iterator[Problem]:
    mechanisms, resources = spec.mechanisms, spec.resources
    refused = (
        (
            "/mechanisms/publication/type",
            mechanisms.publication.type != "cohort",
            f"{mechanisms.publication.type} pins the weights of a group before an engine has them.",
            "cohort",
        ),
        (
            "/mechanisms/allocation/type",
            mechanisms.allocation.type == "colocated",
            "Engines that share devices with trainers load newer weights together, when they wake.",
            "agent_centric",
        ),
        (
            "/resources/engine_policies",
            resources.has_places(len(spec.policies)),
            "An engine that plays a group to its end must hold every policy of the group.",
            "null",
        ),
    )
    for pointer, broken, detail, value in refused:
        if broken:
            yield Problem(pointer=pointer, code="not_with_one_version", detail=detail, hint=f"Set {value}, or {_TWO}.")
