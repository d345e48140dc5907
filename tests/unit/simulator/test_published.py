"""Published tables: what they may declare, how rows are judged, and that a fit finds what is to be found."""

from math import log
from pathlib import Path

import pytest
from pydantic import ValidationError

from flexmarl.simulator.published import FigureCounts, PublishedTable, counted, load_tables, reproduce, total
from flexmarl.simulator.published.fitting import fit
from flexmarl.simulator.published.reproducing import ReproducedCell, compared, distance, placed, played, scenario_of
from flexmarl.simulator.published.table import PublishedParameter, _with_constants

DOCS = Path(__file__).parents[3] / "docs" / "simulator.md"
SCENARIO = {
    "spec": {
        "agents": {"solver": {}},
        "environment": {"type": "arithmetic"},
        "batch": {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 1},
        "resources": {"rollout_devices": 1, "training_devices": 1},
    },
    "workload": {"stages": [["solver"]], "each": {"prompt": 8, "reply": 10}},
    "steps": 2,
}
WAIT = {"value": 40.0, "source": "fitted", "note": "a wait", "paths": {"workload.environment.mean": 1.0}}


def table(**changes: object) -> PublishedTable:
    document = {
        "title": "A table",
        "source": "nowhere",
        "scenario": SCENARIO,
        "parameters": {"wait": WAIT | {"between": (1.0, 500.0), "fitted_on": ("slow",)}},
        "rows": {
            "slow": {"title": "sync", "preset": "sync", "published": 102.0},
            "fast": {"title": "other", "preset": "sync", "published": 2.0, "over": "slow",
                     "changes": {"workload": {"environment": {"mean": 19.0}}}},
        },
    }  # fmt: skip
    return PublishedTable.model_validate(document | changes)


def test_a_fit_finds_the_wait_that_makes_its_row_right():
    own = table()
    found = fit(own, rounds=40)
    outcome = reproduce(own, found)
    assert found["wait"] == pytest.approx(100.0, rel=0.05)
    assert outcome.cells["slow"].simulated == pytest.approx(102.0, rel=0.01)
    assert outcome.cells["slow"].standing == "fitted"
    assert counted(own) == FigureCounts(figures=2, fitted=1, taken_over=0, chosen=0, free=1)


def test_a_gain_is_the_others_time_over_ones_own():
    cells = reproduce(table(), {"wait": 40.0}).cells
    assert cells["fast"].simulated == pytest.approx(cells["slow"].simulated / 21.0, rel=0.1)
    assert cells["fast"].standing == "reached"


def test_other_figures_of_a_row_are_judged_alone():
    rows = {"only": {"title": "sync", "preset": "sync", "published": None,
                     "beside": {"lag": 3.0, "length_ratio": 1.0}}}  # fmt: skip
    own = table(rows=rows, parameters={})
    found = reproduce(own)
    assert found.cells["only.length_ratio"].standing == "reached"
    assert found.failed == ("only.lag",)
    assert counted(own).free == 2


def test_a_row_out_of_reach_fails_unless_it_says_why_and_is_missed():
    rows = {"only": {"title": "sync", "preset": "sync", "published": 7.0}}
    missed = reproduce(table(rows=rows, parameters={}))
    assert missed.failed == ("only",)
    why = {"misses": {"step_s": "its parts add up to more"}}
    for own in (table(rows={"only": rows["only"] | why}, parameters={}), table(rows=rows, parameters={}, kind="again")):
        told = reproduce(own)
        assert (told.failed, told.cells["only"].standing) == ((), "missed")


def test_a_range_is_reached_within_it_alone():
    base = {"base": {"title": "sync", "preset": "sync", "published": None}}
    gain = {"title": "other", "preset": "sync", "over": "base"}
    rows = base | {"in": gain | {"published": [0.9, 1.1]}, "under": gain | {"published": [1.01, 1.5]}}
    own = table(rows=rows, parameters={})
    found = reproduce(own)
    assert (found.cells["in"].standing, found.cells["in"].error) == ("reached", 0.0)
    assert found.failed == ("under",)
    assert found.cells["under"].error == pytest.approx(1.0 / 1.01 - 1.0)
    with pytest.raises(ValidationError, match="nothing is published to fit on: in"):
        table(rows=rows, parameters={"wait": WAIT | {"between": (1.0, 2.0), "fitted_on": ("in",)}})


def test_ratios_are_judged_beside_figures_and_a_fit_excuses_none():
    slow, fast = table().rows["slow"], {"workload": {"environment": {"mean": 19.0}}}
    rows = {"slow": slow, "fast": {"title": "other", "preset": "sync", "published": 24.0, "changes": fast}}
    wait = WAIT | {"between": (1.0, 500.0), "fitted_on": ("slow", "fast")}
    own = table(rows=rows, parameters={"wait": wait}, ratios_over="slow")
    right, wrong = reproduce(own, {"wait": 100.0}), reproduce(own, {"wait": 40.0})
    assert list(right.ratios) == ["fast"]
    assert right.ratios["fast"].published == pytest.approx(24.0 / 102.0)
    assert (right.ratios["fast"].standing, right.failed) == ("fitted", ())
    assert wrong.cells["fast"].standing == "fitted"
    assert wrong.failed == ("fast (ratio)",)


def test_gains_of_other_figures_are_over_the_row_that_ratios_are_over():
    rows = {
        "slow": {"title": "sync", "preset": "sync", "published": None},
        "fast": {"title": "other", "preset": "sync", "published": None, "gains": {"rows_s": [4.5, 5.5]},
                 "changes": {"workload": {"environment": {"mean": 19.0}}}},
    }  # fmt: skip
    found = reproduce(table(rows=rows, parameters={}, ratios_over="slow", scenario=SCENARIO | {
        "workload": SCENARIO["workload"] | {"environment": {"mean": 100.0}}}))  # fmt: skip
    assert (found.cells["fast.rows_s"].standing, found.ratios) == ("reached", {})
    with pytest.raises(ValidationError, match="fast has gains, and nothing that they are over"):
        table(rows=rows, parameters={})


def test_a_price_of_what_is_held_is_of_every_device_once():
    """One engine and one trainer; on devices that both share there is one to pay."""
    own = table(parameters={}, figure="tokens_price")
    apart = own.rows["slow"].model_copy(update={"engine_price": 0.25})
    shared = apart.model_copy(update={"preset": "colocated"})
    for row, price in ((apart, 1.25), (shared, 1.0)):
        figures = played(own, row, {})[0]
        assert figures["tokens_price"] * price == pytest.approx(figures["tokens_s"], rel=1e-5)


def test_figures_are_counted_once_and_ones_own_not_at_all():
    rows = {
        "slow": {"title": "sync", "preset": "sync", "published": 1.0},
        "same": {"title": "the same simulation", "preset": "sync", "published": 2.0, "beside": {"lag": 0.0}},
    }
    taken = WAIT | {"source": "taken_over"}
    own = table(rows=rows, parameters={"wait": taken, "load": WAIT | {"source": "chosen"}}, chosen={"split": "seen"})
    assert counted(own) == FigureCounts(figures=2, fitted=0, taken_over=1, chosen=2, free=0)
    others = [own.model_copy(update={"kind": kind}) for kind in ("own", "again", "sought")]
    assert total([own, *others]) == counted(own)
    assert load_tables()["lag"].kind == "own"


def test_the_documentation_has_the_counts_of_every_table():
    """As `manage.py reproduce` prints them."""
    shown = {}
    for line in DOCS.read_text("utf-8").partition("## Published tables")[2].splitlines():
        name, *numbers = [cell.strip(" `") for cell in line.split("|")[1:-2]] or [""]
        if len(numbers) == 5 and numbers[0].isdigit():
            shown[name] = FigureCounts(*map(int, numbers))
    made = {name: counted(own) for name, own in load_tables().items()}
    assert shown == made | {"published, in sum": total(load_tables().values())}


@pytest.mark.parametrize("name", load_tables())
def test_a_table_whose_rows_are_anothers_is_not_counted_again(name: str):
    own = load_tables()[name]
    assert (own.kind == "again") == (bool(own.lies_over) and own.rows == load_tables()[own.lies_over].rows)


def test_a_row_without_a_figure_of_its_own_is_only_compared_with():
    rows = {
        "base": {"title": "sync", "preset": "sync", "published": None},
        "gain": {"title": "other", "preset": "sync", "published": 1.0, "over": "base"},
    }
    own = table(rows=rows, parameters={})
    assert (list(reproduce(own).cells), counted(own).free) == (["gain"], 1)
    with pytest.raises(ValidationError, match="nothing is published to fit on: base"):
        table(rows=rows, parameters={"wait": WAIT | {"between": (1.0, 2.0), "fitted_on": ("base",)}})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"parameters": {"wait": WAIT}}, "say where a fit looks"),
        ({"parameters": {"wait": WAIT | {"source": "assumed", "between": (1, 2)}}}, "say where a fit looks"),
        ({"parameters": {"wait": WAIT | {"between": (1, 2), "fitted_on": ("none",)}}}, "rows that do not exist: none"),
        ({"rows": {"a": {"title": "a", "preset": "sync", "published": 1.0, "over": "b"}}}, "rows that do not exist"),
        ({"ratios_over": "b"}, "rows that do not exist: b"),
        ({"rows": {}}, "a table has rows, or lies over one that has"),
        (
            {
                "parameters": {},
                "rows": {"a": {"title": "a", "preset": "sync", "published": 1.0, "misses": {"lag": "no"}}},
            },
            "a says why figures are missed that it does not have: lag",
        ),
    ],
)
def test_what_a_table_may_not_declare(changes: dict[str, object], text: str):
    with pytest.raises(ValidationError, match=text):
        table(**changes)


def test_what_all_rows_set_lies_over_presets_and_under_rows():
    rows = {
        "own": {"title": "own", "preset": "sync", "published": 1.0,
                "changes": {"spec": {"mechanisms": {"parallel": {"members": 1}}}}},
        "all": {"title": "all", "preset": "mas_rl", "published": 1.0},
    }  # fmt: skip
    shared = {"spec": {"mechanisms": {"parallel": {"members": 2, "episodes": 7}, "trainer_protocol": "per_group"}}}
    made = table(rows=rows, parameters={}, over_presets=shared)
    own, every = (scenario_of(made, row).spec.mechanisms for row in made.rows.values())
    assert (own.parallel.members, own.parallel.episodes, every.parallel.members) == (1, 7, 2)
    assert own.trainer_protocol == every.trainer_protocol == "per_group"
    assert every.parallel.agents == 1, "what the table does not set is the preset's"


def test_what_is_sought_is_reached_by_any_more_and_by_no_less():
    rows = {
        "slow": {"title": "slow", "preset": "sync", "published": None},
        "more": {"title": "more", "preset": "sync", "published": 1.5, "over": "slow",
                 "changes": {"workload": {"environment": {"mean": 1.0}}}},
        "less": {"title": "less", "preset": "sync", "published": 1.01, "over": "slow"},
    }  # fmt: skip
    cells = reproduce(table(kind="sought", parameters={"wait": WAIT | {"source": "assumed"}}, rows=rows)).cells
    assert cells["more"].simulated > 2.0
    assert (cells["more"].standing, cells["less"].standing) == ("reached", "failed")


@pytest.mark.parametrize("team", ["ma", "ca"])
def test_a_table_that_lies_over_another_has_its_scenario_and_parameters(team: str):
    own, under = load_tables()[f"beyond_{team}"], load_tables()[f"flexmarl_{team}"]
    assert own.scenario["workload"] == under.scenario["workload"]
    assert {name: one.value for name, one in own.parameters.items()} == {
        n: o.value for n, o in under.parameters.items()
    }
    assert not own.fitted()
    for row in own.rows.values():
        made = scenario_of(own, row)
        assert made.spec.resources.rollout_devices + made.spec.resources.training_devices == 24
        assert (made.spec.batch.tasks_per_step, made.spec.batch.episodes_per_task) == (64, 16)
        assert made.spec.mechanisms.redundancy.type == "none"
        assert (made.steps, made.warm_up) == (4, 2)


@pytest.mark.parametrize(("name", "best"), [("beyond_ma", "best_on_policy"), ("beyond_ca", "searched")])
def test_what_was_found_gains_on_one_step_too(name: str, best: str):
    own = load_tables()[name]
    short = own.model_copy(update={"scenario": own.scenario | {"steps": 1, "warm_up": 1}, "seeds": 1})
    before, found = (played(short, own.rows[row], {})[0] for row in ("flexmarl", best))
    assert before["step_s"] > 1.5 * found["step_s"]
    assert found["length_ratio"] >= 0.98


@pytest.mark.parametrize("name", load_tables())
def test_fitted_values_lie_where_the_fit_looks(name: str):
    for own in load_tables()[name].parameters.values():
        assert own.between is None or own.between[0] <= own.value <= own.between[1]


@pytest.mark.parametrize(("name", "row"), [(name, row) for name, own in load_tables().items() for row in own.rows])
def test_every_row_is_a_run_that_rules_allow(name: str, row: str):
    own = load_tables()[name]
    assert scenario_of(own, own.rows[row]).spec.agents


@pytest.mark.parametrize(
    ("row", "figure", "least", "most"),
    [
        ("credit2_06", "lag", 1.9, 2.1),
        ("credit2_06", "lag_max", 6.0, 20.0),
        ("wait2_06", "lag_max", 2.0, 2.0),
        ("drop2_06", "lag_max", 2.0, 2.0),
        ("drop2_06", "length_ratio", 0.5, 0.7),
    ],
)
def test_what_a_bound_bounds(row: str, figure: str, least: float, most: float):
    """A short play of the table of lag bounds: credit bounds the mean, waiting and dropping the largest."""
    own = load_tables()["lag"]
    short = own.model_copy(update={"scenario": own.scenario | {"warm_up": 10, "steps": 12}})
    assert least <= played(short, own.rows[row], {})[0][figure] <= most


def test_a_gain_in_what_is_better_when_more_is_ones_own_over_the_others():
    own = table(figure="tokens_s", rows={
        "slow": {"title": "sync", "preset": "sync", "published": 1.0},
        "fast": {"title": "other", "preset": "sync", "published": 2.0, "over": "slow"},
    })  # fmt: skip
    assert compared(own, own.rows["fast"], {"slow": 10.0, "fast": 25.0}, "fast") == 2.5
    assert compared(table(), own.rows["fast"], {"slow": 10.0, "fast": 2.5}, "fast") == 4.0


def test_an_error_is_the_share_by_which_the_simulated_figure_differs():
    assert ReproducedCell(100.0, 120.0, "missed").error == pytest.approx(0.2)
    assert ReproducedCell(100.0, 80.0, "missed").error == pytest.approx(-0.2)


def test_how_far_rows_are_off_is_the_worst_or_the_mean_square():
    cells = {"a": ReproducedCell(100.0, 110.0, "fitted"), "b": ReproducedCell(100.0, 70.0, "fitted")}
    assert distance(table(criterion="worst"), cells, ("a", "b")) == pytest.approx(0.3)
    assert distance(table(), cells, ("a", "b")) == pytest.approx((log(1.1) ** 2 + log(0.7) ** 2) / 2)


def test_seeds_play_other_replies_and_all_count():
    load = SCENARIO | {"workload": {"stages": [["solver"]], "each": {"reply": {"median": 50, "sigma": 1.0}}}}
    own = table(seeds=2, scenario=load, parameters={})
    one, other = (figures["step_s"] for figures in played(own, own.rows["slow"], {}))
    assert one != other


def test_a_whole_parameter_is_rounded_where_it_is_used():
    paths = {"spec.batch.tasks_per_step": 1.0, "machine.engine.slots": 2.0}
    own = PublishedParameter(value=3.4, source="assumed", note="n", paths=paths, whole=True)
    assert placed(own, 3.4) == {"spec": {"batch": {"tasks_per_step": 3}}, "machine": {"engine": {"slots": 7}}}


def test_constants_are_taken_over_as_given_and_ones_own_stand():
    constant = WAIT | {"between": (1.0, 500.0), "fitted_on": ("slow",)}
    base = table(parameters={"wait": constant, "other": constant | {"value": 7.0}})
    mine = table(constants_of="base", parameters={"wait": constant | {"value": 9.0}})
    found = _with_constants(mine, {"base": base}).parameters
    assert (found["wait"].value, found["wait"].source) == (9.0, "fitted")
    assert (found["other"].value, found["other"].source, found["other"].between) == (7.0, "taken_over", None)
    assert found["other"].fitted_on == ()


def test_a_row_that_is_left_out_is_not_fitted_on():
    assert fit(table(), rounds=4, without="slow") == {}
