"""What a child did last: its closed intervals, fetched and stored once more before its host stops it.

The node fetches every second and forgets a child as soon as its lease is to end; without this, the last second of every
run would look idle. A child that does not answer within `ANSWER_S` loses what it had not told.
"""

import http.client
from urllib.parse import urlsplit

import msgspec
import psycopg

from flexmarl.store.control.leases import LeaseHold
from flexmarl.store.telemetry import intervals
from flexmarl.store.telemetry.intervals import BusyInterval
from workers.child import ChildInterval, IntervalsRequest
from workers.errors import ChildUnreachable

ANSWER_S = 1.0


def fetch(url: str, secret: str, acknowledged: int) -> list[ChildInterval]:
    """Ask a child for all closed intervals behind the acknowledged one. Raises ChildUnreachable."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=ANSWER_S)
    try:
        body = msgspec.json.encode(IntervalsRequest(acknowledged, last=True))
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        connection.request("POST", "/intervals", body, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ChildUnreachable(f"/intervals: status {answer.status}")
        return msgspec.json.decode(answer.read(), type=list[ChildInterval])
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise ChildUnreachable(f"/intervals: {type(error).__name__} {error}") from error
    finally:
        connection.close()


def keep(conn: psycopg.Connection, hosting: LeaseHold, incarnation: str, url: str, secret: str) -> int:
    """Store what the child has closed and nobody stored; return how many. Raises ChildUnreachable."""
    closed = fetch(url, secret, intervals.newest_ord(conn, hosting.lease_id, incarnation))
    rows = [BusyInterval(*msgspec.structs.astuple(i)) for i in closed]
    intervals.put(conn, hosting.run_id, hosting.lease_id, hosting.device_id, incarnation=incarnation, rows=rows)
    return len(rows)
