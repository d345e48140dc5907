"""What engines and rollout workers of seeded runs told of their load.

A run that goes on is told of ahead of its time as well, so that its page looks the same for twenty minutes: nobody is
there who would tell more.
"""

import json
import math
import time
from typing import Any

from flexmarl.contracts.rulings import Ruling, RulingKind
from flexmarl.store.control.decisions import Logged, _write_rulings
from flexmarl.store.telemetry import intervals
from flexmarl.store.telemetry.intervals import BusyInterval
from flexmarl.store.telemetry.load_reports import SLOT_S, SLOTS

BEFORE_S, AHEAD_S = 590, 1200
ENGINES = 3
"""Of the run that has ended."""


def _swaps(conn: Any, run_no: int, roles: list[str], end: float) -> None:
    """Let two policies take turns on a trainer device, as its node would tell."""
    first, second = roles[0], roles[-1]
    told = [("suspend", first, 60.0, 0.21, 52_428_800), ("resume", second, 59.7, 0.34, 48_234_496)]
    rows = [
        BusyInterval(n, phase, policy, end - ago, end - ago + s, 0, size)
        for n, (phase, policy, ago, s, size) in enumerate(told)
    ]
    rows.append(BusyInterval(2, "bind", first, end - 90.0, end - 89.2))
    intervals.put(conn, run_no, 0, "box.cpu1", incarnation=f"swaps.{run_no}", rows=rows)


def load(conn: Any, run_no: int, story: Any, roles: list[str], end: float) -> None:
    """Tell the load of a run: of one that lives now, of another one before its end."""
    live = story.ended_ago_s == 0
    _swaps(conn, run_no, roles, end)
    if not live:
        _engines(conn, run_no, end)
        _moves(conn, run_no, roles, end)
    leases = [
        row[0]
        for row in conn.execute(
            "SELECT id FROM store.lease WHERE run_id = %s AND use = 'engine' ORDER BY id", [run_no]
        ).fetchall()
    ]
    for place, role in enumerate(roles):
        conn.execute(
            """
            INSERT INTO store.engine_policy (lease_id, incarnation, policy, version, digest, former_version)
            SELECT id, incarnation, %s, %s, %s, %s FROM store.lease WHERE id = ANY(%s) AND state = 'held'
            """,
            [role, story.steps, "0" * 64, story.steps - 1 if place == 0 else None, leases],
        )
    moments = range(int(end) - BEFORE_S, int(end) + (AHEAD_S if live else 1), SLOT_S)
    for at in moments:
        _told(conn, run_no, leases, roles, at, live)
    if live:
        _open(conn, run_no, roles, leases[0])
    conn.execute(
        "INSERT INTO store.moved_turns (run_id, worker, cause, engine, turns, at) VALUES "
        "(%(run)s, 'w', 'aborted', %(e)s, 42, to_timestamp(%(at)s)), "
        "(%(run)s, 'w', 'silent', %(e)s, 3, to_timestamp(%(at)s))",
        {"run": run_no, "e": f"e{leases[0]}.1.1", "at": end - 30},
    )


def _engines(conn: Any, run_no: int, end: float) -> None:
    """Add engines that were given back with the run."""
    for device in range(1, ENGINES):
        conn.execute(
            """
            INSERT INTO store.lease (device_id, run_id, use, state, fence, expires_at, granted_at, ended_at, reason)
            VALUES (%s, %s, 'engine', 'ended', 1, to_timestamp(%s), to_timestamp(%s), to_timestamp(%s), 'released')
            """,
            [f"atlas.cpu{device}", run_no, end, end - BEFORE_S, end],
        )


def _told(conn: Any, run_no: int, leases: list[int], roles: list[str], at: int, live: bool) -> None:
    slot, wave = at // SLOT_S % SLOTS, 0.5 + 0.5 * math.sin(at / 40)
    for place, lease_id in enumerate(leases):
        running = int(4 + 20 * wave / (1 + place))
        conn.execute(
            """
            INSERT INTO store.engine_load (run_id, slot, lease_id, incarnation, at, running, waiting, slots, generated,
              prompts, cached, cache_use)
            VALUES (%s, %s, %s, %s, to_timestamp(%s), %s, %s, 32, %s, %s, %s, %s)
            """,
            [
                run_no, slot, lease_id, "c1" if live else f"e{lease_id}.1.1", at, running, max(0, running - 18),
                at % 100_000 * 900, at % 100_000 * 70, None if live else at % 100_000 * 21,
                None if live else 0.2 + wave / 2,
            ],
        )  # fmt: skip
    for place, role in enumerate(roles):
        asked = int(2 + 18 * (wave if place else 1 - wave) / (1 + place // 2))
        conn.execute(
            "INSERT INTO store.asked_load (run_id, slot, worker, policy, at, waiting, in_flight) "
            "VALUES (%s, %s, 'w', %s, to_timestamp(%s), %s, %s)",
            [run_no, slot, role, at, max(0, asked - 14), min(asked, 14)],
        )


def _open(conn: Any, run_no: int, roles: list[str], lease_id: int) -> None:
    """Leave turns open, and what is asked now, as a worker says it that is heard for the whole time."""
    now, last = time.time(), time.time() + AHEAD_S + 60
    longest = [
        {
            "role": roles[i % len(roles)], "policy": roles[i % len(roles)], "draw": 550 + i // 3, "member": i % 8,
            "attempt": 1 + (i == 0), "turn": i % 2, "episode_since": now - 64 + 5 * i, "since": now - 48 + 4 * i,
            "tokens": max(0, 610 - 60 * i), "engine": f"e{lease_id}.1.1" if i != 3 else "", "moves": int(i == 1),
        }
        for i in range(9)
    ]  # fmt: skip
    conn.execute(
        "INSERT INTO store.open_turns (run_id, worker, at, open, longest) VALUES (%s, 'now', to_timestamp(%s), 31, %s)",
        [run_no, last, json.dumps(longest)],
    )
    for place, role in enumerate(roles):
        conn.execute(
            "INSERT INTO store.asked_load (run_id, slot, worker, policy, at, waiting, in_flight) "
            "SELECT %s, slot, 'now', %s, to_timestamp(%s), %s, %s FROM generate_series(0, %s) AS slot",
            [run_no, role, last, 7 if place == 1 else 0, 6 + 4 * place, SLOTS - 1],
        )


def _moves(conn: Any, run_no: int, roles: list[str], end: float) -> None:
    """Move places of the engines from one policy to another, and what that took."""
    [lease_id] = conn.execute(
        "SELECT max(id) FROM store.lease WHERE run_id = %s AND use = 'engine'", [run_no]
    ).fetchone()
    queues = (
        f"{roles[1]} has 31 turns on 1 engine, {roles[0]} has 4 turns on 2 engines: 29.0 apart, above 5 for 3.2 s; "
    )
    target = f"lease:{lease_id}"
    lines = [
        Logged(4, end - 200, Ruling(RulingKind.ENGINE_ASSIGNED,
                   f"atlas.cpu2 has a free slot, which goes to {roles[0]}: its engine number 2, "
                   "no turns now", roles[0], -1, target)),
        Logged(5, end - 90, Ruling(RulingKind.ENGINE_MOVED,
                   f"atlas.cpu2 serves {roles[1]} instead of {roles[0]}: {queues}"
                   "gains 92 % of an engine, a load takes 0.41 s", roles[1], -1, target, 0, "disparity")),
    ]  # fmt: skip
    _write_rulings(conn, run_no, lines)
    for no, kind, policy in ((2001, "unload_policy", roles[0]), (2002, "load_weights", roles[1])):
        body = {"kind": kind, "policy": policy, "version": 3, "lease_id": lease_id}
        conn.execute(
            "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, lease_id, body, status, created_at, "
            "taken_at, done_at) VALUES (%s, %s, 5, 1, %s, 'node', %s, %s, 'done', to_timestamp(%s), to_timestamp(%s), "
            "to_timestamp(%s))",
            [run_no, no, kind, lease_id, json.dumps(body), end - 90, end - 89.2, end - 88.7],
        )
