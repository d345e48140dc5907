"""How a process opens its connection: autocommit, named, never able to hold row locks or to run a statement for long.

A process that stalls inside a transaction would keep its locks and stop whoever takes over. The server ends such a
session after `idle_in_transaction_s`; the transaction is rolled back and the stalled process finds its connection gone.
A statement ends after `statement_s`: whatever the plan, nobody waits for it for ever.
"""

import psycopg

STATEMENT_S = 300.0
"""What no statement of a process of the platform needs, and none of them takes longer than."""


def connect(
    url: str, name: str, idle_in_transaction_s: float = 10.0, statement_s: float = STATEMENT_S
) -> psycopg.Connection:
    """Open an autocommit connection. `name` shows in pg_stat_activity; `statement_s` 0 sets no bound."""
    conn = psycopg.connect(url, autocommit=True, application_name=name, connect_timeout=10)
    conn.execute(
        "SELECT set_config('idle_in_transaction_session_timeout', %s, false),"
        " set_config('statement_timeout', %s, false)",
        [f"{round(idle_in_transaction_s * 1000)}ms", f"{round(statement_s * 1000)}ms"],
    )
    return conn
