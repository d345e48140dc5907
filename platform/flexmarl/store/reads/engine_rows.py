"""The engines of a run: where each is in its life, what it serves and what it told last.

Invariant: a state is derived from rows at the moment of reading (`contracts.engine_states`), never stored; so it cannot
differ from the lease, the incarnation and the loads that it speaks of. Reads only; every query carries the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection

from flexmarl.contracts.engine_states import EngineDoubt, EngineFacts, EngineState, doubt_of, state_of
from flexmarl.store.control.nodes import ALIVE_S
from flexmarl.store.telemetry.load_reports import SLOT_S, SLOTS

GONE_SHOWN = 50
"""Newest ended engines of a run that are listed."""
LAST_S = 60.0
"""Figures that are older are nobody's."""
RATE_S = 12.0
"""What tokens per second are measured over."""


@dataclass(frozen=True, slots=True)
class Served:
    """A policy that an engine wholly holds."""

    policy: str
    version: int
    former: int | None
    """The version before, which it still serves."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """The last figures that an incarnation of an engine reported. None: not reported."""

    age_s: float
    running: int
    waiting: int
    slots: int
    cache_use: float | None
    hit_rate: float | None
    """Prompt tokens of its life that it did not have to compute."""
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class EngineRow:
    lease_id: int
    devices: tuple[str, ...]
    """By rank: of an engine of one device that one."""
    node: str
    kind: str
    """cpu | cuda"""
    state: EngineState
    doubt: EngineDoubt
    incarnation: str
    """The life that answers; empty while none does."""
    granted_at: float
    ended_at: float | None
    reason: str
    """Why its lease ended."""
    serves: tuple[Served, ...]
    loading: tuple[tuple[str, int], ...]
    """(policy, version) it is asked to load."""
    leaving: tuple[str, ...]
    """Policies it is asked to forget."""
    losses: int
    """Incarnations that were lost."""
    lost_at: float | None
    lost_reason: str
    """Why the last one was."""
    told: EngineFigures | None = None

    @property
    def device_id(self) -> str:
        """Return its first device, which is that of its lease."""
        return self.devices[0]


@dataclass(slots=True)
class _Samples:
    """Figures of one engine, newest first."""

    rows: list[tuple[str, float, int, int, int, int, int, int | None, float | None]] = field(default_factory=list)


def engines(conn: Connection, run_id: int, until: float | None = None) -> list[EngineRow]:
    """List a run's engines, the living ones first; `until`: when the run ended, and their figures with it."""
    rows = conn.execute(_ENGINES, {"run": run_id, "alive": ALIVE_S, "gone": GONE_SHOWN}).fetchall()
    told = _told(conn, run_id, until) if rows else {}
    return [_row(row, told.get(row[0])) for row in rows]


_ENGINES = b"""
SELECT l.id, l.device_id, d.node, d.kind, l.state, l.pid IS NOT NULL, l.incarnation,
  extract(epoch FROM l.granted_at)::float8, extract(epoch FROM l.ended_at)::float8, l.reason,
  extract(epoch FROM clock_timestamp() - l.expires_at)::float8,
  extract(epoch FROM clock_timestamp() - n.heartbeat_at)::float8 - %(alive)s,
  coalesce((SELECT json_agg(json_build_array(p.policy, p.version, p.former_version) ORDER BY p.policy)
    FROM store.engine_policy p WHERE p.lease_id = l.id AND p.incarnation = l.incarnation), '[]'),
  coalesce((SELECT json_agg(json_build_array(c.kind, c.body ->> 'policy', (c.body ->> 'version')::int) ORDER BY c.no)
    FROM store.command c WHERE c.lease_id = l.id AND c.status IN ('open', 'taken')
      AND c.kind IN ('load_weights', 'unload_policy')), '[]'),
  lost.times, lost.at, coalesce(lost.reason, ''),
  coalesce((SELECT json_agg(f.device_id ORDER BY f.rank) FROM store.lease f WHERE f.leader = l.id), '[]')
FROM (
  SELECT * FROM store.lease WHERE run_id = %(run)s AND use = 'engine' AND state <> 'ended' AND leader IS NULL
  UNION ALL
  (SELECT * FROM store.lease WHERE run_id = %(run)s AND use = 'engine' AND state = 'ended' AND leader IS NULL
   ORDER BY id DESC LIMIT %(gone)s)
) l JOIN store.device d ON d.id = l.device_id JOIN store.node n ON n.name = d.node
CROSS JOIN LATERAL (
  SELECT count(*)::int AS times, max(extract(epoch FROM e.at))::float8 AS at,
    (array_agg(e.body ->> 'reason' ORDER BY e.seq DESC))[1] AS reason
  FROM store.event e
  WHERE e.run_id = %(run)s AND e.kind = 'child_lost' AND (e.body ->> 'lease_id')::bigint = l.id
) lost
ORDER BY l.state = 'ended', CASE WHEN l.state = 'ended' THEN -l.id ELSE l.id END
"""


def _row(row: Sequence[Any], samples: "_Samples | None") -> EngineRow:
    (lease_id, device_id, node, kind, lease, started, incarnation, granted, ended, reason, late, node_late,
     held, asked, losses, lost_at, lost_reason, further) = row  # fmt: skip
    served = tuple(Served(*one) for one in held)
    loading = tuple((policy, version) for what, policy, version in asked if what == "load_weights")
    told = _figures(samples, str(incarnation) if lease != "ended" else None)
    facts = EngineFacts(
        lease=str(lease),
        started=bool(started),
        answers=bool(incarnation),
        held=len(served),
        loads=len(loading),
        lease_late_s=float(late),
        node_late_s=float(node_late),
        told_s=None if told is None else told.age_s,
    )
    return EngineRow(
        lease_id=int(lease_id),
        devices=(str(device_id), *further),
        node=str(node),
        kind=str(kind),
        state=state_of(facts),
        doubt=doubt_of(facts),
        incarnation=str(incarnation),
        granted_at=float(granted),
        ended_at=None if ended is None else float(ended),
        reason=str(reason),
        serves=served,
        loading=loading,
        leaving=tuple(policy for what, policy, _ in asked if what == "unload_policy"),
        losses=int(losses),
        lost_at=None if lost_at is None else float(lost_at),
        lost_reason=str(lost_reason),
        told=told,
    )


def _told(conn: Connection, run_id: int, until: float | None) -> dict[int, _Samples]:
    """Read what each engine told in the last minute, newest first."""
    rows = conn.execute(
        """
        WITH moment AS (
          SELECT coalesce(to_timestamp(%(until)s::float8), clock_timestamp()) AS at
        )
        SELECT e.lease_id, e.incarnation, extract(epoch FROM moment.at - e.at)::float8, e.running, e.waiting, e.slots,
          e.generated, e.prompts, e.cached, e.cache_use::float8
        FROM moment CROSS JOIN LATERAL (
          SELECT DISTINCT ((floor(extract(epoch FROM moment.at) / %(slot_s)s) - back)::bigint %% %(slots)s)::int AS slot
          FROM generate_series(0, %(most)s) AS back
        ) s JOIN store.engine_load e ON e.run_id = %(run)s AND e.slot = s.slot
        WHERE e.at > moment.at - make_interval(secs => %(last)s) AND e.at <= moment.at + interval '2 seconds'
        ORDER BY e.lease_id, e.at DESC
        """,
        {"until": until, "slot_s": SLOT_S, "slots": SLOTS, "most": int(LAST_S / SLOT_S), "run": run_id, "last": LAST_S},
    ).fetchall()
    found: dict[int, _Samples] = {}
    for lease_id, *sample in rows:
        found.setdefault(lease_id, _Samples()).rows.append(tuple(sample))
    return found


def _figures(samples: "_Samples | None", incarnation: str | None) -> EngineFigures | None:
    """Return the last figures of a life (None: of the last one), with what follows from those before."""
    if samples is None:
        return None
    life = samples.rows[0][0] if incarnation is None else incarnation
    own = [row for row in samples.rows if row[0] == life]
    if not own:
        return None
    _, age, running, waiting, slots, generated, prompts, cached, cache_use = own[0]
    before = [row for row in own[1:] if row[1] - age <= RATE_S]
    rate = (generated - before[-1][5]) / (before[-1][1] - age) if before and before[-1][1] > age else None
    hits = cached / prompts if cached is not None and prompts else None
    return EngineFigures(max(age, 0.0), running, waiting, slots, cache_use, hits, rate)
