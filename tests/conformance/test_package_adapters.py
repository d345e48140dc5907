"""Real packages of the index through their adapters: built, described, and played twice to the same transcript."""

import random
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from flexmarl.contracts.specification.package import PackageEnvironment, PinnedPackage
from flexmarl.language.messages import Message
from tests.support.forms import form
from tests.support.package_files import sample_distribution
from workers.packages.building import BuildOrder
from workers.packages.running import run_build
from workers.rollout.environments.base import Ask, Outcome, Reply
from workers.rollout.packages import Builds, PackagePool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

GAMES = {
    "gymnasium": (
        "gymnasium[toy-text]==1.3.0",
        {"Blackjack-v1": {"natural": True}, "FrozenLake-v1": {}, "CliffWalking-v1": {}},
    ),
    "textarena": ("textarena==0.7.4", {"TicTacToe-v0": {}, "Nim-v0": {}, "GuessTheNumber-v0": {}}),
    "pettingzoo": ("pettingzoo==1.27.0", {"tictactoe_v3": {}, "connect_four_v3": {}, "rps_v2": {}}),
}
"""Distribution -> requirement, and environments with options."""


async def went_on(now: str, log: str) -> bool:
    return True


async def no_store(call: Any) -> Any:
    raise AssertionError("the build is here")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=form(short=["gymnasium"], full=list(GAMES)))
async def built(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    home = tmp_path_factory.mktemp("home")
    requirement, _ = GAMES[request.param]
    said = await run_build(home, BuildOrder(request.param, requirement), home / "log", went_on)
    if said.get("code") == "index_unreachable":
        pytest.skip("the package index cannot be reached")
    assert "digest" in said, said
    return home, said, request.param


def pool_of(home: Path, said: dict[str, Any], name: str, options: dict[str, Any]) -> PackagePool:
    offer = next(one for one in said["manifest"]["environments"] if one["name"] == name)
    pinned = PinnedPackage(
        id="00000000-0000-0000-0000-000000000001", digest=said["digest"],
        **{key: offer[key] for key in ("adapter", "entry", "title", "roles", "opens", "best_score")},
    )  # fmt: skip
    spec = PackageEnvironment(package="game@1", environment=name, options=options, pinned=pinned, setup_timeout_s=120.0)
    return PackagePool(spec, builds=Builds(home, no_store))


def answer(ask: Ask, rng: random.Random) -> Reply:
    """Say a number; some of them are legal moves."""
    text = f"[{rng.randrange(9)}]"
    return Reply(ask.role, text, Message("assistant", text))


async def transcript(pool: PackagePool) -> tuple[list[tuple[str, str]], Outcome]:
    rng, told = random.Random(7), []
    live = await pool.begin(3, False, 1)
    try:
        while asks := live.asks():
            told += [(ask.role, message.content) for ask in asks for message in ask.messages]
            await live.act([answer(ask, rng) for ask in asks])
        return told, live.outcome()
    finally:
        live.leave()


async def test_games_are_played_twice_to_the_same_transcript(built: tuple[Path, dict[str, Any], str]) -> None:
    home, said, distribution = built
    for name, options in GAMES[distribution][1].items():
        pool = pool_of(home, said, name, options)
        told, outcome = await transcript(pool)
        assert told
        assert set(outcome.scores) == set(pool.spec.pinned.roles)
        assert await transcript(pool) == (told, outcome), name
        await pool.close()


async def test_the_sample_distribution_is_played_as_an_uploaded_package(tmp_path: Path) -> None:
    path = sample_distribution(tmp_path)
    order = BuildOrder("flexmarl-sample-plugins", "", str(path))
    said = await run_build(tmp_path, order, tmp_path / "log", went_on)
    if said.get("code") == "index_unreachable":
        pytest.skip("the package index cannot be reached")
    assert "digest" in said, said
    pool = pool_of(tmp_path, said, "same_word", {"words": 8, "offered": 2})
    told, _ = await transcript(pool)
    assert [role for role, _ in told] == ["left", "right"]
    live = await pool.begin(3, False, 1)
    word = live.asks()[0].messages[0].content.split()[1]
    await live.act([Reply(role, f"I pick {word}.", Message("assistant", word)) for role in ("left", "right")])
    assert live.outcome().team_score == 1.0
    live.leave()
    await pool.close()
