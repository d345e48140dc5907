"""The rollout player against the real store and an engine that follows the dialect."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from flexmarl.contracts.commands import GroupOrder, HoldGroups, PlayGroups
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import Origin, PolicyPin
from flexmarl.store.control import command_rows, commands, runs
from flexmarl.store.data.segments import SegmentFolder
from flexmarl.store.reads import trajectories
from tests.support.scripted_engine import ScriptedEngine
from workers.models import tokenizer_json
from workers.rollout.engines.wire import HeldVersion
from workers.rollout.environments.registry import family_of
from workers.rollout.episode import play_episode
from workers.rollout.player import Player

pytestmark = pytest.mark.services

RUN = 1
SPEC = resolve(
    {
        "agents": {"guesser": {}, "hinter": {}},
        "environment": {"type": "hot_cold"},
        "batch": {"episodes_per_task": 4, "episode_timeout_s": 5},
    }
)
PINS = {name: PolicyPin(version=3, digest=letter * 64) for name, letter in (("guesser", "a"), ("hinter", "b"))}


def order(*draws: int) -> PlayGroups:
    return PlayGroups(
        pool="default",
        epoch=1,
        origin=Origin.TRAIN,
        groups=tuple(GroupOrder(draw=draw, task_seed=draw, members=4) for draw in draws),
        pins=PINS,
        sampling_seed=7,
        cohort=3,
    )


def put_command(conn: psycopg.Connection, no: int, command: PlayGroups) -> None:
    conn.execute(
        "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, queue, body) "
        "VALUES (%s, %s, 1, 1, 'play_groups', 'broker', 'rollout.default', %s::jsonb)",
        [RUN, no, command.model_dump_json()],
    )


def make_run(conn: psycopg.Connection, document: dict | None = None) -> None:
    runs.create_run(conn, RUN, document or SPEC.document, RunStatus.RUNNING)
    words = tokenizer_json(family_of(SPEC.spec.environment).vocabulary()).decode()
    for policy in PINS:
        conn.execute("INSERT INTO store.tokenizer VALUES (%s, %s, %s::jsonb)", [RUN, policy, words])
    conn.execute(
        "INSERT INTO store.node (name, address, incarnation) VALUES ('n', '127.0.0.1:1', 'i'); "
        "INSERT INTO store.device (id, node, kind, ordinal) VALUES ('n.cpu0', 'n', 'cpu', 0)"
    )


def announce(conn: psycopg.Connection, engine: ScriptedEngine) -> None:
    """Write what a device worker and a node would have written of this engine."""
    lease = conn.execute(
        "INSERT INTO store.lease (device_id, run_id, use, incarnation, endpoint, secret) "
        "VALUES ('n.cpu0', %s, 'engine', %s, %s, %s) RETURNING id",
        [RUN, engine.incarnation, engine.endpoint, engine.secret],
    ).fetchone()
    for policy, pin in PINS.items():
        conn.execute(
            "INSERT INTO store.engine_policy (lease_id, incarnation, policy, version, digest) "
            "VALUES (%s, %s, %s, %s, %s)",
            [lease[0], engine.incarnation, policy, pin.version, pin.digest],
        )


@pytest.fixture
async def player(store_url: str) -> AsyncIterator[Player]:
    with ConnectionPool(store_url, min_size=1, max_size=2, kwargs={"autocommit": True}) as pool:
        player = Player(pool)
        yield player
        await player.close()


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine({name: HeldVersion(pin.version, pin.digest) for name, pin in PINS.items()}) as engine:
        yield engine


def counts(conn: psycopg.Connection) -> tuple[int, int, int]:
    row = conn.execute(
        "SELECT (SELECT count(*) FROM store.episode), (SELECT count(*) FROM store.sample), "
        "(SELECT count(*) FROM store.inbox)"
    ).fetchone()
    return row[0], row[1], row[2]


async def test_groups_are_recorded_whole_and_turns_travel_together(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine
) -> None:
    make_run(store_conn)
    announce(store_conn, engine)
    put_command(store_conn, 1, order(10, 11, 12))
    await player.play(RUN, 1)
    episodes, samples, events = counts(store_conn)
    assert (episodes, events) == (12, 3)
    turns = store_conn.execute("SELECT sum(turns) FROM store.episode").fetchone()[0]
    assert samples == turns == sum(len(r.prompt) for r in engine.requests)
    assert len(engine.requests[0].prompt) == 12, "the first turns of all episodes are one request"
    assert store_conn.execute("SELECT status FROM store.command").fetchone() == ("done",)
    assert store_conn.execute("SELECT DISTINCT version FROM store.sample").fetchall() == [(3,)]


async def test_a_held_command_stands_still_by_its_row_from_its_beginning_and_between_its_turns(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine
) -> None:
    """Held when it is taken, let go, held again among its turns for longer than an episode may take, let go."""
    make_run(store_conn)
    announce(store_conn, engine)
    put_command(store_conn, 1, order(10).model_copy(update={"pauses": True}))
    hold(store_conn, True)
    engine.delay_s = 0.1
    async with asyncio.timeout(60):
        play = asyncio.create_task(player.play(RUN, 1))
        while not (kept := list(player._keeper._held.values())):
            await asyncio.sleep(0.01)
        [(_, _, own)] = kept
        context = await player._context(RUN)
        while len(context.client.counters.open) < 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert engine.requests == [], "it was held when it was taken"
        hold(store_conn, False)
        while not engine.requests:
            await asyncio.sleep(0.01)
        hold(store_conn, True)
        while not own.held or context.client._open:
            await asyncio.sleep(0.01)
        asked, own._since, engine.delay_s = len(engine.requests), own._since - 300.0, 0.0  # it stood for so long
        await asyncio.sleep(0.1)
        assert (len(engine.requests), play.done()) == (asked, False)
        hold(store_conn, False)
        await play
    fates = store_conn.execute("SELECT status, count(*) FROM store.episode GROUP BY status").fetchall()
    assert fates == [("finished", 4)]
    assert len(engine.requests) > asked


def hold(conn: psycopg.Connection, held: bool) -> None:
    """Decide it, as the driver does."""
    command_rows.hold(conn, RUN, HoldGroups(commands=(1,), hold=held))


async def test_groups_wait_for_space_on_a_full_disk_and_are_written_then(
    store_url: str, store_conn: psycopg.Connection, engine: ScriptedEngine, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    make_run(store_conn)
    announce(store_conn, engine)
    folder = SegmentFolder(tmp_path / "payloads", by_value_bytes=0)
    tried, full = [], [True]

    def write(descriptor: int, content: bytes, offset: int) -> int:
        tried.append(len(content))
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, content, offset)

    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr("workers.rollout.player.FULL_AGAIN_S", 0.02)
    put_command(store_conn, 1, order(10, 11))
    with ConnectionPool(store_url, min_size=1, max_size=2, kwargs={"autocommit": True}) as pool:
        player = Player(pool, folder)
        playing = asyncio.create_task(player.play(RUN, 1))
        while len(tried) < 3:
            await asyncio.sleep(0.02)
        assert not playing.done()
        assert counts(store_conn) == (0, 0, 0)
        full[0] = False
        await asyncio.wait_for(playing, 90)
        await player.close()
    folder.close()
    assert counts(store_conn)[0] == 8
    kept = store_conn.execute("SELECT count(*) FILTER (WHERE payload IS NULL), count(*) FROM store.sample").fetchone()
    assert kept[0] == kept[1] > 0, "every payload lies in the segment file"
    assert len(trajectories.details(store_conn, RUN, [(10, 0, 1)])[0].turns[0].arrays.response_ids()) > 0


async def test_a_second_taker_skips_what_is_settled(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine
) -> None:
    make_run(store_conn)
    announce(store_conn, engine)
    put_command(store_conn, 1, order(10))
    await player.play(RUN, 1)
    put_command(store_conn, 2, order(10, 11))
    before = len(engine.requests)
    await player.play(RUN, 2)
    assert counts(store_conn)[0] == 8
    assert {len(r.prompt) for r in engine.requests[before:]} <= {1, 2, 3, 4}, "only draw 11 was played again"


async def test_a_twin_that_lost_its_token_writes_nothing(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine
) -> None:
    make_run(store_conn)
    announce(store_conn, engine)
    engine.delay_s = 0.05
    put_command(store_conn, 1, order(10))
    playing = asyncio.create_task(player.play(RUN, 1))
    await asyncio.sleep(0.1)
    store_conn.execute("UPDATE store.command SET deadline = now() - interval '1 s' WHERE no = 1")
    assert commands.take(store_conn, RUN, 1, 60.0) is not None
    await playing
    assert counts(store_conn) == (0, 0, 0)
    assert store_conn.execute("SELECT status FROM store.command").fetchone() == ("taken",)


async def test_a_worker_that_ends_gives_its_command_back_at_once(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine
) -> None:
    make_run(store_conn)
    announce(store_conn, engine)
    engine.delay_s = 0.2
    put_command(store_conn, 1, order(10))
    playing = asyncio.create_task(player.play(RUN, 1))
    await asyncio.sleep(0.1)
    playing.cancel()
    await asyncio.wait({playing}, timeout=60)
    assert store_conn.execute("SELECT status, takes FROM store.command").fetchone() == ("open", 1)
    assert counts(store_conn) == (0, 0, 0)


async def test_turns_wait_for_an_engine_that_comes_later(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine
) -> None:
    make_run(store_conn)
    put_command(store_conn, 1, order(10))
    playing = asyncio.create_task(player.play(RUN, 1))
    await asyncio.sleep(0.3)
    assert not playing.done()
    announce(store_conn, engine)
    await asyncio.wait_for(playing, 60)
    assert counts(store_conn)[0] == 4


async def test_a_broken_connection_repeats_only_what_was_not_answered(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine
) -> None:
    make_run(store_conn)
    announce(store_conn, engine)
    engine.hang_up_after = 1
    put_command(store_conn, 1, order(10))
    await player.play(RUN, 1)
    finished = store_conn.execute("SELECT count(*) FROM store.episode WHERE status = 'finished'").fetchone()
    assert finished == (4,)
    turns = store_conn.execute("SELECT sum(turns) FROM store.episode").fetchone()[0]
    assert sum(len(r.prompt) for r in engine.requests) == turns + 3, "only the three lost turns were asked again"


async def test_without_any_engine_the_episodes_fail_with_the_boundary(
    store_conn: psycopg.Connection, player: Player
) -> None:
    make_run(store_conn)
    store_conn.execute(
        "UPDATE store.run_state SET spec = jsonb_set(jsonb_set(spec, '{batch,episode_timeout_s}', '0.2'), "
        "'{batch,max_attempts}', '1')"
    )
    put_command(store_conn, 1, order(10))
    await player.play(RUN, 1)
    rows = store_conn.execute("SELECT status, reason FROM store.episode").fetchall()
    assert {status for status, _ in rows} == {"failed"}
    assert all(reason.startswith("engine: no engine") for _, reason in rows)
    assert all(reason.endswith("batch.episode_timeout_s: 0.2 s)") for _, reason in rows), "says what to raise"
    assert counts(store_conn)[1:] == (0, 1)


async def test_members_that_a_group_does_not_need_are_cancelled_and_counted(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine
) -> None:
    make_run(store_conn)
    announce(store_conn, engine)
    engine.delay_s = 0.05
    group = GroupOrder(draw=10, task_seed=10, members=6, enough=2)
    put_command(store_conn, 1, order(10).model_copy(update={"groups": (group,)}))
    await player.play(RUN, 1)
    found = dict(store_conn.execute("SELECT status, count(*) FROM store.episode GROUP BY 1").fetchall())
    assert found == {"finished": 2, "cancelled": 4}
    event = store_conn.execute("SELECT body FROM store.inbox").fetchone()[0]
    assert sorted(episode["member"] for episode in event["episodes"]) == list(range(6))
    assert all(not episode["samples"] for episode in event["episodes"] if episode["status"] == "cancelled")


async def test_a_group_that_follows_is_answered_by_newer_weights_and_says_so(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine
) -> None:
    make_run(store_conn)
    announce(store_conn, engine)
    engine.holds["guesser"] = HeldVersion(5, "c" * 64)
    store_conn.execute("UPDATE store.engine_policy SET version = 5, digest = %s WHERE policy = 'guesser'", ["c" * 64])
    put_command(store_conn, 1, order(10).model_copy(update={"follows": {"guesser": "resume"}}))
    await player.play(RUN, 1)
    versions = store_conn.execute("SELECT DISTINCT policy, version FROM store.sample ORDER BY 1").fetchall()
    assert versions == [("guesser", 5), ("hinter", 3)]
    event = store_conn.execute("SELECT body FROM store.inbox").fetchone()[0]
    assert event["versions"] == {"guesser": 3, "hinter": 3}
    samples = [sample for episode in event["episodes"] for sample in episode["samples"]]
    assert all(sample["segments"] == [5, sample["tokens"]] for sample in samples if sample["role"] == "guesser")
    assert all(not sample.get("segments") for sample in samples if sample["role"] == "hinter")


async def test_a_slow_environment_is_replaced_and_its_member_counts_once(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(store_conn)
    announce(store_conn, engine)
    hangs, given_up = {(10, 2, 1), (10, 3, 1)}, []

    async def play(order, *others):
        if (order.draw, order.member, order.attempt) in hangs:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                given_up.append((order.member, order.attempt))
                raise
        return await play_episode(order, *others)

    monkeypatch.setattr("workers.rollout.members.play_episode", play)
    command = order(10, 11)
    groups = tuple(group.model_copy(update={"spares": 2}) for group in command.groups)
    put_command(store_conn, 1, command.model_copy(update={"groups": groups}))
    await asyncio.wait_for(player.play(RUN, 1), 60.0)
    assert sorted(given_up) == [(2, 1), (3, 1)]
    rows = store_conn.execute("SELECT member, attempt FROM store.episode WHERE draw = 10 ORDER BY 1").fetchall()
    second = SPEC.spec.batch.max_attempts + 1
    assert rows == [(0, 1), (1, 1), (2, second), (3, second)]
    told = store_conn.execute(
        "SELECT e ->> 'replaced' FROM store.inbox, jsonb_array_elements(body -> 'episodes') AS e "
        "WHERE body ->> 'draw' = '10' ORDER BY (e ->> 'member')::int"
    ).fetchall()
    assert [row[0] for row in told][2:] == ["true", "true"]
    losers = "SELECT count(*) FROM store.sample WHERE draw = 10 AND member IN (2, 3) AND attempt = 1"
    assert store_conn.execute(losers).fetchone() == (0,)


async def test_a_group_that_branches_is_settled_with_an_answer_of_every_member_to_each_turn(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine
) -> None:
    branches = {"branch_controller": {"type": "at_grpo_tree", "score": "played_out"}}
    spec = resolve({**SPEC.document, "sampling": branches, "algorithm": {"group_key": "agent_turn"}})
    make_run(store_conn, spec.document)
    announce(store_conn, engine)
    put_command(store_conn, 1, order(10, 11))
    await player.play(RUN, 1)
    episodes, samples, events = counts(store_conn)
    assert (episodes, events) == (8, 2)
    turns = store_conn.execute(
        "SELECT draw, role, turn, count(DISTINCT member), count(*) FROM store.sample GROUP BY 1, 2, 3"
    ).fetchall()
    assert {row[3:] for row in turns} == {(4, 4)}
    asked = sum(len(request.prompt) for request in engine.requests)
    assert asked > samples == 4 * len(turns), "what was played out is asked for and nobody's row"
    went_on = store_conn.execute(
        "SELECT count(*) FROM store.episode, jsonb_array_elements(transcript) AS t WHERE t ->> 2 LIKE '%went on%'"
    ).fetchone()
    assert went_on == (len(turns),)


async def test_a_group_whose_members_continue_others_is_settled_once_with_what_each_said_itself(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine
) -> None:
    spec = resolve({**SPEC.document, "sampling": {"branch_controller": "trace"}})
    make_run(store_conn, spec.document)
    announce(store_conn, engine)
    put_command(store_conn, 1, order(10, 11))
    await player.play(RUN, 1)
    asked = sum(len(request.prompt) for request in engine.requests)
    assert counts(store_conn) == (8, asked, 2), "each turn that was asked for, once"
    told = store_conn.execute(
        "SELECT (body ->> 'draw')::int, (e ->> 'member')::int, (e -> 'branch' ->> 'root')::int, "
        "(e -> 'branch' ->> 'turns')::int FROM store.inbox, jsonb_array_elements(body -> 'episodes') AS e ORDER BY 1, 2"
    ).fetchall()
    assert all((root == -1) == (member < 2) for _, member, root, _ in told)
    for draw, member, _, turns in [one for one in told if one[1] >= 2]:
        first = store_conn.execute(
            "SELECT role, min(turn) FROM store.sample WHERE draw = %s AND member = %s GROUP BY 1", [draw, member]
        ).fetchall()
        before = {"guesser": (turns + 1) // 2, "hinter": turns // 2}
        assert dict(first) == {role: before[role] for role, _ in first}, "what was said before is its root's"
