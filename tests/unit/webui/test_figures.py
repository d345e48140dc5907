"""Charts from rows: what is drawn, said and listed."""

from typing import Any

import pytest

from flexmarl.contracts.specification.graphs import DebateGraph, HubGraph, SeatOptions
from webui.figures import devices, episodes, learning, matrix, pace, steps
from webui.figures.base import Agent, SeriesSet, smooth
from webui.figures.team import BOX_W, team_graph

AGENTS = [Agent("speaker", "speaker", 1, "S"), Agent("listener", "listener", 2, "L")]


PLAIN = {"team_share": 1.0, "per_turn": False, "divide_by_std": False}


def series(**points: list[float]) -> SeriesSet:
    """Make series from `name@agent@stat=values`, one value per step from 0; `__` stands for a slash."""
    rows = []
    for key, values in points.items():
        name, _, rest = key.partition("_at_")
        agent, _, stat = rest.partition("_as_")
        rows.append(
            {
                "name": name.replace("__", "/"),
                "agent": agent,
                "stat": stat or "mean",
                "x": list(map(float, range(len(values)))),
                "y": values,
            }
        )
    return SeriesSet(rows)


def tokens_in(value: Any) -> set[str]:
    """All strings that could be colours, to check that none is fixed."""
    if isinstance(value, str):
        return {value} if value.startswith("#") else set()
    if isinstance(value, dict):
        value = list(value.values())
    return {t for item in value for t in tokens_in(item)} if isinstance(value, list) else set()


def test_team_reward_draws_the_mean_and_lists_every_step() -> None:
    figure = learning.team_reward(series(reward__team=[0.2, 0.4, 0.9]), warmup_steps=0)
    assert figure.summary.startswith("Reward rose from 0.200 to 0.900 in 3 steps")
    assert [row[:2] for row in figure.table.rows] == [[0, 0.2], [1, 0.4], [2, 0.9]]
    assert figure.data[-1]["y"] == [0.2, 0.4, 0.9]
    assert not figure.layout["shapes"]
    assert not tokens_in(figure.as_dict())


def test_smoothing_leaves_short_curves_and_calms_long_ones() -> None:
    jagged = [float(i % 2) for i in range(500)]
    assert smooth(jagged[:10]) == jagged[:10]
    assert max(smooth(jagged)[100:]) - min(smooth(jagged)[100:]) < 0.1


YOUNG = {
    "reward__team": [0.2],
    "throughput__tokens_at_speaker": [80.0], "time__step": [1.5], "groups__useful_at__as_share": [0.5],
}  # fmt: skip


def test_a_lone_point_has_a_mark_and_a_line_has_none() -> None:
    young, older = series(**YOUNG), series(**{name: values * 2 for name, values in YOUNG.items()})
    for figure in (learning.team_reward(young), pace.throughput(young, AGENTS)):
        means = [trace for trace in figure.data if trace.get("name")]
        assert [(trace["mode"], trace["marker"]["size"]) for trace in means] == [("lines+markers", 6)], figure.name
        low, high = figure.layout["xaxis"]["range"]
        assert low < means[0]["x"][0] < high, "the mark is not cut by the edge"
    assert learning.team_reward(young).summary == "Reward was 0.200 in the first step"
    for figure in (learning.team_reward(older), pace.throughput(older, AGENTS)):
        assert {trace["mode"] for trace in figure.data} == {"lines"}, figure.name


@pytest.mark.parametrize(("steps_done", "apart"), [(1, 1), (2, 1), (5, 1), (8, 2), (25, 5), (400, 100)])
def test_ticks_of_steps_are_whole(steps_done: int, apart: int) -> None:
    points = series(**{name: values * steps_done for name, values in YOUNG.items()})
    for figure in (learning.team_reward(points), pace.throughput(points, AGENTS)):
        assert (figure.layout["xaxis"]["tick0"], figure.layout["xaxis"]["dtick"]) == (0, apart), figure.name
    for figure in (learning.group_signal(points), pace.step_time(points)):
        assert isinstance(figure.layout["xaxis"]["dtick"], int), figure.name


def test_an_evaluation_before_the_first_step_is_on_the_chart() -> None:
    rows = [{"name": "reward/team", "agent": "", "stat": "mean", "x": [1.0], "y": [0.2]}]
    rows += [{"name": "eval/team_score", "agent": "", "stat": "mean", "x": [0.0, 1.0], "y": [0.1, 0.3]}]
    assert learning.team_reward(SeriesSet(rows)).layout["xaxis"]["range"][0] == 0


def test_the_first_bars_leave_room_for_more() -> None:
    assert pace.step_time(series(time__step=[1.5])).layout["xaxis"]["range"] == [-0.6, 4.6]
    assert "range" not in pace.step_time(series(time__step=[1.5] * 5)).layout["xaxis"]


def test_warm_up_is_marked() -> None:
    figure = learning.team_reward(series(reward__team=[0.2, 0.4]), warmup_steps=20)
    assert figure.layout["shapes"][0]["x0"] == 0.0
    assert any("after 20 warm-up steps" in note["text"] for note in figure.layout["annotations"])


def test_the_band_is_quantiles_and_no_comb() -> None:
    """Worst and best of a step jump between the ends of the scale; what nine of ten steps lie between does not."""
    jumps = [0.0, 1.0] * 200
    noisy = [0.5 + 0.01 * (i % 10) for i in range(400)]
    noisy[100] = 0.0
    points = series(reward__team=noisy, reward__team_at__as_min=jumps, reward__team_at__as_max=jumps)
    figure = learning.team_reward(points)
    high, low = (trace["y"] for trace in figure.data[:2])
    assert min(low) > 0.49
    assert max(high) < 0.6
    assert max(high) - min(high) < 0.03
    assert [one["label"] for one in figure.legend] == ["mean", "10 to 90 % of steps"]


def test_a_short_curve_has_no_band() -> None:
    assert learning.quantile_band([0.0] * 9, [0.1] * 9) is None


def test_equal_curves_of_agents_are_told_apart() -> None:
    flat = {"x": [0.0, 1.0, 2.0], "y": [5.0, 5.0, 5.0], "name": "throughput/tokens", "stat": "mean"}
    same = pace.throughput(SeriesSet([{**flat, "agent": agent.role} for agent in AGENTS]), AGENTS)
    rows = [{**flat, "agent": "speaker"}, {**flat, "y": [9.0, 1.0, 9.0], "agent": "listener"}]
    differ = pace.throughput(SeriesSet(rows), AGENTS)
    assert len({trace["line"]["dash"] for trace in same.data}) == len(AGENTS)
    assert {trace["line"]["dash"] for trace in differ.data} == {"solid"}
    assert same.legend[1]["label"] == f"{AGENTS[1].role}, dashed"


def test_the_best_evaluation_names_its_own_step() -> None:
    progress = {"eval_solved": 0.7, "eval_best": 0.9, "eval_step": 300}
    assert learning.eval_text(progress, ([100.0, 200.0, 300.0], [0.5, 0.9, 0.7])) == "best 90 %, step 200"


def test_the_parts_of_a_step_are_stacked() -> None:
    parts = series(time__step=[1.0], time__rollout=[0.7], time__train_tail=[0.2], time__publish=[0.1])
    figure = pace.step_time(parts)
    assert [trace["y"] for trace in figure.data] == [[0.7], [0.2], [0.1]]
    assert figure.layout["barmode"] == "stack"


def test_no_points_say_when_there_will_be_some() -> None:
    for figure in (
        learning.team_reward(SeriesSet([])),
        learning.group_signal(SeriesSet([])),
        pace.step_time(SeriesSet([])),
        pace.throughput(SeriesSet([]), AGENTS),
        pace.staleness(SeriesSet([]), AGENTS, 0),
    ):
        assert figure.empty
        assert not figure.data


def test_group_signal_merges_steps_to_bars_that_can_be_read() -> None:
    count = 100
    figure = learning.group_signal(
        series(
            groups__useful_at__as_share=[0.5] * count,
            groups__easy_at__as_share=[0.3] * count,
            groups__hard_at__as_share=[0.2] * count,
        )
    )
    assert len(figure.data[0]["x"]) <= learning.MAX_BARS
    assert [trace["y"][0] for trace in figure.data] == pytest.approx([50, 30, 20])


def test_staleness_counts_steps_beyond_the_bound() -> None:
    figure = pace.staleness(
        series(staleness__own_max_at_speaker=[0, 0, 1], staleness__own_max_at_listener=[0, 0, 0]), AGENTS, 0
    )
    assert figure.summary == "1 step had samples beyond the bound"
    assert figure.data[0]["y"][:2] == [2, 1]


def test_steps_are_counted_in_whole_numbers() -> None:
    counted = series(staleness__own_max_at_speaker_as_max=[0.0])
    assert pace.staleness(counted, AGENTS, bound=0).layout["yaxis"]["dtick"] == 1


def test_matrix_uses_one_range_per_row_and_policy_names_where_a_policy_is_measured() -> None:
    shared = [Agent("a", "both", 1, "A"), Agent("b", "both", 2, "B")]
    made = matrix.matrix(series(train__entropy_at_both=[2.0, 1.0]), shared, matrix.STABILITY)
    entropy = made["rows"][0]
    assert [cell["last"] for cell in entropy["cells"]] == ["1.00", "1.00"]
    assert entropy["range"][0] == 0.0
    assert entropy["range"][1] > 2.0
    assert "a: entropy 2.00 to 1.50" in entropy["summary"]


def test_step_bar_levels_span_the_ramp() -> None:
    bar = steps.step_bar(series(reward__team=[0.0, 0.5, 1.0]))
    assert bar is not None
    assert [cell.level for cell in bar.cells] == [1, 4, 6]
    assert steps.step_bar(SeriesSet([])) is None
    flat = steps.step_bar(series(reward__team=[0.5, 0.5]))
    assert flat is not None
    assert {cell.level for cell in flat.cells} == {3}


def test_a_step_bar_of_a_long_run_shares_its_cells_evenly() -> None:
    bar = steps.step_bar(series(reward__team=[i / 250 for i in range(250)]))
    assert bar is not None
    assert (bar.first, bar.last, len(bar.cells), bar.per_cell) == (0, 249, 84, 3)
    assert (bar.cells[1].step, bar.cells[1].last, bar.cells[1].value) == (3, 5, "mean 0.016, 0.012 to 0.020")


@pytest.mark.parametrize("last", [1, 99, 100, 101, 250, 1000, 12_345])
def test_every_step_has_a_cell_of_its_own_at_some_zoom(last) -> None:
    seen: set[int] = set()
    shown = steps.zoom("", last)
    assert shown["last"] == last
    while True:
        seen |= set(range(shown["first"], shown["last"] + 1))
        if not shown["earlier"]:
            break
        shown = steps.zoom(str(shown["earlier"]), last)
    assert seen == set(range(1, last + 1))
    assert steps.zoom("all", last)["all"] == (last > 100)


def test_sparklines_stay_in_their_box() -> None:
    drawn = steps.spark([float(i % 7) for i in range(500)], width=88, height=24)
    assert drawn is not None
    xs, ys = zip(*(map(float, point.split(",")) for point in drawn.line.split()), strict=True)
    assert len(xs) <= 60
    assert min(xs) >= 0 and max(xs) <= 88 and min(ys) >= 0 and max(ys) <= 24  # noqa: PT018 - one box
    alone = steps.spark([1.0], width=88, height=24)
    assert alone == steps.Spark(88, 24, "", "", 84, 12), "one value is a dot"
    assert steps.spark([]) is None


def test_micro_batches_show_what_is_accumulated_cut_and_awaited() -> None:
    progress = {
        "micro_batches": [{"policy": "speaker", "cut": 3, "accumulated": 1, "expected": 4, "state": "accumulating"}]
    }
    (row,) = steps.micro_batches(progress, AGENTS)
    assert row.blocks == ["acc", "cut", "cut", "wait"]
    assert row.text == "1 of 4"


def payload(intervals: list[list[Any]], **device: Any) -> dict[str, Any]:
    row = {
        "device_id": "atlas.cpu0",
        "node": "atlas",
        "use": "trainer",
        "held_since": 0.0,
        "held_until": None,
        "busy_share": 0.5,
        "bubble_share": 0.5,
        "intervals": intervals,
    }
    return {"window": [0.0, 10.0], "devices": [{**row, **device}]}


def test_timeline_places_blocks_and_names_the_gaps_between_them() -> None:
    chart = devices.timeline(payload([[2.0, 4.0, "train", "speaker"], [6.0, 10.0, "step", "speaker"]]), {"speaker": 3})
    (row,) = chart.nodes[0].rows
    assert [block.hue for block in row.blocks] == [3, 3]
    assert row.blocks[0].texture == "p-train"
    assert [gap.seconds for gap in row.gaps] == [2.0, 2.0]
    assert row.gaps[1].text == "The trainer waited for micro-batches, after speaker train and before speaker step."
    assert row.label == "cpu0 trainer"


def test_timeline_accounts_for_every_held_second() -> None:
    chart = devices.timeline(
        payload([[2.0, 4.0, "train", "a"], [3.0, 5.0, "train", "b"]], held_since=1.0, held_until=9.0), {}
    )
    assert chart.held == pytest.approx(8.0)
    assert chart.idle == pytest.approx(5.0)
    assert chart.seconds["a"]["train"] == pytest.approx(2.0)


def test_histogram_shows_every_count_and_what_is_chosen() -> None:
    rows = [{"low": 0.0, "high": 0.5, "count": 4}, {"low": 0.5, "high": 1.0, "count": 1}]
    bins = episodes.bins(rows, (None, None))
    assert [b.count for b in bins] == [4, 1]
    assert [b.height for b in bins] == [100.0, 25.0]
    assert bins[1].x == 50.0
    assert not any(b.chosen for b in bins), "nothing is chosen where nothing is filtered"
    assert [b.chosen for b in episodes.bins(rows, (0.5, 1.0))] == [False, True]
    assert [b.chosen for b in episodes.bins(rows, (None, 0.5))] == [True, False]
    assert episodes.bins([], (None, None)) == []


def test_an_advantage_is_explained_from_its_group() -> None:
    group = [{"member": 0, "team_score": 1.0}, {"member": 1, "team_score": 0.0}]
    found = episodes.why(group, 1, PLAIN, [-0.5])
    assert found is not None
    assert (
        found.text
        == "Team score 0.00 minus group mean 0.50 is −0.50. The 2 episodes of this task differ, so the group is useful."
    )
    assert [bar.mine for bar in found.bars] == [False, True]
    assert episodes.why(group[:1], 0, PLAIN, []) is None


def test_no_single_figure_is_claimed_when_more_than_the_team_score_counts() -> None:
    group = [{"member": 0, "team_score": 1.0}, {"member": 1, "team_score": 0.0}]
    found = episodes.why(group, 0, {**PLAIN, "team_share": 0.5}, [0.5, 0.25])
    assert found is not None
    assert found.advantage is None
    assert "each role's own score, the team's counts 50 %" in found.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "rloo"}, "the estimator rloo"),
        ({"type": "gae"}, "the trainer's critic"),
        ({"type": "habc"}, "whether the episode was solved"),
        ({"baseline_over": "rows"}, "a mean over rows"),
        ({"group_key": "team"}, "the group key team"),
        ({"shaping": "overlong"}, "the shaping overlong"),
        ({"shaping": "majority_vote"}, "the vote of the group, which takes the place of all scores"),
        ({"keep_members": 4}, "only the 4 members"),
        ({"rescues": True}, "an earlier success of the task"),
        ({"branches": "at_grpo_tree"}, "the reward of each answer"),
        ({"continues": True}, "what other members said in its place"),
    ],
)
def test_what_else_decides_an_advantage_is_named(change: dict, words: str) -> None:
    group = [{"member": 0, "team_score": 1.0}, {"member": 1, "team_score": 0.0}]
    found = episodes.why(group, 0, {**PLAIN, **change}, [0.5])
    assert found is not None
    assert found.advantage is None
    assert words in found.text


def test_a_group_without_variance_teaches_nothing() -> None:
    group = [{"member": i, "team_score": 1.0} for i in range(3)]
    found = episodes.why(group, 0, {**PLAIN, "divide_by_std": True}, [0.0])
    assert found is not None
    assert "gives no gradient" in found.text


def test_best_and_worst_differ_and_the_third_is_neither() -> None:
    rows = [{"id": f"1-{i}-1", "team_score": i / 4} for i in range(5)]
    chosen = episodes.pick(rows, seed=11)
    assert (chosen["Best"]["id"], chosen["Worst"]["id"]) == ("1-4-1", "1-0-1")
    assert chosen["Random"]["id"] not in ("1-4-1", "1-0-1")
    assert episodes.pick([], 0) == {}


def test_team_graph_draws_who_hears_whom() -> None:
    class Seat:
        def __init__(self, name: str, *hears: str) -> None:
            self.name, self.hears = name, hears

    graph = team_graph([Seat("a", "b"), Seat("b", "a")], {})
    assert graph.text == "a hears b; b hears a"
    assert [(box.role, box.monogram) for box in graph.boxes] == [("a", "A"), ("b", "B")]


def test_those_who_are_asked_at_once_stand_below_each_other() -> None:
    roles = DebateGraph(judge=SeatOptions(name="judge")).roles(8)
    stages = DebateGraph(judge=SeatOptions(name="judge")).stages()
    graph = team_graph(roles, {"judge": {"hue": 4, "monogram": "J"}}, stages, {"judge": "frozen"})
    boxes = {box.role: box for box in graph.boxes}
    debaters = [boxes[f"debater_{n}"] for n in (1, 2, 3)]
    assert len({box.x for box in debaters}) == 1
    assert [box.y for box in debaters] == sorted({box.y for box in debaters}), "no two on one place"
    assert boxes["judge"].x > debaters[0].x
    assert boxes["judge"].y == debaters[1].y, "in the middle of those it hears"
    assert (boxes["judge"].hue, boxes["judge"].monogram, boxes["judge"].words) == (4, "J", "frozen")
    assert sum(arrow.both for arrow in graph.arrows) == 3, "each pair of debaters once"
    assert len(graph.arrows) == 3 + 3 + 3 + 1, "pairs, the judge's three, the task's three, the answer"
    assert all(box.y + 52 <= graph.height and box.x + BOX_W <= graph.width for box in graph.boxes)


def test_a_hub_and_its_workers_are_joined_both_ways() -> None:
    graph = team_graph(HubGraph().roles(8), {}, HubGraph().stages())
    assert [arrow.both for arrow in graph.arrows].count(True) == 2
    assert graph.arrows[-1].path.startswith("M142 120V"), "who answers is the planner, below its workers"
    assert "worker_1 hears planner" in graph.text
    assert "planner hears worker_2" in graph.text
