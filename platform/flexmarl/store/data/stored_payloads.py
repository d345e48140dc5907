"""Payloads of sample rows, wherever they lie: in the row or in a segment file."""

from collections.abc import Sequence
from typing import Any

from psycopg import Connection

from flexmarl.store.data.payload import Arrays, size_of, unpack
from flexmarl.store.data.segments import Placed, Reference, fetch
from flexmarl.store.errors import PayloadRefused

PAYLOAD = "s.payload, s.segment, s.seg_offset, s.digest, s.n_prompt, s.n_response, s.n_allowed"
"""Columns of `store.sample s` that `load` reads, in this order."""


def load(conn: Connection, rows: Sequence[Sequence[Any]]) -> list[Arrays]:
    """Return the arrays of rows of `PAYLOAD`. Raises Refused, by name, when one cannot be had whole."""
    if any(payload is None and segment is None for payload, segment, *_ in rows):
        raise PayloadRefused("payload_not_kept", "the run's setting keeps the tokens of a share of what it trained on")
    references = [
        Reference(Placed(segment, offset, digest), size_of(n_prompt, n_response, n_allowed))
        for payload, segment, offset, digest, n_prompt, n_response, n_allowed in rows
        if payload is None
    ]
    fetched = iter(fetch(conn, references) if references else ())
    return [unpack(next(fetched) if payload is None else payload, *lengths) for payload, _, _, _, *lengths in rows]
