"""How a policy's token ids become text: the tokenizer.json of its model source, stored when version 0 is bound."""

from psycopg import Connection


def load(conn: Connection, run_id: int) -> dict[str, bytes]:
    """Read the tokenizers of a run: policy -> tokenizer.json."""
    rows = conn.execute("SELECT policy, body FROM store.tokenizer WHERE run_id = %s", [run_id]).fetchall()
    return {policy: body.encode() for policy, body in rows}
