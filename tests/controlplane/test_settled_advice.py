"""A verdict stays while the figures behind it hover at a threshold, and follows when they have left it."""

from itertools import pairwise

import pytest

from flexmarl.controlplane.telemetry.advisor.hysteresis import NEWEST, settled
from flexmarl.controlplane.telemetry.advisor.rules import AdviceVerdict, Facts, advise, verdict_of
from flexmarl.store.reads.advisor_inputs import SeriesEnds

REWARD = [0.4] * 60


def facts(useful: list[float], failed: list[float] | None = None) -> Facts:
    """A run that learns nothing, with these shares of useful groups, oldest first."""
    series = {"groups/useful": (useful, "share"), "reward/team": (REWARD[: len(useful)], "mean")}
    if failed is not None:
        series["episodes/failed"] = (failed, "sum")
    return Facts(
        status="running", now=100.0, status_since=0.0, last_event=99.9, episodes_per_step=16, optimum=1.0,
        series={
            (name, "", stat): SeriesEnds(1, name, "", stat, tuple(v[:20]), tuple(v[::-1][:NEWEST]), len(v))
            for name, (v, stat) in series.items()
        },
    )  # fmt: skip


def verdicts(values: list[float], judge) -> list[AdviceVerdict]:
    """The verdict after each of the newest steps, as visits between them would see it."""
    return [verdict_of(judge(facts(values[:upto]))) for upto in range(40, len(values) + 1)]


def changes(found: list[AdviceVerdict]) -> int:
    return sum(a is not b for a, b in pairwise(found))


HOVERING = [0.49, 0.51] * 15 + [0.3, 0.7, 0.7, 0.3] * 7
"""The mean of the last twenty crosses the threshold with every second step."""


def test_a_figure_at_its_threshold_does_not_change_the_verdict_with_every_step() -> None:
    assert changes(verdicts(HOVERING, advise)) > 6, "without settling it flips"
    assert changes(verdicts(HOVERING, settled)) <= 1


def test_what_lasts_is_said_and_what_is_over_goes() -> None:
    fell = [0.9] * 30 + [0.0] * 28
    assert verdicts(fell, settled)[-1] is AdviceVerdict.WATCH
    rose = [0.0] * 30 + [1.0] * 28
    assert verdicts(rose, settled)[-1] is AdviceVerdict.HEALTHY


def test_a_short_run_is_judged_by_what_there_is() -> None:
    assert verdict_of(settled(facts([0.0] * 12))) is AdviceVerdict.WATCH


def test_an_alarm_appears_at_once() -> None:
    failed = [0.0] * 39 + [160.0]
    assert verdict_of(settled(facts([0.9] * 40, failed))) is AdviceVerdict.DEGRADED


@pytest.mark.parametrize("values", [[0.0] * 20, [0.9] * 20, [0.0] * 40, [0.9] * 40])
def test_steady_figures_are_judged_as_one_look_judges_them(values) -> None:
    given = facts(values)
    assert [(one.rule, one.basis) for one in settled(given)] == [
        (one.rule, one.basis.replace("last 30", "last 20")) for one in advise(given)
    ]
