"""One group of a run, played by the real player with an engine that says what a test scripts."""

from typing import Any

import psycopg

from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import Origin, PolicyPin
from flexmarl.language.chat_format import ChatFormat
from flexmarl.store.control import runs
from tests.support.chat_templates import CHATML, END
from tests.support.scripted_engine import ScriptedEngine
from workers.rollout.player import Player


async def play_group(
    conn: psycopg.Connection, player: Player, engine: ScriptedEngine, run: int, spec: ExperimentSpec, words: Any
) -> None:
    """Play two members of the first task. The spec has one policy, of which the engine holds one version."""
    [policy] = spec.policies
    [held] = engine.holds.values()
    pin = PolicyPin(version=held.version, digest=held.digest)
    runs.create_run(conn, run, spec.model_dump(mode="json"), RunStatus.RUNNING)
    chat = ChatFormat(template=CHATML, stop=(words.token_to_id(END),)).dump()
    conn.execute(
        "INSERT INTO store.tokenizer (run_id, policy, body, chat) VALUES (%s, %s, %s, %s)",
        [run, policy, words.to_str(), chat],
    )
    conn.execute(
        "INSERT INTO store.node (name, address, incarnation) VALUES ('n', '127.0.0.1:1', 'i'); "
        "INSERT INTO store.device (id, node, kind, ordinal) VALUES ('n.cpu0', 'n', 'cpu', 0)"
    )
    order = PlayGroups(
        pool="default", epoch=1, origin=Origin.TRAIN, groups=(GroupOrder(draw=0, task_seed=0, members=2),),
        pins={policy: pin}, sampling_seed=7, cohort=3,
    )  # fmt: skip
    conn.execute(
        "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, queue, body) "
        "VALUES (%s, 1, 1, 1, 'play_groups', 'broker', 'rollout.default', %s::jsonb)",
        [run, order.model_dump_json()],
    )
    async with engine:
        lease = conn.execute(
            "INSERT INTO store.lease (device_id, run_id, use, incarnation, endpoint, secret) "
            "VALUES ('n.cpu0', %s, 'engine', %s, %s, %s) RETURNING id",
            [run, engine.incarnation, engine.endpoint, engine.secret],
        ).fetchone()
        assert lease is not None
        conn.execute(
            "INSERT INTO store.engine_policy (lease_id, incarnation, policy, version, digest) "
            "VALUES (%s, %s, %s, %s, %s)",
            [lease[0], engine.incarnation, policy, pin.version, pin.digest],
        )
        await player.play(run, 1)
