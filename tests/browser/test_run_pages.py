"""A run's figures in a browser: every page in both themes and three widths, charts by keyboard, as table and as CSV."""

import csv
import io
import json
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from webui.figures.base import whole_ticks

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

FINISHED, RUNNING = 0, 1


def drawn(guest: Any) -> None:
    """Wait until the charts on the screen are drawn."""
    guest.settle()
    guest.page.wait_for_function(
        "() => [...document.querySelectorAll('[data-series]')].every(box => "
        "box.getBoundingClientRect().top > innerHeight + 200 || box.querySelector('.uplot, .state'))"
    )


def saved(guest: Any, click: Callable[[], None]) -> list[list[str]]:
    """Download a chart's CSV and return its rows."""
    with guest.page.expect_download() as download:
        click()
    return list(csv.reader(io.StringIO(download.value.path().read_text(encoding="utf-8"))))


def test_a_chart_is_read_by_keyboard_as_table_and_as_csv(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[RUNNING]}/metrics?open=train/entropy|solver|mean")
    drawn(guest)
    page = guest.page
    box = page.locator("[data-series='train/entropy|solver|mean']")
    plot = box.locator(".plot")
    assert "Arrow keys read the values" in (plot.get_attribute("aria-label") or "")
    plot.focus()
    page.keyboard.press("End")
    page.wait_for_function("() => document.querySelector('#announce').textContent.startsWith('step 137')")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => document.querySelector('#announce').textContent.startsWith('step 136')")
    page.keyboard.press("Home")
    page.wait_for_function("() => document.querySelector('#announce').textContent.startsWith('step 1 ')")
    rows = saved(guest, lambda: box.get_by_role("button", name="Download").click())
    assert rows[0] == ["step", "solver"]
    assert len(rows) == 138
    box.get_by_role("button", name="as table").click()
    assert box.locator("tbody tr").count() == 137
    assert plot.is_hidden()
    box.get_by_role("button", name="What Entropy").click()
    assert "entropy per trained token" in box.locator(".def").inner_text()


def test_what_is_open_is_in_the_address(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[RUNNING]}/metrics?q=entropy")
    page = guest.page
    page.get_by_role("button", name="Chart of Entropy of solver").click()
    page.wait_for_url("**open=train**")
    page.locator("#open-charts .uplot").wait_for()
    page.locator("[data-choice=x] [data-value=version]").click()
    page.wait_for_url("**x=version**")
    page.wait_for_function("() => document.querySelector('#open-charts .plot').getAttribute('aria-label')")
    page.reload()
    page.locator("#open-charts .uplot").wait_for()
    assert page.locator("[data-choice=x] [data-value=version]").get_attribute("aria-pressed") == "true"
    assert page.get_by_label("Search series").input_value() == "entropy"
    page.get_by_role("button", name="Close Entropy").click()
    page.wait_for_function("() => !location.search.includes('open=')")


def test_a_zoom_outlives_live_updates_and_the_axis_switches_in_place(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[RUNNING]}")
    guest.settle()
    page = guest.page
    shown = "() => document.querySelector('#team_reward .plot').layout.xaxis.range"
    field = page.locator("#team_reward .plot .nsewdrag").bounding_box()
    across = field["y"] + field["height"] / 2
    page.mouse.move(field["x"] + field["width"] * 0.2, across)
    page.mouse.down()
    page.mouse.move(field["x"] + field["width"] * 0.4, across, steps=5)
    page.mouse.up()
    page.wait_for_function(f"() => ({shown})()[1] < 80")
    zoomed = page.evaluate(shown)
    apart = f"({shown.replace('range', 'dtick')})()"
    page.wait_for_function(f"() => {apart} === {whole_ticks(*zoomed)['dtick']}")
    page.evaluate("() => document.dispatchEvent(new CustomEvent('theme'))")  # draws everything anew, as an update does
    page.wait_for_timeout(500)
    assert page.evaluate(shown) == zoomed
    page.wait_for_function(f"() => {apart} === {whole_ticks(*zoomed)['dtick']}")
    told = page.evaluate(
        "() => import('/static/webui/js/plotting.js').then(({ wholeGap, ALONE }) => [[[0, 1], [0, 8], [0, 75], "
        "[1, 400]].map((ends) => wholeGap(...ends)), [[1], [1, 2]].map((ys) => ALONE.show({ data: [ys, ys] }, 1))])"
    )
    assert told == [[whole_ticks(*ends)["dtick"] for ends in ((0, 1), (0, 8), (0, 75), (1, 400))], [True, False]]
    page.locator("[data-choice=x] [data-value=samples]").click()
    page.wait_for_url("**x=samples**")
    page.wait_for_function(f"() => ({shown})()[1] > 1000")
    page.locator("#team_reward .plot").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    link = page.locator("#team_reward .picked a")
    assert link.inner_text() == "Trajectories of step 137"
    link.click()
    page.wait_for_url("**/trajectories?step=137")


def test_the_header_says_what_a_run_used_and_where(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[RUNNING]}")
    line = guest.page.locator("#run-line2")
    assert "device-h" in line.inner_text()
    assert "default, 2 devices" in line.inner_text()
    basis = line.get_by_text("ETA").locator("..").get_attribute("title") or ""
    assert basis.startswith("263 steps left, at the median of the last 20 steps")
    guest.page.get_by_role("button", name="Previous step").click()
    assert guest.page.evaluate("() => document.activeElement.querySelector('title').textContent").startswith("step 136")


def test_a_refused_what_if_says_why_beside_its_field(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[FINISHED]}/performance/what-if")
    page = guest.page
    boxes = page.locator("input[name=alternatives]:enabled")
    assert boxes.count() > 1
    boxes.evaluate_all("all => all.forEach((box) => { box.checked = false; })")
    ask = page.get_by_role("button", name="Run what-if")
    ask.click()
    page.locator("[data-error='/alternatives']").get_by_text("1").wait_for()
    assert ask.is_enabled(), "it can be asked again"
    page.evaluate("scrollTo(0, 0)")
    assert guest.violations("aside") == []
    boxes.first.check()
    steps = page.locator("#w-steps")
    steps.evaluate("box => box.removeAttribute('max')")
    steps.fill("999")
    ask.click()
    page.locator("[data-error='/steps']").get_by_text("200").wait_for()
    assert page.evaluate("document.activeElement.name") == "steps"
    assert page.locator("[data-error='/alternatives']").is_hidden()


PREDICTED = {name: {"low": 1.0, "likely": 1.5, "high": 3.0} for name in ("step_s", "tokens_s", "hours", "device_hours")}


def test_predicted_beside_actual_follows_the_run(seeded: Any, visit: Callable[..., Any]) -> None:
    key, plan = seeded.keys[RUNNING], uuid.uuid4()
    share = {"low": 0.1, "likely": 0.2, "high": 0.3}
    told = {**PREDICTED, "utilisation": {"engine": share, "trainer": share}, "cost": None, "why": ["Nothing measured."]}
    with psycopg.connect(seeded.environment["DATABASE_URL"], autocommit=True) as conn:
        conn.execute(
            "INSERT INTO experiments_plan (id, project, prediction, figures, made_at) VALUES (%s, '', %s, '{}', now())",
            [plan, json.dumps(told)],
        )
        conn.execute("UPDATE runs_run SET plan_id = %s WHERE key = %s", [plan, key])
        guest = visit(seeded)
        guest.page.route_web_socket("**/ws/v1/", lambda socket: socket.close())
        guest.sign_in()
        guest.goto(f"/runs/{key}")
        row = guest.page.locator("#planned tr", has_text="Time per step")
        row.get_by_text("yes").wait_for()
        assert "1.0 s to 3.0 s" in " ".join(row.inner_text().split())
        assert guest.violations("#planned") == []
        conn.execute("UPDATE store.metric SET at = at - interval '9 s' * (137 - step) WHERE name = 'time/step'")
        row.get_by_text("no", exact=True).wait_for(timeout=60_000)
        conn.execute("UPDATE runs_run SET plan_id = NULL WHERE key = %s", [key])
