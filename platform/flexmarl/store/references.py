"""Which contents of the state plane rows speak of: what a store that outlives every host is to keep.

Invariant: whatever a run can still be asked for is among them - to go on, to be restored from a checkpoint, to be
compared with the beginning, or to redo the steps behind the newest training state.
"""

from psycopg import Connection

NEWEST = 3
"""Versions of a policy that are kept, whatever else names them: the served one, one in flight, one to spare."""

_REFERENCES = """
WITH last AS (
  SELECT run_id, policy, max(version) AS newest, max(version) FILTER (WHERE state <> '') AS restorable
  FROM store.policy_version GROUP BY run_id, policy
)
SELECT v.digest, v.state FROM store.policy_version v JOIN last USING (run_id, policy)
WHERE v.version = 0 OR v.version > last.newest - %s OR v.version >= last.restorable
  OR EXISTS (SELECT 1 FROM store.checkpoint c WHERE c.run_id = v.run_id AND (c.versions ->> v.policy)::int = v.version)
"""


def contents(conn: Connection) -> set[str]:
    """Return the digests of weights and training states that are to be kept."""
    rows = conn.execute(_REFERENCES, [NEWEST]).fetchall()
    return {digest for row in rows for digest in row if digest}
