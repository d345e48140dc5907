"""How a policy's token ids become text: the tokenizer.json of its model source, stored when version 0 is bound."""

import hashlib

from psycopg import Connection

from flexmarl.store.errors import Refused
from flexmarl.store.node_operations import anyone, for_nodes, run_with_work


@for_nodes(run_with_work("run_id"))
def load(conn: Connection, run_id: int) -> dict[str, bytes]:
    """Read the tokenizers of a run: policy -> tokenizer.json."""
    rows = conn.execute("SELECT policy, body FROM store.tokenizer WHERE run_id = %s", [run_id]).fetchall()
    return {policy: body.encode() for policy, body in rows}


@for_nodes(run_with_work("run_id"))
def load_chats(conn: Connection, run_id: int) -> dict[str, str]:
    """Read how the policies of a run are spoken to in messages: policy -> chat format as JSON, empty for none."""
    rows = conn.execute("SELECT policy, chat FROM store.tokenizer WHERE run_id = %s", [run_id]).fetchall()
    return dict(rows)


@for_nodes(anyone)
def digest(conn: Connection, run_id: int, policy: str) -> str:
    """Return the digest of a policy's tokenizer, empty until its version 0 is bound."""
    row = conn.execute(
        "SELECT encode(sha256(convert_to(body, 'UTF8')), 'hex') FROM store.tokenizer WHERE run_id = %s AND policy = %s",
        [run_id, policy],
    ).fetchone()
    return row[0] if row is not None else ""


def keep(conn: Connection, run_id: int, policy: str, body: bytes, chat: str) -> None:
    """Note a policy's tokenizer and chat format.

    Raises Refused for another tokenizer than the run's: its samples would be other words.
    """
    conn.execute(
        "INSERT INTO store.tokenizer (run_id, policy, body, chat) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
        [run_id, policy, body.decode(), chat],
    )
    own, found = digest(conn, run_id, policy), hashlib.sha256(body).hexdigest()
    if own != found:
        text = f"{policy} was bound with tokenizer {found[:12]}, that of the run is {own[:12]}"
        raise Refused("tokenizer_differs", f"{text}; put the tokenizer of its folder back as it was, and retry")
