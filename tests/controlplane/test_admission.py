"""Requests that find no place wait in line; a line that is full or does not move is answered, not left to fail."""

import asyncio
import json
from types import SimpleNamespace

import psycopg
import pytest
from django.db import OperationalError
from django.http import HttpResponse
from django.test import RequestFactory

from flexmarl.controlplane.common import admission
from flexmarl.controlplane.common.admission import Line, in_line
from flexmarl.controlplane.common.api.exceptions import problem_response
from flexmarl.controlplane.common.problems import Busy


async def test_no_more_work_at_once_than_there_are_places_and_all_get_one() -> None:
    line, working, most, order = Line(3), 0, 0, []

    async def work(number: int) -> None:
        nonlocal working, most
        async with line.place():
            working += 1
            most = max(most, working)
            order.append(number)
            await asyncio.sleep(0)
            working -= 1

    await asyncio.gather(*(work(number) for number in range(50)))
    assert (most, order, line.waiting) == (3, list(range(50)), 0)


async def test_a_full_line_refuses_at_once_and_a_stuck_one_after_a_while() -> None:
    line = Line(1, max_waiting=2, patience_s=0.05)
    async with line.place():
        stuck = [asyncio.create_task(line.place().__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="2 requests wait already"):
            await line.place().__aenter__()
        for task in stuck:
            with pytest.raises(Busy, match="could begin within"):
                await task
    async with line.place():
        assert line.waiting == 0, "who gave up holds no place"


async def test_who_goes_away_while_waiting_holds_no_place() -> None:
    line = Line(1)
    async with line.place():
        gone = asyncio.create_task(line.place().__aenter__())
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
    async with asyncio.timeout(1), line.place():
        pass


def served(monkeypatch, answer):
    monkeypatch.setattr(admission, "_places", lambda: 1)
    monkeypatch.setattr(admission, "MAX_WAITING", 0)
    monkeypatch.setattr(admission, "Line", lambda places: Line(places, max_waiting=0))
    return in_line(answer)


async def test_refusals_are_problems_for_scripts_and_a_page_for_people(monkeypatch) -> None:
    async def answer(request):
        return HttpResponse("fine")

    handle = served(monkeypatch, answer)
    asked = RequestFactory()
    problem = await handle(asked.get("/api/v1/runs"))
    assert (problem.status_code, problem["Retry-After"]) == (503, "2")
    assert json.loads(problem.content)["code"] == "busy"
    page = await handle(asked.get("/runs"))
    assert page.status_code == 503
    assert b"Try again" in page.content
    for path in ("/static/webui/css/app.css", "/healthz"):
        assert (await handle(asked.get(path))).content == b"fine", "needs no connection"


@pytest.mark.parametrize("error", [OperationalError("gone"), psycopg.OperationalError("gone")])
def test_a_database_that_is_away_is_said_by_name(error) -> None:
    answer = problem_response(error, {"request": SimpleNamespace(path="/api/v1/runs")})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert answer.data["code"] == "database_unavailable"
