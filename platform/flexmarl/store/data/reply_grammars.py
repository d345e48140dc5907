"""What replies of trained agents were held to: each text once in a run, named by its digest in the turns of rows."""

from collections.abc import Collection, Mapping

from psycopg import Connection

from flexmarl.contracts.reply_grammars import digest_of
from flexmarl.store.errors import Refused


def keep(conn: Connection, run_id: int, bodies: Collection[str]) -> None:
    """Write down what is not there yet, in the caller's transaction."""
    if bodies:
        named = sorted((digest_of(body), body) for body in bodies)  # in one order, so that writers never wait in a ring
        conn.execute(
            "INSERT INTO store.reply_grammar (run_id, digest, body) "
            "SELECT %s, g.digest, g.body FROM unnest(%s::text[], %s::text[]) AS g(digest, body) ON CONFLICT DO NOTHING",
            [run_id, [digest for digest, _ in named], [body for _, body in named]],
        )


def load(conn: Connection, run_id: int, digests: Collection[str]) -> Mapping[str, str]:
    """Return the texts by their digests. Raises Refused where one is not kept."""
    if not digests:
        return {}
    rows = conn.execute(
        "SELECT digest, body FROM store.reply_grammar WHERE run_id = %s AND digest = ANY(%s)", [run_id, list(digests)]
    ).fetchall()
    found: dict[str, str] = dict(rows)
    if missing := sorted(set(digests) - found.keys()):
        raise Refused("missing_grammar", f"run {run_id} has no text of the grammar {missing[0]} that a row names")
    return found
