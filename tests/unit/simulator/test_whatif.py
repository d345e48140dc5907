"""What a change would have done: by hand-made replays, of which every figure of the advice can be worked out."""

from types import SimpleNamespace
from typing import Any

import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.prediction.whatif import FIRST, OLDER, Alternative, advice, alternatives, changed, ranked
from flexmarl.simulator.reporting.report import CAUSES, USES

CHANGE = Alternative("one", {"mechanisms.trainer_protocol": "batch"})


def report(tokens_s: float, step_s: float = 10.0, tail: float = 0.0, **own: Any) -> Any:
    idle = {use: dict.fromkeys(CAUSES, 0.0) for use in USES}
    idle["engine"]["tail"] = tail
    return SimpleNamespace(
        tokens_s=tokens_s, step_s=step_s, idle=idle, lag=own.get("lag", {}), swaps=own.get("swaps", 0),
        trained_share=own.get("trained_share", 1.0),
    )  # fmt: skip


def told(base: list[Any], other: list[Any], actual: float = 10.0) -> dict[str, Any]:
    return advice(CHANGE, base, other, actual)


def spec(**mechanisms: Any) -> ExperimentSpec:
    return resolve({"mechanisms": mechanisms}, preset="flexmarl", template="reference_game").spec


def test_a_gain_is_the_time_per_token_that_is_saved():
    found = told([report(100.0)], [report(125.0)])
    assert (found["gain_least"], found["gain"], found["gain_most"]) == pytest.approx((0.2, 0.2, 0.2))
    assert told([report(100.0)], [report(80.0)])["gain"] == pytest.approx(-0.25)


def test_what_the_replay_does_not_explain_is_shortened_by_nothing():
    found = told([report(100.0)], [report(125.0)], actual=20.0)
    assert (found["gain_least"], found["gain"], found["gain_most"]) == pytest.approx((0.1, 0.15, 0.2))


def test_what_the_replay_takes_too_long_may_be_all_that_seems_to_be_saved():
    """Two of ten seconds are saved in a replay; the run took nine, or five."""
    found = told([report(100.0)], [report(125.0)], actual=9.0)
    assert (found["gain_least"], found["gain_most"]) == pytest.approx((1.0 / 9.0, 0.2), abs=1e-4)
    none = told([report(100.0)], [report(125.0)], actual=5.0)
    assert (none["gain_least"], none["gain_most"], none["worth"]) == (0.0, pytest.approx(0.2), False)
    lost = told([report(100.0)], [report(80.0)], actual=5.0)
    assert (lost["gain_least"], lost["gain_most"]) == pytest.approx((-0.25, -0.25)), "of the replay, which is longer"


def test_worth_a_try_is_what_gains_at_its_lower_end():
    assert told([report(100.0)] * 2, [report(125.0), report(103.0)])["worth"]
    assert not told([report(100.0)] * 2, [report(125.0), report(101.0)])["worth"]


def test_the_reason_is_what_shrinks_most_and_none_where_nothing_does():
    found = told([report(100.0, tail=0.5)], [report(125.0, step_s=8.0, tail=0.25)])
    assert found["why"].startswith("engines: ")
    assert found["why"].endswith("5.00 s a step become 2.00 s")
    assert told([report(100.0)], [report(90.0, tail=0.5)])["why"] == "no idle time shrinks"


def test_costs_are_named_where_they_grow():
    base = report(100.0, lag={"a": 0.0}, swaps=2)
    found = told([base], [report(120.0, lag={"a": 1.0}, swaps=4, trained_share=0.9)])["costs"]
    assert found == [
        "lag grows from 0.00 to 1.00 versions",
        "10.0 % of the generated tokens are not trained by the end of the replay, from 0.0 %",
        "4 swaps in the window, from 2",
    ]
    assert told([report(100.0, swaps=4, trained_share=0.9)], [base])["costs"] == []


def test_the_best_comes_first():
    assert [one["gain"] for one in ranked([{"gain": 0.1}, {"gain": 0.3}, {"gain": -0.2}])] == [0.3, 0.1, -0.2]


def test_offered_is_what_the_run_does_not_do_already():
    strict = [one.name for one in alternatives(spec())]
    assert "lag bound 1" in strict
    assert "lag bound 0" not in strict
    assert [name for name in strict if name.startswith("redundancy extra_members ")]
    loose = [one.name for one in alternatives(spec(lag_policy={"bound": 2}))]
    assert {"lag bound 3", "lag bound 0"} <= set(loose)
    spare = [one.name for one in alternatives(spec(redundancy={"type": "extra_environments", "extra": 1}))]
    assert "no redundancy" in spare
    (none,) = [one for one in alternatives(spec(redundancy={"type": "extra_groups", "extra": 2, "surplus": "join"}))
               if one.name == "no redundancy"]  # fmt: skip
    without = changed(spec(redundancy={"type": "extra_groups", "extra": 2, "surplus": "join"}), none)
    assert isinstance(without, ExperimentSpec)
    assert without.mechanisms.redundancy.type == "none"
    assert not [name for name in spare if name.startswith("redundancy ")]


def test_what_changes_which_rows_are_trained_is_told():
    told = {one.name.rsplit(" ", 1)[0]: one.semantics for one in alternatives(spec())}
    assert told["redundancy extra_members"] == told["redundancy extra_groups"] == FIRST
    assert told["redundancy extra_environments"] == ""
    assert told["lag bound"] == OLDER


def test_a_change_is_laid_over_the_run_or_refused():
    made = changed(spec(), CHANGE)
    assert isinstance(made, ExperimentSpec)
    assert made.mechanisms.trainer_protocol == "batch"
    refused = changed(spec(), Alternative("later", {"mechanisms.publication.type": "delayed"}))
    assert not isinstance(refused, ExperimentSpec)
    assert refused[0].pointer == "/mechanisms/lag_policy/bound"
