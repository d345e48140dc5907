"""A package is built and plays in an interpreter of its own: what hangs, dies, floods or escapes fails by name."""

import asyncio
import hashlib
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psutil
import pytest
import pytest_asyncio

from flexmarl.contracts.package_manifests import PackageManifest
from flexmarl.contracts.specification.package import PackageEnvironment, PinnedPackage
from flexmarl.language.messages import Message, ToolCall
from flexmarl.store.control import package_rows
from tests.support.builds import no_store, went_on
from tests.support.package_files import NAME, wheel
from workers.nodes.packages import Packages
from workers.packages.building import BuildOrder
from workers.packages.folders import MAKING, build_of, root_of
from workers.packages.running import run_build
from workers.rollout.environments.base import Outcome, Reply
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.packages import Builds, PackagePool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

SHORT_S = 3.0
ENTRY = f"{NAME}:Mischief"
MOVE = Message("assistant", "", tool_calls=(ToolCall("move", {"kind": "left"}, "1"),))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built(home: Path) -> dict[str, Any]:
    """The one build that the tests share."""
    name, body = wheel()
    path = home / name
    path.write_bytes(body)
    return await run_build(home, BuildOrder("mischief-games", "", str(path), ENTRY), home / "log", went_on)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(home: Path, built: dict[str, Any]) -> AsyncIterator[PackagePool]:
    made = pool_of(home, built)
    yield made
    await made.close()


def pool_of(home: Path, built: dict[str, Any], **settings: Any) -> PackagePool:
    offer = built["manifest"]["environments"][0]
    pinned = PinnedPackage(
        id="00000000-0000-0000-0000-000000000001", digest=built["digest"],
        **{name: offer[name] for name in ("adapter", "entry", "title", "roles", "opens", "best_score")},
    )  # fmt: skip
    spec = PackageEnvironment(
        package="mischief-games@1.0", environment=offer["name"], pinned=pinned, setup_timeout_s=60.0,
        step_timeout_s=60.0, max_turns=4, memory_mb=512, **settings,
    )  # fmt: skip
    return PackagePool(spec, builds=Builds(home, no_store))


async def played(pool: PackagePool, heard: list[str] | None = None) -> Outcome:
    """Play three moves and end."""
    live = await pool.begin(1, False, 1)
    try:
        moves = 0
        while asks := live.asks():
            if heard is not None:
                heard += [message.content for message in asks[0].messages]
            message = MOVE if moves < 3 else Message("assistant", "done")
            await live.act([Reply("player", message.content, message)])
            moves += 1
        return live.outcome()
    finally:
        live.leave()


async def misbehaves(home: Path, built: dict[str, Any], what: str, **settings: Any) -> str:
    """Return why an episode failed."""
    pool = pool_of(home, built, options={"what": what})
    deadlines = ("setup_timeout_s", "step_timeout_s", "score_timeout_s", "close_timeout_s")
    short = {name: SHORT_S for name in deadlines if name in settings.get("short", ())}
    pool.spec = pool.spec.model_copy(update=short)
    try:
        with pytest.raises(EnvironmentBroke) as broke:
            await played(pool)
        return str(broke.value)
    finally:
        await pool.close()


async def test_a_build_says_what_was_installed_and_what_it_offers(home: Path, built: dict[str, Any]) -> None:
    manifest = PackageManifest.model_validate(built["manifest"])
    [offer] = manifest.environments
    assert (offer.name, offer.adapter, offer.entry, offer.roles) == ("Mischief", "trl", ENTRY, ("player",))
    assert offer.options["properties"] == {
        "what": {"type": "string", "default": "well"}, "moves": {"type": "integer", "default": 3},
    }  # fmt: skip
    [lock] = built["lock"]
    assert (lock["name"], lock["version"]) == ("mischief-games", "1.0")
    assert lock["sha256"] == hashlib.sha256(wheel()[1]).hexdigest()
    assert build_of(home, built["digest"]) is not None
    assert not list(root_of(home).glob(f"{MAKING}*"))


async def test_an_episode_is_played_with_tools_and_scored(shared: PackagePool) -> None:
    heard: list[str] = []
    outcome = await played(shared, heard)
    assert (outcome.scores, outcome.team_score) == ({"player": 0.75}, 0.75)
    assert heard == ["Call move.", *["moved left"] * 3]
    again: list[str] = []
    assert (await played(shared, again), again) == (outcome, heard)


@pytest.mark.parametrize(
    ("what", "short", "reason"),
    [
        ("hang_boot", "setup_timeout_s", "boot: no answer within 3 s"),
        ("die_boot", "", "boot: its process died"),
        ("large_boot", "", "boot: oversized: its messages have 100000000 characters, at most 1048576 are read"),
        ("hang_step", "step_timeout_s", "step: no answer within 3 s"),
        ("spin_step", "step_timeout_s", "step: no answer within 3 s"),
        ("flood_step", "step_timeout_s", "step: no answer within 3 s"),
        ("die_step", "", "step: its process died"),
        ("large_step", "", "step: oversized: its messages have 100000000 characters, at most 1048576 are read"),
        ("garbage", "", "step: garbage: its line is not an answer: JSON is malformed: invalid character (byte 0)"),
        ("endless_line", "", "step: oversized: a line of more than 1048576 bytes"),
        ("nan", "", "score: nonfinite: the score of player is nan, not a finite number"),
        ("hang_score", "score_timeout_s", "score: no answer within 3 s"),
        ("raise_score", "", "score: RuntimeError: no account was kept"),
        ("memory", "", "step: memory: more than 512 MiB of address space"),
    ],
)
async def test_what_befalls_an_episode_is_named(
    home: Path, built: dict[str, Any], what: str, short: str, reason: str
) -> None:
    assert await misbehaves(home, built, what, short=(short,)) == reason


async def test_an_episode_that_is_not_let_go_of_counts_and_its_process_ends(home: Path, built: dict[str, Any]) -> None:
    pool = pool_of(home, built, options={"what": "hang_close"}, close_timeout_s=1.0)
    assert (await played(pool)).team_score == 0.75
    [closing] = pool._closing
    await closing
    assert not pool._resting
    await pool.close()


def confined(built: dict[str, Any]) -> None:
    if built["manifest"]["sandbox"] != "namespaces":
        pytest.skip("this kernel allows no name spaces: limits alone are tested")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("network", "OSError: [Errno 101] Network is unreachable"),
        ("write_outside", "OSError: [Errno 30] Read-only file system: '/usr/written'"),
        ("read_outside", "FileNotFoundError: [Errno 2] No such file or directory: '/etc/passwd'"),
    ],
)
async def test_an_attempt_to_leave_the_sandbox_fails_and_says_so(
    home: Path, built: dict[str, Any], what: str, said: str
) -> None:
    confined(built)
    pool, heard = pool_of(home, built, options={"what": what}), []
    await played(pool, heard)
    await pool.close()
    assert heard[1] == said


async def test_a_package_sees_no_credentials_no_home_and_no_process_of_others(
    home: Path, built: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    confined(built)
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("FLEXMARL_CLUSTER_KEY", "secret")
    pool, heard = pool_of(home, built, options={"what": "list"}), []
    await played(pool, heard)
    await pool.close()
    folders, _, names = heard[1].partition(" env ")
    assert {"home", "srv", "var"}.isdisjoint(folders.split())
    assert not [name for name in names.split() if name.startswith(("FLEXMARL", "DATABASE", "REDIS"))]
    pool, heard = pool_of(home, built, options={"what": "processes"}), []
    await played(pool, heard)
    await pool.close()
    assert json.loads(heard[1])[0] == 1
    assert max(json.loads(heard[1])) < 20


def alive(host: psutil.Process) -> int:
    """Count the processes of a host that have not ended; ended ones may wait for a parent of the package's making."""
    count = 0
    for process in host.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            count += process.status() != psutil.STATUS_ZOMBIE
    return count


@pytest.mark.parametrize("what", ["fork_bomb", "fork_bomb_behind"])
async def test_a_fork_bomb_ends_with_its_episode(home: Path, built: dict[str, Any], what: str) -> None:
    """Whether the episode plays on is the bomb's luck, as all its processes may answer; they end in any case."""
    confined(built)
    pool = pool_of(home, built, options={"what": what})
    pool.spec = pool.spec.model_copy(update={"step_timeout_s": SHORT_S, "score_timeout_s": SHORT_S})
    with suppress(EnvironmentBroke):
        await played(pool)
    assert pool._host is not None
    host = psutil.Process(pool._host.process.pid)
    async with asyncio.timeout(20):  # sooner than an idle host is ended
        while alive(host) > 2:  # the first of its name space, and one that rests
            await asyncio.sleep(0.1)
    await pool.close()


async def test_neighbours_keep_their_rate_beside_an_environment_that_spins(home: Path, built: dict[str, Any]) -> None:
    """What misbehaves costs its neighbours nothing but the processor that it takes, which a nice value bounds."""
    pool = pool_of(home, built)
    await asyncio.gather(*(played(pool) for _ in range(16)))

    async def rate() -> float:
        began = time.monotonic()
        await asyncio.gather(*(played(pool) for _ in range(63)))
        return 63 / (time.monotonic() - began)

    alone = max([await rate(), await rate()])
    hanging = asyncio.create_task(misbehaves(home, built, "hang_step"))
    await asyncio.sleep(2.0)
    beside = max([await rate(), await rate()])
    assert not hanging.done()
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    await pool.close()
    print(f"episodes a second: {alone:.1f} alone, {beside:.1f} beside")
    assert beside > 0.5 * alone


async def test_a_turn_costs_little_processor_time(home: Path, built: dict[str, Any]) -> None:
    pool = pool_of(home, built)
    pool.spec = pool.spec.model_copy(update={"max_turns": 1000})
    live = await pool.begin(1, False, 1)
    process = max(psutil.Process(pool._host.process.pid).children(recursive=True), key=lambda one: one.create_time())  # type: ignore[union-attr]
    own = time.process_time()
    before = process.cpu_times()
    turns = 500
    for _ in range(turns):
        await live.act([Reply("player", "", MOVE)])
    after, here = process.cpu_times(), time.process_time() - own
    live.leave()
    await pool.close()
    there = after.user + after.system - before.user - before.system
    print(f"CPU per turn: {1000 * there / turns:.2f} ms there, {1000 * here / turns:.2f} ms here")
    assert 1000 * (there + here) / turns < 2.0


@pytest.mark.full
async def test_another_host_builds_the_same_by_its_lock(built: dict[str, Any], tmp_path: Path) -> None:
    name, body = wheel()
    path = tmp_path / name
    path.write_bytes(body)
    order = BuildOrder("mischief-games", "", str(path), ENTRY, built["digest"], built["lock"])
    said = await run_build(tmp_path, order, tmp_path / "log", went_on)
    assert said["digest"] == built["digest"]
    shutil.rmtree(tmp_path / "packages")
    path.write_bytes(wheel(code="class Other: pass\n")[1])
    said = await run_build(tmp_path, order, tmp_path / "log", went_on)
    assert said["code"] == "other_files"


async def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    name, body = wheel(code="raise RuntimeError('not today')\n")
    path = tmp_path / name
    path.write_bytes(body)
    said = await run_build(tmp_path, BuildOrder("mischief-games", "", str(path), ENTRY), tmp_path / "log", went_on)
    assert (said["code"], said["detail"]) == ("no_environments", "RuntimeError: not today")
    said = await run_build(
        tmp_path, BuildOrder("mischief-games", "", str(path), ENTRY), tmp_path / "log", went_on, limit_s=0.5
    )
    assert said == {"code": "time_limit", "detail": "The build was not done after 0.5 s."}


async def test_a_node_builds_what_waits_and_a_host_that_lacks_it_builds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, body = wheel(version="2.0")
    source = {"type": "upload", "file": name, "digest": hashlib.sha256(body).hexdigest(), "entry": ENTRY}
    taken = package_rows.TakenBuild(UUID(int=1), 1, "mischief-games", source)
    ended: dict[str, Any] = {}
    phases: list[str] = []
    monkeypatch.setattr(package_rows, "take", lambda conn, node, lease_s: taken)
    monkeypatch.setattr(package_rows, "file", lambda conn, digest: body)
    monkeypatch.setattr(
        package_rows, "goes_on", lambda conn, taken, now_at, log, lease_s: phases.append(now_at) or True
    )
    monkeypatch.setattr(package_rows, "ready", lambda conn, taken, built, log: ended.update(built, log=log))

    async def store(call: Any) -> Any:
        return call(None)

    settings: Any = SimpleNamespace(home=tmp_path / "one", node="one")
    settings.home.mkdir()
    await Packages(settings, store).tend()
    assert "Successfully installed mischief-games-2.0" in ended["log"]
    assert "installing" in phases
    row = package_rows.BuiltPackage("mischief-games", source, ended["digest"], ended["lock"])
    monkeypatch.setattr(package_rows, "built", lambda conn, package, digest: row)
    other = tmp_path / "other"
    other.mkdir()
    pool = pool_of(other, ended)
    pool.builds = Builds(other, store)
    first, second = await asyncio.gather(played(pool), played(pool))
    assert first == second
    assert first.team_score == 0.75
    assert len(list((other / "packages").iterdir())) == 1
    await pool.close()
