"""Asking a cluster in memory for verbs, and reading what became of them."""

import itertools

from flexmarl.contracts import events as e
from flexmarl.contracts.events import PauseMode, Verb
from tests.unit.orchestrator.fake_cluster import make_spec, running

ASKED = itertools.count(1)


def ask(cluster, verb, **options):
    """Ask for a verb under an operation and a request of its own."""
    number = next(ASKED)
    options = {"actor": "ada", "operation": f"op-{number}", "cause": f"req-{number}", **options}
    return cluster.tell(e.RunVerb(verb=verb, **options))


def freeze(cluster, hold_s=None):
    return ask(cluster, Verb.PAUSE, mode=PauseMode.FREEZE, hold_s=hold_s)


def until(cluster, status):
    return cluster.run(until=lambda x: x.status is status)


def deliver_all(cluster):
    """Take the facts that are told already, as the driver takes them before a later verb."""
    while cluster.inbox:
        cluster.deliver(0)


def attempts(cluster):
    return [change for d in cluster.decisions for change in d.attempts]


def outcomes(cluster):
    return [outcome for d in cluster.decisions for outcome in d.outcomes]


def account(cluster):
    state, episodes = cluster.core.state, cluster.core.state.totals.train_episodes
    assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
    assert state.totals.samples_trained == len(cluster.trained)
    for policy, history in cluster.versions.items():
        assert state.policies[policy].version == len(history) - 1


def in_mid_cohort(seed=1, **spec):
    """A run with settled and unsettled groups, and gradients already accumulated."""
    return running(make_spec(**spec), seed=seed).run(
        until=lambda x: (
            x.core.state.cohort is not None
            and 0 < len(x.core.state.cohort.open) < 5
            and any(own.accumulated for own in x.core.state.cohort.policies.values())
        )
    )


def quiet(cluster):
    """Tell whether nothing can happen until somebody asks for something."""
    possible = any(cluster.possible(numbered.command) for numbered in cluster.open.values())
    return cluster.deadline is None and not cluster.inbox and not possible
