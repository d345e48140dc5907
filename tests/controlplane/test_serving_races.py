"""Quotas of serving keys are exact whoever asks at once, and who goes away pays for what was made until then.

Calls come from threads with connections of their own, and through a real web process over the test's database.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from django.db import connections

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.choices import ProjectRole
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.playground import keys, quotas
from flexmarl.controlplane.playground.models import ServingCall, ServingDay
from flexmarl.controlplane.playground.quotas import Meter, QuotaExceeded
from flexmarl.launcher.processes import wait_until
from tests.controlplane.test_disconnects import server
from tests.support.played import play
from tests.support.playground_stage import SHARED, Stage
from tests.support.talking_engine import TalkingEngine, serving

__all__ = ["server"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.services]
PARALLEL = 24
LONG = {"max_tokens": 60, "messages": [{"role": "user", "content": "red blue"}]}


@pytest.fixture
def make_key(person) -> Callable[..., Any]:
    boss = actor_of_user(person(ProjectRole.ADMIN, "boss"))
    return lambda requests, tokens: keys.create(boss, "default", "app", requests, tokens)


@pytest.fixture
def stage(editor, make_run) -> Iterator[Stage]:
    run = make_run(editor, RunStatus.RUNNING, agents=SHARED)
    with serving(TalkingEngine(parts=True, pause_s=0.1)) as engine:
        found = Stage(run, play(run), engine, None, f"{run.key}/speaker")
        found.live(1)
        yield found


def in_parallel(work: Callable[[], Any]) -> list[Any]:
    line, found = threading.Barrier(PARALLEL), []

    def alone() -> None:
        line.wait()
        try:
            found.append(work())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=alone) for _ in range(PARALLEL)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def let_in(meter: Meter, most: int) -> bool:
    try:
        meter.open(most)
    except QuotaExceeded:
        return False
    return True


@pytest.mark.parametrize(("requests", "tokens", "fit"), [(7, 10_000, 7), (100, 55, 5)], ids=["requests", "tokens"])
def test_as_many_calls_as_fit_are_let_in(make_key, monkeypatch, requests, tokens, fit) -> None:
    monkeypatch.setattr(quotas, "MINUTE_S", 10**12)  # one minute for the whole test
    key, _ = make_key(requests, tokens)
    assert sum(in_parallel(lambda: let_in(Meter(key), 10))) == fit
    day = ServingDay.objects.get()
    assert (day.requests, day.refused, ServingCall.objects.count()) == (fit, PARALLEL - fit, fit)


def test_every_call_is_charged_once(make_key) -> None:
    key, _ = make_key(120, 10_000)

    def call() -> None:
        meter = Meter(key)
        meter.open(10)
        meter.close(2, 5)
        meter.close(2, 5)

    in_parallel(call)
    day = ServingDay.objects.get()
    assert (day.requests, day.prompt_tokens, day.completion_tokens) == (PARALLEL, 2 * PARALLEL, 5 * PARALLEL)
    assert not ServingCall.objects.exists()


def charged() -> bool:
    return ServingDay.objects.exists() and not ServingCall.objects.exists()


@pytest.mark.slow
def test_who_goes_away_pays_for_what_was_made(server, make_key, stage) -> None:
    _, text = make_key(120, 10_000)
    client = openai.OpenAI(base_url=f"{server}/v1", api_key=text, max_retries=0)
    stream = client.chat.completions.create(model=stage.name, stream=True, **LONG)
    for _, _ in zip(range(4), stream, strict=False):
        pass
    stream.close()
    assert wait_until(charged, 20)
    day = ServingDay.objects.get()
    assert (day.requests, day.prompt_tokens) == (1, 2)
    assert 3 <= day.completion_tokens < 30
    assert wait_until(lambda: len(stage.engine.left) == 1, 20), "the engine's reader went away too"

    before = day.completion_tokens
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1.5).chat.completions.create(model=stage.name, **LONG)
    assert wait_until(charged, 20)
    day = ServingDay.objects.get()
    assert (day.requests, day.prompt_tokens) == (2, 4)
    assert 3 <= day.completion_tokens - before < 40
    assert wait_until(lambda: len(stage.engine.left) == 2, 20)

    began = time.monotonic()
    answer = client.chat.completions.create(model=stage.name, **{**LONG, "max_tokens": 2})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2, f"its place was free {time.monotonic() - began:.1f} s after"
