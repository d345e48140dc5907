"""Lanes of the pipeline as pixels: what happened is solid, what is expected is dashed, nothing leaves the drawing."""

from webui.figures import flow, lanes

AGENTS = {"solver": {"hue": 2, "monogram": "S"}}


def block(number, started, ready, claimed=None, done=None):
    return {
        "micro_batch": number, "number": number, "cohort": 0, "status": "cut", "rows": 64, "groups": 4,
        "started": started, "ready": ready, "claimed": claimed, "done": done,
    }  # fmt: skip


def payload(blocks, *, live=True, expected=0, window=(0.0, 100.0), waits=(), publications=(), optimizer=()):
    lane = {
        "policy": "solver", "blocks": blocks, "optimizer_steps": list(optimizer), "publications": list(publications),
        "stepped_held": None, "waits": list(waits), "expected": expected, "open_since": [80.0] if expected else [],
    }  # fmt: skip
    return {
        "window": list(window), "live": live, "policies": [lane], "steps": [],
        "passed": {"rows": [{"policy": "solver", "serving": 3, "gradient": 1, "of": 4}]}, "strip": [],
    }  # fmt: skip


def test_a_block_is_claimed_until_its_gradient_is_in() -> None:
    drawing = lanes.draw(payload([block(1, 0, 10, 12, 20), block(2, 5, 30, 90)]), AGENTS)
    [lane] = drawing.lanes
    assert [(b.kind, b.label) for b in lane.blocks] == [("done", "1"), ("claimed", "2")]
    done, claimed = lane.blocks
    assert claimed.x + claimed.width <= drawing.now_x + 0.1, "it goes on until now and not beyond"
    assert done.x < claimed.x
    assert len(lane.threads) == 2
    assert lane.state == "v3, 1 of 4"


def test_what_is_expected_stands_behind_now_and_is_dashed() -> None:
    drawing = lanes.draw(payload([block(1, 0, 10, 12, 20), block(2, 5, 30)], expected=2), AGENTS)
    [lane] = drawing.lanes
    expected = [b for b in lane.blocks if b.kind == "expected"]
    assert [b.label for b in expected] == ["2", "3"], "one ready and unclaimed, then what is not yet cut"
    assert all(b.x > drawing.now_x for b in expected)
    assert all(b.x >= drawing.now_x for b in lane.bars if b.expected)
    still = lanes.draw(payload([block(1, 0, 10, 12, 20)], live=False), AGENTS)
    assert still.now_x is None
    assert [b.kind for b in still.lanes[0].blocks] == ["done"]


def test_rows_hold_at_most_five_lines_and_stay_inside() -> None:
    drawing = lanes.draw(payload([block(i, i, i + 40, i + 41, i + 42) for i in range(30)]), AGENTS)
    [lane] = drawing.lanes
    assert len({bar.y for bar in lane.bars}) == lanes.ROWS
    assert all(bar.x >= lanes.LEFT and bar.x + bar.width <= lanes.WIDTH for bar in lane.bars)
    assert max(bar.y for bar in lane.bars) + lanes.ROW < lane.train_y


def test_narrow_blocks_are_joined_so_that_a_drawing_stays_small() -> None:
    many = [block(i, i * 0.02, i * 0.02 + 0.01, i * 0.02 + 0.01, i * 0.02 + 0.02) for i in range(5000)]
    drawing = lanes.draw(payload(many, live=False), AGENTS)
    [lane] = drawing.lanes
    assert sum(b.count for b in lane.blocks) == 5000
    assert len(lane.blocks) < 1200
    assert len(lane.bars) + len(lane.threads) < 2000


def test_a_wait_is_written_into_its_gap_when_it_fits() -> None:
    wait = {"t0": 20.0, "t1": 60.0, "cause": "samples", "title": "Wait for samples", "seconds": 38.0}
    [lane] = lanes.draw(payload([block(1, 0, 10, 12, 20)], waits=[wait]), AGENTS).lanes
    assert [w.text for w in lane.waits] == ["wait for samples 38 s"]
    short = {**wait, "t1": 24.0}
    assert lanes.draw(payload([block(1, 0, 10, 12, 20)], waits=[short]), AGENTS).lanes[0].waits == []


def test_samples_beyond_the_bound_are_counted() -> None:
    rows = [{"policy": "solver", "lag": 0, "samples": 90}, {"policy": "solver", "lag": 2, "samples": 7}]
    drawn = flow.staleness_bars(rows, 1, AGENTS)
    assert (drawn["beyond"], drawn["words"]) == (7, "bound 1: 7 samples beyond")
    assert flow.staleness_bars(rows, 2, AGENTS)["beyond"] == 0
    inside, outside = drawn["bars"]
    assert inside["x"] < drawn["bound_x"] < outside["x"]
    assert flow.staleness_bars([], 0, AGENTS) is None


def test_stairs_end_at_what_was_counted() -> None:
    drawn = flow.flow([{"policy": "solver", "ready": [1.0, 2.0], "gradient": [3.0]}], AGENTS)
    assert drawn.words == "solver: 2 ready, 1 with gradient"
    ready, gradient = drawn.lines
    assert float(ready.points.split()[-1].split(",")[1]) < float(gradient.points.split()[-1].split(",")[1])
    assert flow.flow([{"policy": "solver", "ready": [], "gradient": []}], AGENTS) is None
