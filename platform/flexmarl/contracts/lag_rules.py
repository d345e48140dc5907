"""Which lag policies and redundancies can work together: one refusal per broken rule, with a legal value."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec

CARRIED = frozenset({"keep", "continue", "pause"})
"""Fates of surplus groups that take them into a later step."""


RESUMED = frozenset({"resume", "restart_turn"})
"""What can be done in flight with a reply that has left its engine."""


def broken_lag_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return every broken rule of the lag vector, of redundancy, and of both."""
    records: set[str] = set()
    for name in spec.policies:
        if _record(spec, name) not in records:  # one refusal of a record, however many policies share it
            records.add(_record(spec, name))
            yield from _policy(spec, name)
    yield from _ordered(spec)
    yield from _redundancy(spec)
    yield from _paused(spec)


def _record(spec: ExperimentSpec, policy: str) -> str:
    own = spec.policies[policy].lag_policy
    return "/mechanisms/lag_policy" if own is None else f"/policies/{policy}/lag_policy"


def _policy(spec: ExperimentSpec, name: str) -> Iterator[Problem]:
    lag, where = spec.lag_policy_of(name), _record(spec, name)
    if lag.bound == 0 and lag.in_flight != "finish":
        yield Problem(
            pointer=f"{where}/in_flight",
            code="needs_bound",
            detail=f"{lag.in_flight} lets newer weights continue running replies, which needs a bound of 1 or more; "
            f"the bound of {name} is 0.",
            hint="Set finish, or bound: 1.",
        )
    if lag.in_flight != "finish" and spec.mechanisms.publication.type != "cohort":
        yield Problem(
            pointer=f"{where}/in_flight",
            code="not_with_publication",
            detail=f"{spec.mechanisms.publication.type} pins the weights of a group before they exist, so its replies "
            f"cannot follow an update; in_flight of {name} is {lag.in_flight}.",
            hint="Set finish, or publication: cohort.",
        )
    if lag.at_admission == "trained" and (lag.bound == 0 or spec.mechanisms.publication.type != "cohort"):
        strict = lag.bound == 0
        what = "a bound of 1 or more" if strict else "publication: cohort"
        yield Problem(
            pointer=f"{where}/at_admission",
            code="needs_bound" if strict else "not_with_publication",
            detail=f"at_admission: trained counts groups in flight, which needs {what}; "
            f"{name} has {f'bound {lag.bound}' if strict else spec.mechanisms.publication.type}.",
            hint=f"Set admit, or {'bound: 1' if strict else what}.",
        )
    if lag.bound == 0 and lag.at_cut != "wait":
        yield Problem(
            pointer=f"{where}/at_cut",
            code="needs_bound",
            detail=f"At bound 0 no row of {name} is older than its step, so at_cut: {lag.at_cut} has no effect.",
            hint="Set wait, or bound: 1.",
        )


def _ordered(spec: ExperimentSpec) -> Iterator[Problem]:
    if not spec.mechanisms.ordered:
        return
    for name in spec.trainable_policies():
        if spec.lag_policy_of(name).bound > 0:
            yield Problem(
                pointer=f"{_record(spec, name)}/bound",
                code="ordered_is_on_policy",
                detail="Ordered runs are bitwise reproducible; with a bound above 0, weights depend on timing.",
                hint="Set 0, or ordered: false.",
            )
    if spec.mechanisms.redundancy.type != "none":
        yield Problem(
            pointer="/mechanisms/redundancy/type",
            code="ordered_is_on_policy",
            detail="Ordered runs are bitwise reproducible; which episodes are surplus depends on timing.",
            hint="Set none, or ordered: false.",
        )


def _redundancy(spec: ExperimentSpec) -> Iterator[Problem]:
    redundancy = spec.mechanisms.redundancy
    if redundancy.share and redundancy.type != "extra_groups":
        yield Problem(
            pointer="/mechanisms/redundancy/share",
            code="out_of_range",
            detail=f"share applies to extra_groups only; the type is {redundancy.type}.",
            hint="Set 0, or type: extra_groups.",
        )
    none = redundancy.type == "none"
    some = redundancy.extra > 0 or (redundancy.type == "extra_groups" and redundancy.share > 0)
    if none == some:
        yield Problem(
            pointer="/mechanisms/redundancy/extra",
            code="out_of_range",
            detail=f"{redundancy.type} with extra {redundancy.extra} is contradictory.",
            hint="Set 0, or type: extra_groups." if none else "Set 1 or more, or type: none.",
        )
    if redundancy.type == "extra_members" and redundancy.surplus != "cancel":
        yield Problem(
            pointer="/mechanisms/redundancy/surplus",
            code="members_are_cancelled",
            detail="A group is compared as a whole, so surplus members cannot continue after it.",
            hint="Set cancel.",
        )
    if redundancy.type == "extra_environments" and redundancy.surplus != "cancel":
        yield Problem(
            pointer="/mechanisms/redundancy/surplus",
            code="members_are_cancelled",
            detail="A member counts once, so the slower of its two environments is always cancelled.",
            hint="Set cancel.",
        )
    if redundancy.type == "extra_environments" and redundancy.extra > spec.batch.episodes_per_task:
        yield Problem(
            pointer="/mechanisms/redundancy/extra",
            code="out_of_range",
            detail=f"A group has {spec.batch.episodes_per_task} members, and no member has more than two environments.",
            hint=f"Set {spec.batch.episodes_per_task} or fewer.",
        )
    strict = [name for name in spec.trainable_policies() if spec.lag_policy_of(name).bound == 0]
    if redundancy.type == "extra_groups" and redundancy.surplus in CARRIED and strict:
        yield Problem(
            pointer="/mechanisms/redundancy/surplus",
            code="needs_bound",
            detail=f"Surplus trained in a later step needs a bound of 1 or more; that of {strict[0]} is 0.",
            hint=f"Set join or cancel, or bound: 1 in {_record(spec, strict[0])}.",
        )


def _paused(spec: ExperimentSpec) -> Iterator[Problem]:
    """Surplus that stands still needs a next step that waits for the weights, and replies that take these."""
    redundancy, trained = spec.mechanisms.redundancy, spec.trainable_policies()
    if redundancy.type != "extra_groups" or redundancy.surplus != "pause":
        return
    lags = {name: spec.lag_policy_of(name) for name in trained}
    if all(lag.bound for lag in lags.values()) and all(lag.at_admission != "trained" for lag in lags.values()):
        yield Problem(
            pointer="/mechanisms/redundancy/surplus",
            code="needs_trained",
            detail="Paused surplus continues when the next step begins, which is before this step is trained: "
            f"at_admission is {lags[trained[0]].at_admission}.",
            hint=f"Set continue, or at_admission: trained in {_record(spec, trained[0])}.",
        )
    other = next((name for name, lag in lags.items() if lag.bound and lag.in_flight not in RESUMED), None)
    if other is not None:
        yield Problem(
            pointer=f"{_record(spec, other)}/in_flight",
            code="not_with_pause",
            detail="Paused surplus leaves the engines with its tokens and continues with the newest weights; "
            f"in_flight of {other} is {lags[other].in_flight}.",
            hint="Set resume, or surplus: continue in /mechanisms/redundancy.",
        )
