"""Timelines as pixels: leases of one device in one row, both sides of a gap, and many devices together."""

import re

import pytest

from webui.figures import composition, devices

TITLES = {"samples": "Wait for samples", "handover": "Command on its way"}


def lease(device, use, intervals, since=0.0, until=None, idle=(), run_no=7, busy=0.5):
    return {
        "device_id": f"atlas.{device}", "node": "atlas", "pool": "gpu-8", "use": use, "run_no": run_no, "run_key": "r",
        "held_since": since, "held_until": until, "busy_share": busy, "bubble_share": 1 - busy,
        "intervals": intervals, "idle": list(idle),
    }  # fmt: skip


def test_leases_of_one_device_share_a_row_and_free_devices_stay() -> None:
    payload = {
        "window": [0.0, 100.0],
        "devices": [lease("cpu0", "engine", [[0, 20, "rollout", "a"]], until=40.0), lease("cpu0", "trainer", [], 60.0)],
        "idle_devices": [
            {"device_id": "atlas.cpu1", "node": "atlas", "state": "ready", "pool": "gpu-8"},
            {"device_id": "atlas.cpu2", "node": "atlas", "state": "cordoned", "pool": "gpu-8"},
        ],
    }
    [node] = devices.timeline(payload, {}).nodes
    first, free, out = node.rows
    assert [round(x) for x, _ in first.held] == [116, 691], "held twice, with nothing between"
    assert first.busy == pytest.approx(0.5)
    assert (free.note, out.note, free.busy) == ("free", "cordoned", None)
    assert node.text == "pool gpu-8, runs r"


def test_a_gap_says_what_each_side_did() -> None:
    engine = lease("cpu0", "engine", [[0, 60, "rollout", "solver"]])
    trainer = lease("cpu1", "trainer", [[60, 100, "train", "solver"]], idle=[[0, 50, "samples"], [50, 60, "handover"]])
    other = lease("cpu2", "engine", [[0, 60, "rollout", "x"]], run_no=8)
    chart = devices.timeline({"window": [0.0, 100.0], "devices": [engine, trainer, other]}, {}, TITLES)
    [gap] = chart.nodes[0].rows[1].gaps
    assert gap.text == (
        "Wait for samples 50 s, Command on its way 10 s. Meanwhile atlas.cpu0 did solver rollout for 1 m."
    )


def test_hues_are_of_the_run_that_holds_the_device() -> None:
    payload = {"window": [0.0, 100.0], "devices": [lease("cpu0", "engine", [[0, 20, "rollout", "a"]])]}
    [row] = devices.timeline(payload, {"7/a": 4, "8/a": 2}).nodes[0].rows
    assert row.blocks[0].hue == 4


def test_many_devices_add_up_to_the_whole() -> None:
    rows = [lease(f"cpu{i}", "engine", [[0, 50, "rollout", "a"], [25, 75, "train", "a"]]) for i in range(70)]
    drawn = composition.composition({"window": [0.0, 100.0], "devices": rows})
    assert drawn.words.startswith("70 devices: ")
    shares = [int(number) for number in re.findall(r"(\d+) %", drawn.words)]
    assert sum(shares) == pytest.approx(100, abs=2)
    assert "idle 25 %" in drawn.words, "overlapping intervals count once"
    for column in {bar[0] for bar in drawn.bars}:
        assert sum(bar[3] for bar in drawn.bars if bar[0] == column) == pytest.approx(composition.HEIGHT, abs=0.5)


def test_the_band_shows_how_unequal_devices_are() -> None:
    rows = [lease(f"cpu{i}", "engine", [[0, i, "rollout", "a"]]) for i in range(1, 101)]
    drawn = composition.composition({"window": [0.0, 100.0], "devices": rows})
    middle = [float(point.split(",")[1]) for point in drawn.middle.split()]
    assert middle[0] == drawn.top, "at first most are busy"
    assert middle[-1] == drawn.bottom, "at the end most are idle"
