"""How a process opens its connection: autocommit, named, and never able to hold row locks for long.

A process that stalls inside a transaction would keep its locks and stop whoever takes over. The server ends such a
session after `idle_in_transaction_s`; the transaction is rolled back and the stalled process finds its connection gone.
"""

import psycopg


def connect(url: str, name: str, idle_in_transaction_s: float = 10.0) -> psycopg.Connection:
    """Open an autocommit connection. `name` shows in pg_stat_activity."""
    conn = psycopg.connect(url, autocommit=True, application_name=name, connect_timeout=10)
    conn.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", [f"{idle_in_transaction_s}s"])
    return conn
