"""How a process opens its connection: autocommit, named, never able to hold row locks or to run a statement for long.

A process that stalls inside a transaction would keep its locks and stop whoever takes over. The server ends such a
session after `idle_in_transaction_s`; the transaction is rolled back and the stalled process finds its connection gone.
A statement ends after `statement_s`: whatever the plan, nobody waits for it for ever.
"""

from typing import Any, Final

import psycopg
from psycopg import sql

STATEMENT_S = 300.0
"""What no statement of a process of the platform needs, and none of them takes longer than."""
NOTICED: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
"""By what a client finds, within half a minute, that the server's machine is gone and nobody closed the connection; and
within five seconds, that the next server of the address is to be asked. In seconds, the last one in milliseconds. The
system's own limits are a quarter of an hour and two hours."""
_NOTICED_BY_SERVER: Final = (
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
)
"""By what the server finds that the client's machine is gone, and ends the session with its locks."""


def connect(
    url: str, name: str, idle_in_transaction_s: float = 10.0, statement_s: float = STATEMENT_S
) -> psycopg.Connection:
    """Open an autocommit connection. `name` shows in pg_stat_activity; `statement_s` 0 sets no bound."""
    conn = psycopg.connect(url, autocommit=True, application_name=name, **NOTICED)
    bound(conn, idle_in_transaction_session_timeout=idle_in_transaction_s, statement_timeout=statement_s)
    conn.execute(_NOTICED_BY_SERVER)
    return conn


def bound(conn: psycopg.Connection, **seconds: float) -> None:
    """Set time limits of a session, in seconds by their names; 0 sets none.

    By a statement, not among the options of its start: poolers refuse or drop those.
    """
    one = sql.SQL("set_config({}, {}, false)")
    limits = sql.SQL(", ").join(one.format(name, f"{round(value * 1000)}ms") for name, value in seconds.items())
    conn.execute(sql.SQL("SELECT {}").format(limits))
