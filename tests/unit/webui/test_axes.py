"""The axis switch: where points of figures and marks lie, and what stays by step."""

import pytest

from webui.figures import axes, learning, matrix, pace, steps
from webui.figures.base import Agent, SeriesSet

AGENTS = [Agent("solver", "solver", 1, "S"), Agent("critic", "critic", 2, "C")]
MARKS = {
    "attempts": [{"no": 2, "step": 4, "verb": "resume"}, {"no": 3, "step": 90, "verb": "retry"}],
    "checkpoints": [{"step": 3, "labels": ["best", "periodic"]}, {"step": 77, "labels": ["last"]}],
}


def row(name, ys, agent="", stat="mean", x=None):
    return {"name": name, "agent": agent, "stat": stat, "x": x or [float(i + 1) for i in range(len(ys))], "y": ys}


def series(strength=1.0):
    ys = [0.1 * i for i in range(10)]
    rows = [row("reward/team", ys), row("time/step", [2.0] * 10)]
    rows += [row("throughput/tokens", [100.0 + i for i in range(10)], agent=a.role) for a in AGENTS]
    return SeriesSet(rows, strength)


BY_STEP = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0], [0.0] * 10)


def test_time_counts_from_the_start_in_a_unit_that_fits():
    minutes = axes.axis_of("time", BY_STEP, ([1000.0 + 60 * i for i in range(10)], []), 1000.0)
    assert minutes.word == "time since the start, min"
    assert (minutes.place(1), minutes.place(10), minutes.place(1.5)) == (0, 9, 0.5)
    seconds = axes.axis_of("time", BY_STEP, ([1000.0 + i for i in range(10)], []), None)
    assert (seconds.word, seconds.place(3)) == ("time since the start, s", 2)
    assert axes.axis_of("version", BY_STEP, ([], []), None).place(7) == 7


def test_beyond_the_known_steps_the_axis_goes_on():
    axis = axes.axis_of("samples", BY_STEP, ([8.0 * i for i in range(1, 11)], []), None)
    assert axis.place(12) == pytest.approx(96)
    assert axis.place(0) == pytest.approx(0)


def test_a_figure_moves_with_its_range_marks_and_table():
    axis = axes.axis_of("samples", BY_STEP, ([8.0 * i for i in range(1, 11)], []), None)
    plain = axes.marked(learning.team_reward(series()), MARKS)
    figure = axes.moved(plain, axis)
    assert figure.data[0]["x"] == [8.0 * i for i in range(1, 11)]
    assert figure.layout["xaxis"]["range"][0] == 8
    assert [shape["x0"] for shape in figure.layout["shapes"]] == [36]
    assert figure.table.columns[:2] == ["step", "samples"]
    assert figure.table.rows[4][:2] == [5, 40.0]
    assert plain.table.columns[:2] == ["step", "mean"]
    assert axes.moved(plain, axes.Axis()) == plain


def test_samples_are_whole_too_and_time_is_not():
    one = learning.team_reward(SeriesSet([row("reward/team", [0.1])]))
    many = learning.team_reward(SeriesSet([row("reward/team", [0.1] * 11)]))
    steps, samples = [float(n) for n in range(1, 12)], [64.0 * n for n in range(1, 12)]
    assert axes.moved(many, axes.Axis("samples", "samples", steps, samples)).layout["xaxis"]["dtick"] == 200
    assert "dtick" not in axes.moved(many, axes.Axis("time", "time since the start, s", steps, samples)).layout["xaxis"]
    alone = axes.moved(one, axes.Axis("samples", "samples", [1.0], [64.0])).layout["xaxis"]
    assert (alone["dtick"], "range" in alone) == (1, False)


def test_staleness_has_no_steps_to_move():
    figure = pace.staleness(SeriesSet([row("staleness/own_max", [0.0], "solver", "max")]), AGENTS, 0)
    axis = axes.axis_of("samples", BY_STEP, ([8.0 * i for i in range(1, 11)], []), None)
    assert axes.moved(axes.marked(figure, MARKS), axis) == figure


def test_attempts_outside_a_chart_are_not_drawn_and_checkpoints_are_said():
    figure = axes.marked(learning.team_reward(series()), MARKS)
    texts = [note["text"] for note in figure.layout["annotations"]]
    assert "attempt 2" in texts
    assert "attempt 3" not in texts
    kept = [note for note in figure.layout["annotations"] if note["text"] == "▾"]
    assert kept[0]["hovertext"] == "checkpoint best, periodic, step 3"


def test_smoothing_can_be_off_and_stronger():
    values = [0.0, 1.0] * 200
    off, usual, strong = (SeriesSet([], s).soft(values) for s in (0.0, 1.0, 2.0))
    assert off == values
    spread = [max(found[-40:]) - min(found[-40:]) for found in (off, usual, strong)]
    assert spread[0] > spread[1] > spread[2] > 0


def test_rates_are_drawn_per_agent_with_labels_that_do_not_touch():
    figure = pace.throughput(series(), AGENTS)
    assert [trace["name"] for trace in figure.data] == ["solver", "critic"]
    low, high = sorted(note["yshift"] for note in figure.layout["annotations"])
    assert high - low >= 10
    assert pace.throughput(SeriesSet([]), AGENTS, "samples").empty


def test_a_metric_nobody_wrote_is_left_out_of_the_matrix():
    found = matrix.matrix(SeriesSet([row("train/clipped", [0.1], "solver", "share")]), AGENTS, matrix.STABILITY)
    assert [line["name"] for line in found["rows"]] == ["train/clipped"]
    nothing = matrix.matrix(SeriesSet([]), AGENTS, matrix.STABILITY)
    assert len(nothing["rows"]) == len(matrix.STABILITY)


def test_the_step_bar_carries_checkpoints_and_attempts():
    bar = steps.step_bar(series(), marks=MARKS)
    assert bar is not None
    assert bar.kept == [(24.4, "checkpoint best, periodic")]
    assert bar.begun == [(40.0, "attempt 2")]
