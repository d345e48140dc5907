"""Curves break where nobody told anything, and sentences say what the figures come to."""

import pytest

from flexmarl.contracts.engine_states import EngineDoubt, EngineState
from webui.figures import load as drawings
from webui.views import load_words as words

AGENTS = {"solver": {"hue": 1, "monogram": "S"}, "critic": {"hue": 2, "monogram": "C"}}


def point(at, running=0, waiting=0, skew=None):
    return {"at": at, "engines": 1, "running": running, "waiting": waiting, "longest": running + waiting, "skew": skew}


def asked(at, policy="solver", waiting=1, in_flight=2):
    return {"at": at, "policy": policy, "waiting": waiting, "in_flight": in_flight}


def policy(name="solver", waiting=0, in_flight=0, engines=1, slots=8):
    return {
        "policy": name, "roles": [name], "waiting": waiting, "in_flight": in_flight, "engines": engines, "slots": slots,
    }  # fmt: skip


def engine(state="active", suspect="", device="atlas.cpu0"):
    return {"state": state, "suspect": suspect, "device_id": device, "serves": [], "loading": []}


def load(**changes):
    usual = {
        "window": [0.0, 100.0], "part_s": 2.0, "live": True, "told": True, "queues": [], "asked": [], "longest": [],
        "policies": [policy(), policy("critic")], "engines": [engine()], "skew": None,
    }  # fmt: skip
    return {**usual, **changes}


def test_a_window_of_which_nobody_told_has_no_drawing() -> None:
    assert drawings.demand(load(), AGENTS) is None
    assert drawings.requests(load()) is None
    assert drawings.skew(load(queues=[point(1.0)])) is None


def test_a_curve_breaks_where_nobody_told_and_is_zero_where_nothing_was_asked() -> None:
    times = (10.0, 12.0, 14.0, 30.0, 32.0, 60.0)
    chart = drawings.demand(load(queues=[point(at) for at in times], asked=[asked(10.0), asked(12.0)]), AGENTS)
    solver, critic = chart.lines
    assert (solver.hue, solver.label, critic.label) == (1, "S 0", "C 0")
    assert [len(piece.split()) for piece in solver.pieces] == [3, 2]
    assert len(solver.dots) == 1, "a point alone"
    assert solver.pieces[0].split()[2].split(",")[1] == critic.pieces[0].split()[2].split(",")[1]
    assert chart.words == "solver: last 0, max 3; critic: last 0, max 0, in turns"
    assert [text for _, text in chart.x_ticks][-1] == "now"


def test_labels_never_cover_each_other() -> None:
    told = [asked(10.0), asked(10.0, "critic"), asked(12.0), asked(12.0, "critic")]
    chart = drawings.demand(load(asked=told), AGENTS)
    one, other = (line.label_y for line in chart.lines)
    assert abs(one - other) >= drawings.LABEL_APART


def test_skew_is_drawn_against_even() -> None:
    chart = drawings.skew(load(queues=[point(2.0, 4, skew=1.0), point(4.0, 9, skew=3.0), point(6.0)], live=False))
    assert chart.words == "skew up to 3.0, 1 is even"
    assert chart.bound_y > chart.lines[0].label_y - 4
    assert [text for _, text in chart.x_ticks][-1] == "end"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"live": False}, "The run has ended: engines receive no requests."),
        ({"engines": []}, "No engine yet: turns wait until the run has devices."),
        ({"engines": [engine("gone")]}, "No engine is left."),
        ({}, "1 engine, no requests now."),
        ({"policies": [policy(in_flight=3)]}, "Every turn is at an engine: 3 turns on 1 engine."),
        (
            {"policies": [policy(), policy("critic", waiting=1, engines=0)]},
            "critic waits: 1 turn, and no engine serves it.",
        ),
        (
            {"policies": [policy(waiting=5, in_flight=16, engines=2), policy("critic", waiting=1)]},
            "solver waits most: 5 turns for 2 engines, where 16 replies are being generated.",
        ),
    ],
)
def test_the_sentence_says_what_the_load_comes_to(changes, said) -> None:
    assert words.sentence(load(**changes)) == said


def test_what_is_uneven_or_doubted_is_added() -> None:
    assert words.detail(load(skew=1.2)) == ""
    doubted = [engine(suspect="node_silent"), engine(suspect="host_silent", device="b.cpu1")]
    text = words.detail(load(skew=2.14, engines=doubted, longest=[{"role": "solver", "age_s": 75.0}]))
    assert text == (
        "The busiest engine has 2.1 times the mean queue. 2 engines are suspect: atlas.cpu0, b.cpu1. "
        "The oldest turn, of solver, has waited 1 m 15 s."
    )


def test_every_state_and_doubt_has_words() -> None:
    assert list(words.ENGINE_STATES) == [state.value for state in EngineState]
    assert set(words.DOUBTS) == {doubt.value for doubt in EngineDoubt if doubt}
    assert words.look_of(engine())[2] == "Active"
    assert words.look_of(engine(suspect="host_silent"))[3].endswith("last known active")
    assert words.states_text({"gone": 2, "active": 1}) == "1 active, 2 gone"


def test_lists_are_narrowed_by_state_doubt_and_policy() -> None:
    served = {**engine(), "serves": [{"policy": "solver", "version": 3, "former_version": 2}]}
    loading = {**engine("syncing", "host_silent"), "loading": [{"policy": "solver", "version": 4}]}
    rows = [served, loading, engine("gone")]
    assert words.chosen(rows, "", "") == rows
    assert words.chosen(rows, "suspect", "") == [loading]
    assert words.chosen(rows, "active", "solver") == [served]
    assert words.chosen(rows, "", "solver") == [served, loading]
    assert words.version_text({**served, "loading": loading["loading"]}, "solver") == "v3, v2, loads v4"


@pytest.mark.parametrize("most", [1, 640, 12_800])
def test_there_is_room_beside_the_plot_for_its_longest_labels(most) -> None:
    chart = drawings.requests(load(queues=[point(10.0, most, most), point(12.0, most, most)]))
    letter = 6
    assert chart.left - 6 >= letter * max(len(text) for _, text in chart.y_ticks)
    assert drawings.WIDTH - chart.right - 4 >= letter * max(len(line.label) for line in chart.lines)
    assert chart.x_ticks[0][0] == chart.left
    assert chart.x_ticks[-1][0] == chart.right
