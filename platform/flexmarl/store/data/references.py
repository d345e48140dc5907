"""Which contents of the state plane rows speak of: what a store that outlives every host is to keep.

Invariant: whatever a run can still be asked for is among them - to go on, to be restored from a checkpoint, to be
compared with what it is kept near to, or to redo the steps behind the newest training state. And nothing is among them
that trainers have let go: of training states they keep as many, with one that is on its way and in no row yet.
"""

from typing import Any

from psycopg import Connection

from flexmarl.contracts.status import TERMINAL
from flexmarl.store.control import model_rows
from flexmarl.store.node_operations import anyone, for_nodes

NEWEST = 3
"""Versions of a policy that are kept, whatever else names them: the served one, one in flight, one to spare."""
STATES = 2
"""Versions whose training states are kept as well: the newest committed one, and one to spare."""
RENEWED = 3
"""Versions that a policy was lately compared with, where its reference is renewed."""
OPPONENTS = 4
"""Ends of rounds that are kept where a policy is compared with those of the last two."""

_REFERENCES = """
WITH last AS (
  SELECT run_id, policy, max(version) AS newest, max(version) FILTER (WHERE state <> '') AS restorable
  FROM store.policy_version GROUP BY run_id, policy
)
SELECT v.run_id, v.policy, v.digest, CASE WHEN n.named OR v.version > last.newest - %(states)s THEN v.state END
FROM store.policy_version v JOIN last USING (run_id, policy)
  LEFT JOIN LATERAL (
    SELECT spec #> '{algorithm,kl,reference}' AS near, CASE WHEN spec #>> '{algorithm,loss,form}' = 'mnpo'
      THEN (spec #>> '{algorithm,loss,round_steps}')::int END AS round_steps
    FROM store.run_state r WHERE r.run_id = v.run_id
  ) s ON true
  CROSS JOIN LATERAL (
    SELECT v.version = 0 OR v.version >= last.restorable OR v.version = (s.near ->> 'version')::int
      OR v.version %% (s.near ->> 'every')::int = 0
        AND v.version > last.newest - %(renewed)s * (s.near ->> 'every')::int
      OR v.version %% s.round_steps = 0 AND v.version > last.newest - %(opponents)s * s.round_steps
      OR EXISTS (
        SELECT 1 FROM store.checkpoint c WHERE c.run_id = v.run_id AND (c.versions ->> v.policy)::int = v.version
      ) AS named
  ) n
WHERE n.named OR v.version > last.newest - %(newest)s
"""


def contents(conn: Connection) -> set[str]:
    """Return the digests of weights, training states and imported models that are to be kept."""
    of_runs = {digest for _, _, *digests in _rows(conn) for digest in digests if digest}
    return of_runs | model_rows.contents(conn)


@for_nodes(anyone)
def of_ended(conn: Connection, ended_for_s: float) -> dict[int, dict[str, set[str]]]:
    """Return what is to be kept of runs that ended so long ago: run -> policy -> digests."""
    ended = conn.execute(
        "SELECT run_id FROM store.run_state WHERE status = ANY(%s) "
        "AND finished_at < clock_timestamp() - make_interval(secs => %s::float8)",
        [[status.value for status in TERMINAL], ended_for_s],
    ).fetchall()
    wanted: dict[int, dict[str, set[str]]] = {row[0]: {} for row in ended}
    for run_id, policy, *digests in _rows(conn):
        if run_id in wanted:
            wanted[run_id].setdefault(policy, set()).update(digest for digest in digests if digest)
    return wanted


def _rows(conn: Connection) -> list[Any]:
    counts = {"newest": NEWEST, "states": STATES, "renewed": RENEWED, "opponents": OPPONENTS}
    return conn.execute(_REFERENCES, counts).fetchall()
