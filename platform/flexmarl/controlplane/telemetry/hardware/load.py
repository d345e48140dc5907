"""What is asked of each policy against what may serve it, now and over a window, and what has waited longest.

Everything is as engines and rollout workers told it (`store.load_reports`); what nobody told is null. Of an ended run
the window ends at its end, and nothing is asked of it now.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import from_epoch, rfc3339
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.hardware.engines import ended_at, engines
from flexmarl.store.reads import load_rows
from flexmarl.store.reads.load_rows import LoadWindow, Moved, OpenTurnRows, RequestedNow
from flexmarl.store.telemetry.load_reports import KEPT_S, OpenTurn

DEFAULT_WINDOW_S = 300.0
MIN_WINDOW_S = 10.0
MAX_WINDOW_S = float(KEPT_S)
LONGEST = 20
ANSWERING = frozenset({"syncing", "active"})


def load(run: Run, window_s: float = DEFAULT_WINDOW_S) -> dict[str, Any]:
    """Return demand against capacity, the queues over a window, the longest open turns and replies that moved."""
    conn, ended = store_connection(), ended_at(run)
    own = load_rows.window(conn, window_s, ended)
    rows = engines(run)
    asked = load_rows.asked_now(conn, run.no) if ended is None else []
    open_now = load_rows.open_turns(conn, run.no, LONGEST) if ended is None else OpenTurnRows(False, 0, [])
    return {
        "window": [own.since, own.until],
        "part_s": own.part_s,
        "live": ended is None,
        "told": open_now.told,
        "policies": [_policy(run, name, asked, rows) for name in run.spec["policies"]],
        "engines": rows,
        "states": dict(Counter(row["state"] for row in rows)),
        "skew": skew(rows),
        "seats": speaking(run)["seats"],
        **_series(run, own),
        "open": open_now.open,
        "longest": [_turn(turn, own.until, rows) for turn in open_now.longest],
        "reply_moves": [_moved(one, rows) for one in load_rows.moved(conn, run.no)],
    }


def speaking(run: Run) -> dict[str, Any]:
    """Return how many episodes wait for a reply of each role now. Seats of external models are not told of."""
    live = ended_at(run) is None
    told = load_rows.seats(store_connection(), run.no) if live else None
    counts = {role: (told or {}).get(role, (0, 0)) for role in run.spec["agents"]}
    rows = [{"role": role, "open": turns, "in_flight": taken} for role, (turns, taken) in counts.items()]
    return {"live": live, "told": told is not None, "seats": rows}


def _policy(run: Run, name: str, asked: Iterable[RequestedNow], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one policy's turns, and what could make its replies at once."""
    now = next((one for one in asked if one.policy == name), RequestedNow(name, 0, 0))
    own = [row for row in rows if row["state"] in ANSWERING and any(s["policy"] == name for s in row["serves"])]
    slots = [row["load"]["slots"] for row in own if row["load"] is not None]
    return {
        "policy": name,
        "roles": [role for role, agent in run.spec["agents"].items() if (agent.get("policy") or role) == name],
        "waiting": now.waiting,
        "in_flight": now.in_flight,
        "engines": len(own),
        "slots": sum(slots) if len(slots) == len(own) and own else None,
    }


def skew(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the longest queue of the answering engines over their mean one; None while nothing is asked of any."""
    told = [row["load"] for row in rows if row["state"] in ANSWERING and row["load"] is not None]
    queues = [one["running"] + one["waiting"] for one in told]
    return max(queues) * len(queues) / sum(queues) if sum(queues) else None


def _series(run: Run, own: LoadWindow) -> dict[str, Any]:
    conn = store_connection()
    points = [
        {
            "at": point.at, "engines": point.engines, "running": point.running, "waiting": point.waiting,
            "longest": point.longest, "skew": point.skew,
        }
        for point in load_rows.queues(conn, run.no, own)
    ]  # fmt: skip
    asked = [
        {"at": point.at, "policy": point.policy, "waiting": point.waiting, "in_flight": point.in_flight}
        for point in load_rows.asked(conn, run.no, own)
    ]
    return {"queues": points, "asked": asked}


def _turn(turn: OpenTurn, now: float, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "role": turn.role,
        "policy": turn.policy,
        "draw": turn.draw,
        "member": turn.member,
        "attempt": turn.attempt,
        "turn": turn.turn,
        "since": rfc3339(from_epoch(turn.since)),
        "age_s": max(0.0, now - turn.since),
        "episode_age_s": max(0.0, now - turn.episode_since) if turn.episode_since else None,
        "tokens": turn.tokens,
        "engine": turn.engine,
        "device_id": _device(turn.engine, rows),
        "moves": turn.moves,
    }


def _moved(one: Moved, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "cause": one.cause,
        "engine": one.engine,
        "device_id": _device(one.engine, rows),
        "turns": one.turns,
        "at": rfc3339(from_epoch(one.at)),
    }


def _device(incarnation: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the device of one life of an engine, which begins with its lease; empty when it is not known."""
    lease = incarnation.removeprefix("e").partition(".")[0]
    return next((str(row["device_id"]) for row in rows if incarnation and str(row["lease_id"]) == lease), "")
