"""Engines for runs without any: started when somebody asks, few, stopped when nobody does, told when they fail."""

import asyncio
import os
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from flexmarl.contracts.plane_tokens import TokenPlane, check
from flexmarl.contracts.play import ENGINES_BUSY, PlayEngine, PlayRefusal, PlayRequest
from flexmarl.store.data.steps import PolicyVersionRow
from flexmarl.store.errors import Refused
from workers import settings
from workers.nodes import playground
from workers.nodes.playground import Playground
from workers.rollout.engines.wire import Stats

ROOT = Path(__file__).resolve().parents[3]
URLS = {"DATABASE_URL": "postgresql://here/x", "REDIS_URL": "redis://here/0"}
FAKE = "tests.integration.children.fakechild"
DIGEST = "d" * 64


async def store(call):
    """Every run has version 3 of the policy `speaker` and none of others."""
    asked = call.keywords["asked"]
    if asked.policy != "speaker":
        raise Refused("no_version", f"{asked.policy} has no version {asked.version}")
    return PolicyVersionRow("speaker", asked.version, None, DIGEST, ""), {"agents": {}}


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
async def make(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "platform")]))
    made = []

    def build(**options):
        config = settings.load({**URLS, "FLEXMARL_HOME": str(tmp_path), "FLEXMARL_CLUSTER_KEY": "k"})
        made.append(Playground(config, store, **{"module": FAKE, **options}))
        return made[-1]

    yield build
    for ground in made:
        await ground.close()


async def until(ask, good):
    while not good(answer := await ask()):
        await asyncio.sleep(0.05)
    return answer


def asked(run=1, policy="speaker"):
    return PlayRequest(run_id=run, policy=policy, version=3)


async def ready(ground, session, run=1):
    return await until(lambda: ground.ask(session, asked(run)), lambda a: isinstance(a, PlayRefusal) or a.endpoint)


def answering(busy):
    """Stand in for what engines say of themselves: those of some runs answer somebody."""

    async def stats(client):
        return Stats("e", int(client.child.run_id in busy), 0, 8, 0, 0, {})

    return stats


def children():
    return [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]


async def test_an_engine_starts_when_somebody_asks_and_ends_when_nobody_does(make, session) -> None:
    ground, before = make(idle_s=0.2), len(children())
    first = await ground.ask(session, asked())
    assert isinstance(first, PlayEngine)
    assert not first.endpoint, "the answer does not wait for the process"
    engine = await ready(ground, session)
    assert engine.digest == DIGEST
    secret = ground._lives[1].config.secret
    assert check(secret, engine.token, 1, time.time()).plane is TokenPlane.ROLLOUT
    headers = {"Authorization": f"Bearer {engine.token}"}
    async with session.post(f"{engine.endpoint}/load", json={}, headers=headers) as refused:
        assert refused.status == 403, "the token opens generation alone"
    assert len(children()) == before + 1
    await asyncio.sleep(0.3)
    await ground.tend()
    assert len(children()) == before


async def test_the_run_asked_least_recently_makes_room(make, session, monkeypatch) -> None:
    monkeypatch.setattr(playground, "CLAIMED_S", 0.0)
    monkeypatch.setattr(playground.ChildClient, "stats", answering(set()))
    ground, before = make(), len(children())
    for run in (1, 2, 1, 3):
        await ready(ground, session, run)
    assert set(ground._lives) == {1, 3}
    assert len(children()) == before + playground.MOST_ENGINES
    await ground.close()
    assert len(children()) == before


async def test_an_engine_that_somebody_waits_for_makes_no_room(make, session, monkeypatch) -> None:
    ground = make()
    for run in (1, 2):
        await ready(ground, session, run)
    refused = await ground.ask(session, asked(3))
    assert isinstance(refused, PlayRefusal), "whoever was just told of them is about to ask"
    assert refused.code == ENGINES_BUSY
    assert "numbers 1, 2" in refused.detail
    monkeypatch.setattr(playground, "CLAIMED_S", 0.0)
    busy = {1}
    monkeypatch.setattr(playground.ChildClient, "stats", answering(busy))
    await ready(ground, session, 3)
    assert set(ground._lives) == {1, 3}, "1 was asked less recently, and answers somebody"
    busy |= {3}
    assert isinstance(await ground.ask(session, asked(2)), PlayRefusal)
    await ground.close()


async def test_what_is_not_there_is_refused_before_anything_starts(make, session) -> None:
    ground, before = make(), len(children())
    refused = await ground.ask(session, asked(policy="listener"))
    assert isinstance(refused, PlayRefusal)
    assert (refused.code, len(children())) == ("no_version", before)


async def test_an_engine_that_ends_is_told_and_tried_again_later(make, session, monkeypatch) -> None:
    ground = make(module="no_such_module")
    refused = await ready(ground, session)
    assert (refused.code, "ended with code 1" in refused.detail) == ("engine_failed", True)
    assert isinstance(await ground.ask(session, asked()), PlayRefusal), "told, not started over and over"
    monkeypatch.setattr(playground, "FAILED_S", 0.0)
    await ground.tend()
    assert isinstance(await ground.ask(session, asked()), PlayEngine)
    await ground.close()
