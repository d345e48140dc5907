"""Tools of servers behind URLs, pinned for a run: what the first worker found is what all agents of the run are shown.

Invariant: a row is written once and never changed.
"""

from psycopg import Connection

from flexmarl.store.node_operations import for_nodes, run_with_work


@for_nodes(run_with_work("run_id"))
def pin(conn: Connection, run_id: int, place: int, tools: str) -> str:
    """Pin the tools of a run's server, as JSON; return those that are pinned, which another worker may have found."""
    with conn.transaction():
        conn.execute(
            "INSERT INTO store.tool_listing (run_id, place, tools) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            [run_id, place, tools],
        )
        row = conn.execute(
            "SELECT tools FROM store.tool_listing WHERE run_id = %s AND place = %s", [run_id, place]
        ).fetchone()
    assert row is not None
    return str(row[0])
