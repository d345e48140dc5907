"""Which lag policies can work: one refusal per broken rule, with a legal value."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec


def broken_lag_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return every broken rule of the lag vector."""
    records: set[str] = set()
    for name in spec.policies:
        if spec.lag_policy_pointer(name) not in records:  # one refusal of a record, however many policies share it
            records.add(spec.lag_policy_pointer(name))
            yield from _policy(spec, name)
    yield from _abandoning(spec)
    yield from _ordered(spec)


def _policy(spec: ExperimentSpec, name: str) -> Iterator[Problem]:
    lag, where = spec.lag_policy_of(name), spec.lag_policy_pointer(name)
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


def _abandoning(spec: ExperimentSpec) -> Iterator[Problem]:
    """Episodes are given up for what the cut would remove, and only where that leaves nothing to train."""
    trained = spec.trainable_policies()
    giving_up = [name for name in trained if spec.lag_policy_of(name).at_turn == "abandon"]
    where = {name: f"{spec.lag_policy_pointer(name)}/at_turn" for name in giving_up}
    told: set[str] = set()
    for name in giving_up:
        rule = spec.lag_policy_of(name)
        if rule.at_cut not in ("drop", "refresh") and where[name] not in told:
            told.add(where[name])
            yield Problem(
                pointer=where[name],
                code="needs_sweep",
                detail=f"abandon gives up what the cut would remove; at_cut of {name} is {rule.at_cut}, so its rows "
                "are trained however old they are, or waited for.",
                hint="Set play, or at_cut: drop.",
            )
    others = [name for name in trained if name not in giving_up]
    if giving_up and others:
        yield Problem(
            pointer=where[giving_up[0]],
            code="needs_every_policy",
            detail=f"An episode is given up only when none of its rows can be trained; those of {others[0]}, whose "
            "at_turn is play, always count as trainable.",
            hint=f"Set play, or at_turn: abandon for {others[0]} too.",
        )
    if giving_up and spec.batch.incomplete_group == "score":
        yield Problem(
            pointer=where[giving_up[0]],
            code="not_with_scored_failures",
            detail="incomplete_group: score gives members without a result a score, and an abandoned episode says "
            "nothing about its task.",
            hint="Set play, or batch.incomplete_group: drop_group.",
        )
    controller = spec.sampling.branch_controller
    if giving_up and (controller.branches or controller.continuations(spec.batch.episodes_per_task)):
        yield Problem(
            pointer=where[giving_up[0]],
            code="not_with_branches",
            detail="The members of a group that branches share one episode, or continue those of others, which end for "
            "all of them or for none.",
            hint="Set play, or sampling.branch_controller: none.",
        )


def _ordered(spec: ExperimentSpec) -> Iterator[Problem]:
    mechanisms = spec.mechanisms
    same_lag = mechanisms.publication.type == "delayed" and mechanisms.trainer_protocol != "mini_batch"
    if not mechanisms.ordered or same_lag:
        return
    for name in spec.trainable_policies():
        if spec.lag_policy_of(name).bound > 0:
            yield Problem(
                pointer=f"{spec.lag_policy_pointer(name)}/bound",
                code="ordered_is_on_policy",
                detail="Ordered runs are bitwise reproducible; with a bound above 0, weights depend on timing, unless "
                "every cohort plays those of one step before.",
                hint="Set 0, or publication: delayed, or ordered: false.",
            )
