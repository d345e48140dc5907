"""Reward functions of other packages: in processes of their own, killed at their deadline, nobody else's trouble."""

import asyncio
import os
from pathlib import Path
from typing import ClassVar, Literal

import psutil
import pytest

from flexmarl.contracts.specification.reward import QueuedReward
from tests.support.ended import ended
from tests.unit.workers.test_reward_functions import PLAYED
from workers.external_access import ExternalAccess
from workers.rewards.base import Played, RewardFailed
from workers.rewards.functions import checked, reward_function

pytestmark = pytest.mark.slow

MODULE = """
import os, time

def score(played, settings):
    print("what a function prints is no answer")
    if played["draw"] == 1:
        time.sleep(3600)
    if played["draw"] == 2:
        os._exit(3)
    if played["draw"] == 3:
        raise ValueError("no such draw")
    if played["draw"] == 5:
        return {"scores": {}}
    scores = {role: settings["factor"] * score for role, score in played["scores"].items()}
    secrets = sum("SECRET" in name or "DATABASE" in name for name in os.environ)
    return {"scores": scores, "team_score": 1, "facts": {"pid": os.getpid(), "secrets": secrets}}
"""
HANGS, DIES, RAISES, WELL, EMPTY = 1, 2, 3, 4, 5


class Multiplied(QueuedReward):
    """The environment's scores times a factor."""

    type: Literal["multiplied"] = "multiplied"
    factor: int = 2

    implementation: ClassVar[str] = "scorers:score"


class Missing(QueuedReward):
    """A reward whose code is not installed."""

    type: Literal["missing"] = "missing"

    implementation: ClassVar[str] = "nowhere:score"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with the code of `Multiplied`, which processes of rewards can import."""
    (tmp_path / "scorers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", "postgresql://of-the-worker")


def function_of(timeout_s: float = 120.0, factor: int = 2):
    return reward_function(Multiplied(factor=factor, timeout_s=timeout_s), ExternalAccess())


def played(draw: int) -> Played:
    return Played(draw, 0, 1, PLAYED.environment, PLAYED.task, PLAYED.turns, PLAYED.scores, PLAYED.team_score, True, {})


async def test_a_function_is_called_in_a_process_that_is_used_again_and_knows_no_secret(package: None) -> None:
    function = function_of()
    first, second = await function(played(WELL)), await function(played(WELL))
    assert first.scores == {"guesser": 1.0, "hinter": 0.5}
    assert (first.team_score, first.facts["secrets"]) == (1.0, 0.0)
    assert first.facts["pid"] == second.facts["pid"]
    await function.close()
    assert ended(int(first.facts["pid"]))


async def test_what_befalls_one_reward_is_its_own_reason_and_the_next_is_computed(package: None) -> None:
    function = function_of()
    for draw, reason, may_pass in (
        (RAISES, "ValueError: no such draw", False),
        (DIES, "its process died: without an answer", True),
        (EMPTY, "bad_reply: no scores", False),
    ):
        with pytest.raises(RewardFailed) as failed:
            checked(await function(played(draw)), played(draw))
        assert (reason in failed.value.reason, failed.value.may_pass) == (True, may_pass), failed.value.reason
        assert (await function(played(WELL))).team_score == 1.0
    await function.close()


async def test_one_that_hangs_is_killed_at_its_deadline_and_holds_no_other(package: None, monkeypatch) -> None:
    monkeypatch.setattr("workers.line_processes.PROCESSES", 2)
    hanging, before = function_of(timeout_s=6.0), set(psutil.Process().children())
    work = asyncio.create_task(hanging(played(HANGS)))
    others = [await hanging(played(WELL)) for _ in range(3)]
    assert not work.done(), "the others were computed while it hung"
    assert len({one.facts["pid"] for one in others}) == 1
    children = [one for one in set(psutil.Process().children()) - before if one.pid != others[0].facts["pid"]]
    assert len(children) == 1
    with pytest.raises(RewardFailed, match="timeout: no result within 6 s") as failed:
        await work
    assert failed.value.may_pass
    async with asyncio.timeout(60):
        while not all(map(ended, children)):
            await asyncio.sleep(0.02)
    await hanging.close()


async def test_a_reward_that_nobody_waits_for_ends_its_process(package: None) -> None:
    function, before = function_of(), set(psutil.Process().children())
    work = asyncio.create_task(function(played(HANGS)))
    async with asyncio.timeout(60):
        while not (mine := set(psutil.Process().children()) - before):
            await asyncio.sleep(0.02)
        work.cancel()
        while not all(map(ended, mine)):
            await asyncio.sleep(0.02)
    await function.close()


async def test_code_that_is_not_installed_here_is_named() -> None:
    function = reward_function(Missing(), ExternalAccess())
    with pytest.raises(RewardFailed, match="ModuleNotFoundError: No module named 'nowhere'"):
        await function(played(WELL))
    await function.close()


async def test_a_function_is_given_the_settings_of_the_specification(package: None) -> None:
    function = function_of(factor=3)
    earned = await function(played(WELL))
    assert earned.scores == {"guesser": 1.5, "hinter": 0.75}
    assert earned.facts["pid"] != os.getpid()
    await function.close()
