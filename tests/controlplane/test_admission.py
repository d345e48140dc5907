"""Requests that find no place wait in line; a line that is full or does not move is answered, not left to fail."""

import asyncio
import json
import threading
from types import SimpleNamespace

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import OperationalError
from django.http import HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory
from psycopg_pool import PoolTimeout

from flexmarl.controlplane.common import admission, database
from flexmarl.controlplane.common.admission import AdmittingHandler
from flexmarl.controlplane.common.api.exceptions import problem_response
from flexmarl.controlplane.common.lines import AdmissionQueue
from flexmarl.controlplane.common.problems import Busy, RateLimited


async def test_no_more_work_at_once_than_there_are_places_and_all_get_one() -> None:
    line, working, most, order = AdmissionQueue(3), 0, 0, []

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
    line = AdmissionQueue(1, max_waiting=2, patience_s=0.05)
    async with line.place():
        stuck = [asyncio.create_task(line.place().__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="2 requests are already waiting"):
            await line.place().__aenter__()
        for task in stuck:
            with pytest.raises(Busy, match="could start within"):
                await task
    async with line.place():
        assert line.waiting == 0, "who gave up holds no place"


async def test_who_goes_away_while_waiting_holds_no_place() -> None:
    line = AdmissionQueue(1)
    async with line.place():
        gone = asyncio.create_task(line.place().__aenter__())
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
    async with asyncio.timeout(1), line.place():
        pass


async def test_callers_take_turns_and_each_is_served_in_its_order() -> None:
    line, order = AdmissionQueue(1), []

    async def work(caller: str, number: int) -> None:
        async with line.place(caller):
            order.append(f"{caller}{number}")
            await asyncio.sleep(0)

    sent = [("a", number) for number in range(4)] + [("b", 0), ("b", 1), ("c", 0)]
    await asyncio.gather(*(work(*one) for one in sent))
    assert order == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]


async def test_one_caller_cannot_fill_the_line() -> None:
    line = AdmissionQueue(1, max_waiting=3, max_waiting_of_one=2)
    async with line.place("greedy"):
        waiting = [asyncio.create_task(line.place("greedy").__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RateLimited, match="2 of your requests are already waiting"):
            await line.place("greedy").__aenter__()
        waiting.append(asyncio.create_task(line.place("other").__aenter__()))
        await asyncio.sleep(0)
        assert line.waiting == 3
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert (line.waiting, line.full) == (0, False)


async def test_who_goes_away_as_the_turn_comes_passes_it_on() -> None:
    line, served = AdmissionQueue(1), []

    async def work(name: str) -> None:
        async with line.place(name):
            served.append(name)

    async with line.place("first"):
        gone, stays = (asyncio.create_task(work(name)) for name in ("gone", "stays"))
        await asyncio.sleep(0)
    gone.cancel()  # its turn has come, and it has not run yet
    await asyncio.wait([gone, stays])
    assert (served, line.full) == (["stays"], False)


class Counted:
    """Stands for Django: answers with the number of the request that it answers, as soon as it may."""

    def __init__(self, monkeypatch, status: int = 200) -> None:
        self.begun, self.go = 0, asyncio.Event()
        monkeypatch.setattr(admission, "_places", lambda purpose: 1)

        async def answer(handler, request):
            self.begun += 1
            number = self.begun
            await self.go.wait()
            answered = HttpResponse(str(number), status=status, headers={"ETag": f'"{number}"'})
            answered.set_cookie("seen", str(number))
            return answered

        monkeypatch.setattr(ASGIHandler, "run_get_response", answer)
        self.handler, self.ask = AdmittingHandler(), AsyncRequestFactory()

    async def send(self, requests: list) -> list:
        """Send requests behind each other while the first works; return the tasks of all."""
        tasks = []
        for request in requests:
            tasks.append(asyncio.create_task(self.handler.run_get_response(request)))
            await asyncio.sleep(0.01)
        return tasks


async def test_reads_that_are_alike_share_the_answer_of_one_that_has_not_begun(monkeypatch) -> None:
    django = Counted(monkeypatch)
    ask = django.ask
    tasks = await django.send([ask.get("/api/v1/runs", headers={"X-Request-ID": f"r{number}"}) for number in range(5)])
    assert django.begun == 1
    django.go.set()
    answers = await asyncio.gather(*tasks)
    assert [answer.content for answer in answers] == [b"1", b"2", b"2", b"2", b"2"], "what has begun may be too old"
    assert [answer["X-Request-ID"] for answer in answers[2:]] == ["r2", "r3", "r4"]
    assert {(answer["ETag"], answer.cookies["seen"].value) for answer in answers[1:]} == {('"2"', "2")}


async def test_nothing_is_shared_by_requests_that_differ_in_anything_that_was_sent(monkeypatch) -> None:
    django = Counted(monkeypatch)
    ask = django.ask
    sent = [
        ask.get("/api/v1/runs"),
        ask.get("/api/v1/runs"),
        ask.get("/api/v1/runs", headers={"Authorization": "Bearer a"}),
        ask.get("/api/v1/runs", headers={"Authorization": "Bearer b"}),
        ask.get("/api/v1/runs", headers={"Cookie": "flexmarl_session=a"}),
        ask.get("/api/v1/runs?page=2"),
        ask.get("/api/v1/runs"),
        ask.get("/api/v1/runs", headers={"If-None-Match": "x"}),
        ask.head("/api/v1/runs"),
        ask.post("/api/v1/runs"),
        ask.post("/api/v1/runs"),
    ]
    sent[6].META["REMOTE_ADDR"] = "192.0.2.1"
    tasks = await django.send(sent)
    django.go.set()
    answers = [answer.content for answer in await asyncio.gather(*tasks)]
    assert sorted(answers, key=int) == [str(number + 1).encode() for number in range(len(sent))]


async def test_a_read_is_not_lost_with_the_one_whose_answer_it_waits_for(monkeypatch) -> None:
    django = Counted(monkeypatch)
    tasks = await django.send([django.ask.get("/api/v1/runs") for _ in range(4)])
    tasks[1].cancel()  # the others wait for its answer
    await asyncio.sleep(0.01)
    django.go.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert [answer.content for answer in (answers[0], *answers[2:])] == [b"1", b"2", b"2"]


async def test_a_problem_is_told_to_each_by_its_own_request(monkeypatch) -> None:
    django = Counted(monkeypatch, status=404)
    tasks = await django.send([django.ask.get("/api/v1/runs/none") for _ in range(4)])
    django.go.set()
    assert [answer.content for answer in await asyncio.gather(*tasks)] == [b"1", b"2", b"3", b"4"]


async def test_a_wait_that_is_too_long_ends_for_all_that_share_it(monkeypatch) -> None:
    monkeypatch.setattr(admission, "AdmissionQueue", lambda places: AdmissionQueue(places, patience_s=0.1))
    django = Counted(monkeypatch)
    tasks = await django.send([django.ask.get("/api/v1/runs") for _ in range(4)])
    async with asyncio.timeout(1):
        answers = await asyncio.gather(*tasks[1:])
    assert [answer.status_code for answer in answers] == [503, 503, 503]
    django.go.set()
    await tasks[0]


async def test_refusals_are_problems_for_scripts_and_a_page_for_people(monkeypatch) -> None:
    async def answer(self, request):
        return HttpResponse("fine")

    monkeypatch.setattr(admission, "AdmissionQueue", lambda places: AdmissionQueue(0, max_waiting=0))
    monkeypatch.setattr(ASGIHandler, "run_get_response", answer)
    handle, ask = AdmittingHandler().run_get_response, AsyncRequestFactory()
    problem = await handle(ask.get("/api/v1/runs"))
    assert (problem.status_code, problem["Retry-After"]) == (503, "2")
    body = json.loads(problem.content)
    assert (body["code"], body["request_id"]) == ("busy", problem["X-Request-ID"])
    page = await handle(ask.get("/runs"))
    assert page.status_code == 503
    assert b"Try again" in page.content
    for path in ("/static/webui/css/app.css", "/healthz"):
        assert (await handle(ask.get(path))).content == b"fine", "needs no connection"


async def test_each_kind_of_request_has_a_line_and_connections_of_its_own(monkeypatch) -> None:
    begun, go = [], asyncio.Event()

    async def answer(self, request):
        begun.append((request.path, database.current_purpose()))
        await go.wait()
        return HttpResponse("fine")

    monkeypatch.setattr(admission, "_places", lambda purpose: 1)
    monkeypatch.setattr(ASGIHandler, "run_get_response", answer)
    handle, ask = AdmittingHandler().run_get_response, AsyncRequestFactory()
    paths = ("/api/v1/runs", "/api/v1/agents", "/v1/models", "/runs", "/queue", "/readyz")
    waiting = [asyncio.create_task(handle(ask.get(path))) for path in paths]
    await asyncio.sleep(0.05)
    assert begun == [("/api/v1/runs", "api"), ("/v1/models", "remote"), ("/runs", "pages"), ("/readyz", "health")]
    go.set()
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}


async def test_a_connection_is_given_back_with_the_place_however_slow_the_reader_is(monkeypatch) -> None:
    async def answer(self, request):
        return HttpResponse("fine")

    given_back = []
    monkeypatch.setattr(admission, "_places", lambda purpose: 1)
    monkeypatch.setattr(ASGIHandler, "run_get_response", answer)
    handler = AdmittingHandler()
    line = handler._lines[database.Purpose.API]
    monkeypatch.setattr(admission, "close_old_connections", lambda: given_back.append(line.full))
    await handler.run_get_response(AsyncRequestFactory().get("/api/v1/runs"))
    assert given_back == [True], "while the place is still taken"


async def test_who_goes_away_keeps_the_place_until_the_thread_is_free(monkeypatch) -> None:
    free = threading.Event()

    async def answer(self, request):
        return await sync_to_async(free.wait)()

    monkeypatch.setattr(admission, "_places", lambda purpose: 1)
    monkeypatch.setattr(ASGIHandler, "run_get_response", answer)
    handler = AdmittingHandler()
    gone = asyncio.create_task(handler.run_get_response(AsyncRequestFactory().get("/api/v1/runs")))
    await asyncio.sleep(0.05)
    gone.cancel()
    await asyncio.sleep(0.05)
    line = handler._lines[database.Purpose.API]
    assert line.full
    free.set()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert not line.full


async def test_a_place_keeps_its_thread_and_those_that_wait_have_none(monkeypatch) -> None:
    async def answer(self, request):
        return HttpResponse(str(await sync_to_async(threading.get_ident)()))

    monkeypatch.setattr(admission, "_places", lambda purpose: 2)
    monkeypatch.setattr(ASGIHandler, "run_get_response", answer)
    handle, ask, before = AdmittingHandler().run_get_response, AsyncRequestFactory(), threading.active_count()
    asked = [asyncio.create_task(handle(ask.get(f"/api/v1/runs?page={page}"))) for page in range(50)]
    assert len({answer.content for answer in await asyncio.gather(*asked)}) == 2
    assert threading.active_count() <= before + 2


async def test_a_stream_goes_on_in_a_thread_of_its_own(monkeypatch) -> None:
    seen: list[int] = []

    async def told():
        seen.append(await sync_to_async(threading.get_ident)())
        yield b""

    async def answer(self, request):
        seen.append(await sync_to_async(threading.get_ident)())
        return StreamingHttpResponse(told())

    monkeypatch.setattr(admission, "_places", lambda purpose: 1)
    monkeypatch.setattr(ASGIHandler, "run_get_response", answer)
    response = await AdmittingHandler().run_get_response(AsyncRequestFactory().get("/api/v1/runs"))
    async for _ in response:
        pass
    assert seen[0] != seen[1]


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (PoolTimeout("full"), "busy"),
        (psycopg.errors.QueryCanceled("slow"), "query_timeout"),
        (None, "database_unavailable"),
    ],
)
def test_what_the_database_refuses_is_a_503_with_a_next_step(cause, code) -> None:
    error = OperationalError("failed")
    error.__cause__ = cause
    answer = problem_response(error, {"request": SimpleNamespace(path="/api/v1/runs")})
    assert (answer.status_code, answer.data["code"], "Retry-After" in answer.headers) == (503, code, True)


@pytest.mark.parametrize("error", [OperationalError("gone"), psycopg.OperationalError("gone")])
def test_a_database_that_is_away_is_said_by_name(error) -> None:
    answer = problem_response(error, {"request": SimpleNamespace(path="/api/v1/runs")})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert answer.data["code"] == "database_unavailable"
