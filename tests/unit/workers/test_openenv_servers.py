"""Environments of OpenEnv through real builds and processes: what they say, earn and break.

In short, a stand-in of a few lines for the library is in the wheel; in full it is the real one as well, the same
environments do what they are told, and the examples are played.
"""

import asyncio
import subprocess
import zipfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from flexmarl.contracts.package_manifests import PackageManifest
from flexmarl.contracts.specification.package import PackageEnvironment, PinnedPackage
from flexmarl.language.messages import Message, ToolCall
from tests.support.builds import no_store, went_on
from tests.support.forms import form
from tests.support.openenv_package import NAME, odd_places, sample_environment
from workers.packages.building import BuildOrder, manifest_of
from workers.packages.folders import SEEN, base_python, build_of, keep, new_folder
from workers.packages.running import run_build
from workers.rollout.environments.base import Outcome, Reply
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.packages import Builds, PackagePool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(1800)]

APP = f"{NAME}.server.app:app"
ENTRIES = {"places": APP, "shelf": f"{NAME}.shelf:app", "counter": f"{NAME}.counter:app"}
SHORT_S = 3.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def built(home: Path, distribution: str, file: Path) -> dict[str, Any]:
    said = asyncio.run(run_build(home, BuildOrder(distribution, "", str(file)), home / "log", went_on))
    if said.get("code") == "index_unreachable":
        pytest.skip("the package index cannot be reached")
    assert "digest" in said, said
    return said


@pytest.fixture(scope="module")
def number(home: Path) -> dict[str, Any]:
    """The sample environment of the hidden number, with the library of its older name."""
    return built(home, "openenv-hidden-number", sample_environment(home, "hidden_number"))


@pytest.fixture(scope="module", params=form(short=["stand-in"], full=["stand-in", "real"]))
def odd(request: pytest.FixtureRequest, home: Path) -> dict[str, Any]:
    """The build of the environments that do what they are told."""
    real = request.param == "real"
    if real:
        # Another build of all that the library needs would take minutes: it is laid into one that is there.
        digest = request.getfixturevalue("number")["digest"]
    else:
        digest, made = "0" * 64, new_folder(home)
        subprocess.run([base_python(), "-m", "venv", "--without-pip", made / "venv"], check=True)
        made.chmod(SEEN)
        keep(home, made, digest)
    folder = build_of(home, digest)
    assert folder is not None
    with zipfile.ZipFile(BytesIO(odd_places(alone=real)[1])) as archive:
        archive.extractall(next((folder / "venv" / "lib").glob("python*/site-packages")))
    manifest = manifest_of(folder, BuildOrder("odd-places", ""))
    return {"digest": digest, "manifest": manifest.model_dump(mode="json")}


def pool_of(home: Path, built: dict[str, Any], name: str, options: dict[str, Any], **settings: Any) -> PackagePool:
    entry = ENTRIES.get(name, f"{name}.server.app:app")
    offer = next(one for one in built["manifest"]["environments"] if one["entry"] == entry)
    pinned = PinnedPackage(
        id="00000000-0000-0000-0000-000000000001", digest=built["digest"],
        **{key: offer[key] for key in ("adapter", "entry", "title", "roles", "opens", "best_score")},
    )  # fmt: skip
    given = {"setup_timeout_s": 300.0, "step_timeout_s": 60.0, "max_turns": 5, **settings}
    spec = PackageEnvironment(package="odd@1.0", environment=offer["name"], options=options, pinned=pinned, **given)
    return PackagePool(spec, builds=Builds(home, no_store))


@pytest_asyncio.fixture(loop_scope="module")
async def pools() -> AsyncIterator[list[PackagePool]]:
    made: list[PackagePool] = []
    yield made
    for one in made:
        await one.close()


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments, f"call {name}")


def reply(said: str | list[ToolCall]) -> Reply:
    message = Message("assistant", said) if isinstance(said, str) else Message("assistant", "", tool_calls=tuple(said))
    return Reply("player", message.content, message)


async def played(pool: PackagePool, says: list[Any], seed: int = 1) -> tuple[Outcome, list[list[Message]]]:
    """Play one episode; returns what it came to, and the messages of each turn."""
    live = await pool.begin(seed, False, 1)
    told = []
    try:
        for said in says:
            if not (asks := live.asks()):
                break
            told.append(list(asks[0].messages))
            await live.act([reply(said)])
        return live.outcome(), told
    finally:
        live.leave()


async def first_words(pool: PackagePool, seed: int = 1) -> str:
    live = await pool.begin(seed, False, 1)
    try:
        return live.asks()[0].messages[-1].content
    finally:
        live.leave()


class Odd:
    """Plays what does what it is told."""

    def __init__(self, home: Path, odd: dict[str, Any], pools: list[PackagePool]) -> None:
        self.home, self.odd, self.pools = home, odd, pools

    def pool(self, options: dict[str, Any], name: str = "places", **settings: Any) -> PackagePool:
        self.pools.append(pool_of(self.home, self.odd, name, options, **settings))
        return self.pools[-1]

    async def broke(self, what: str, **settings: Any) -> str:
        """Return why an episode failed."""
        pool = self.pool({"what": what}, **settings)
        with pytest.raises(EnvironmentBroke) as broke:
            await played(pool, ["on"] * 5)
        return str(broke.value)


@pytest.fixture
def playing(home: Path, odd: dict[str, Any], pools: list[PackagePool]) -> Odd:
    return Odd(home, odd, pools)


async def test_a_manifest_names_the_servers_of_a_distribution_and_what_reset_takes(odd: dict[str, Any]) -> None:
    manifest = PackageManifest.model_validate(odd["manifest"])
    offers = {one.entry: one for one in manifest.environments}
    assert sorted(offers) == sorted(ENTRIES.values())
    assert {one.adapter for one in manifest.environments} == {"openenv"}
    # Servers of the library's versions up to 0.3 keep no name of their own.
    older = {NAME, f"{NAME}.shelf", f"{NAME}.counter"}
    assert {one.name for one in manifest.environments} in (set(ENTRIES), older)
    places = offers[APP]
    assert (places.summary, places.roles) == ("Go on for three steps.", ("player",))
    assert places.options["properties"]["what"] == {"type": "string", "default": "well"}
    assert {"seed", "episode_id"}.isdisjoint(places.options["properties"])
    assert places.options["additionalProperties"] is False
    assert [(one.name, one.reason) for one in manifest.left_out] == [
        (f"{NAME}.broken:app", "RuntimeError: not today"),
    ]
    assert not manifest.servers, "its console scripts are no servers of tools"


async def test_a_text_is_an_action_and_rewards_are_added(playing: Odd) -> None:
    pool = playing.pool({})
    outcome, told = await played(pool, ["Left", "Right", "Left"], seed=3)
    assert (outcome.team_score, outcome.scores) == (0.75, {"player": 0.75})
    assert outcome.turn_rewards == {("player", turn): 0.25 for turn in range(3)}
    assert [[one.role for one in turn] for turn in told] == [["system", "user"], ["user"], ["user"]]
    assert told[0][0].content == "What you say is your action as it is: word."
    assert [turn[-1].content for turn in told] == ["You are at 6.", "Left brought you on.", "Right brought you on."]
    assert await played(pool, ["Left", "Right", "Left"], seed=3) == (outcome, told), "equal seeds, equal episodes"
    assert (await played(playing.pool({"episode_reward": "last"}), ["on"] * 3))[0].team_score == 0.25


async def test_reset_is_told_a_seed_and_who_asks_and_the_server_its_variables(playing: Odd) -> None:
    assert await first_words(playing.pool({"what": "ids"}), seed=3) == "6 6-1"
    assert await first_words(playing.pool({"what": "variable", "variables": {"ODD": "north"}})) == "north"


async def test_a_typed_action_is_asked_for_as_json_and_what_is_none_is_told(playing: Odd) -> None:
    right = 'I take two: {"item": "apple", "pieces": 2}'
    says = ["two apples", '{"item": "rope", "pieces": 2}', '{"item": "mug"}', right]
    outcome, told = await played(playing.pool({}, "shelf"), says)
    assert outcome.team_score == 1.0
    assert outcome.turn_rewards == {("player", 3): 1.0}
    assert outcome.facts["illegal"] == 3.0
    rules = told[0][0].content
    assert rules.startswith("Answer with one JSON object of this schema, and nothing after it: {")
    assert '"pieces"' in rules
    assert '"metadata"' not in rules
    assert '"title"' not in rules
    assert told[1][-1].content == f"That has no JSON object. {rules}"
    assert told[2][-1].content.startswith("That is no legal action. item: Input ")
    assert told[3][-1].content == "That is no legal action. pieces: Field required"


async def test_actions_that_are_calls_become_tools(playing: Odd) -> None:
    pool = playing.pool({}, "counter")
    live = await pool.begin(1, False, 1)
    [tool] = live.asks()[0].tools
    assert tool["function"]["name"] == "price"
    assert tool["function"]["parameters"]["required"] == ["item"]
    live.leave()
    outcome, told = await played(pool, [[call("prize"), call("price", item="a")], [call("price", item="b")] * 3])
    assert outcome.team_score == 1.0
    assert [one.content for one in told[1]] == ["There is no tool prize.", "3"]
    assert [one.tool_call_id for one in told[1]] == ["call prize", "call price"]
    outcome, _ = await played(pool, [[call("price", item="a")], "It costs 3."])
    assert outcome.team_score == 0.5, "who calls nothing has ended the episode"


BROKEN = {
    "raise_reset": "boot: its reset failed: EXECUTION_ERROR: no place to begin",
    "raise_step": "step: its step failed: EXECUTION_ERROR: the road is closed",
    "die_step": "step: its process died",
    "large_step": "step: oversized: its messages have 100000000 characters, at most 1048576 are read",
    "none": "score: none: the last observation has no reward",
    "nan": "score: none: the last observation has no reward",
    "end_none": "score: none: the last observation has no reward",
}


@pytest.mark.parametrize("what", list(BROKEN))
async def test_what_befalls_an_environment_is_named_and_nothing_is_earned(playing: Odd, what: str) -> None:
    assert await playing.broke(what) == BROKEN[what]


async def test_what_hangs_is_ended_by_its_deadline(playing: Odd) -> None:
    for what, of, reason in (("hang_reset", "setup", "boot"), ("hang_step", "step", "step")):
        pool = playing.pool({"what": what})
        pool.spec = pool.spec.model_copy(update={f"{of}_timeout_s": SHORT_S})
        with pytest.raises(EnvironmentBroke, match=f"^{reason}: no answer within 3 s$"):
            await played(pool, ["on"] * 3)
    pool = playing.pool({"what": "hang_close"}, close_timeout_s=1.0)
    assert (await played(pool, ["on"] * 3))[0].team_score == 0.75
    [closing] = pool._closing
    await closing
    assert not pool._resting


async def test_an_environment_that_cannot_be_made_says_why(playing: Odd) -> None:
    pool = playing.pool({"variables": {"ODD": "broken"}})
    with pytest.raises(EnvironmentBroke, match=r"^boot: its reset failed: FACTORY_ERROR: .*FileNotFoundError: places"):
        await played(pool, ["on"])


async def test_no_reward_is_not_0(playing: Odd) -> None:
    assert (await played(playing.pool({"what": "sparse"}), ["on"] * 3))[0].team_score == 1.0
    cut = playing.pool({"what": "sparse"}, max_turns=2)
    known = "none of its 2 observations has a reward, and the option unfinished_reward does not say what it is worth"
    with pytest.raises(EnvironmentBroke, match=f"^score: none: {known} unfinished$"):
        await played(cut, ["on"] * 3)
    worth = playing.pool({"what": "sparse", "unfinished_reward": 0.125}, max_turns=2)
    outcome, _ = await played(worth, ["on"] * 3)
    assert (outcome.team_score, outcome.facts["cut_off"], outcome.turn_rewards) == (0.125, 1.0, {})
    outcome, told = await played(playing.pool({"what": "over"}), ["on"])
    assert (outcome.team_score, told) == (0.5, [])


async def test_episodes_side_by_side_meet_no_limit_of_sessions(playing: Odd) -> None:
    pool = playing.pool({})
    outcomes = await asyncio.gather(*(played(pool, ["on"] * 3, seed) for seed in range(6)))
    assert [outcome.team_score for outcome, _ in outcomes] == [0.75] * 6


@pytest.fixture
def shelf(home: Path) -> dict[str, Any]:
    """The sample environment of the shelf, with the library of its newer name."""
    return built(home, "openenv-shop-shelf", sample_environment(home, "shop_shelf"))


@pytest.mark.full
async def test_the_examples_are_played_unchanged_with_both_names_of_the_library(
    home: Path, number: dict[str, Any], shelf: dict[str, Any], pools: list[PackagePool]
) -> None:
    versions = [{one["name"]: one["version"] for one in said["lock"]} for said in (number, shelf)]
    assert "openenv-core" in versions[0]
    assert versions[1]["openenv"] >= "0.10"
    pools.append(pool_of(home, number, "hidden_number", {"largest": 3}))
    outcome, told = await played(pools[0], ["1", "2", "3"])
    assert outcome.team_score == 1.0
    assert told[0][-1].content == "hint: A number from 1 to 3 is hidden.\nguesses_left: 4"
    pools.append(pool_of(home, shelf, "shop_shelf", {}))
    says = ["none", '{"item": "mug", "pieces": 7}', *(f'{{"item": "{one}", "pieces": 9}}' for one in ("mug", "apple"))]
    outcome, told = await played(pools[1], says)
    assert (outcome.team_score, outcome.facts["illegal"]) == (0.0, 2.0)
    assert told[2][-1].content == "That is no legal action. pieces: Value error, 7 pieces are never taken"
