"""Attempts and outcomes in the store: a run that ends without its core."""

from flexmarl.contracts.attempts import AttemptBegan, AttemptEnded, VerbEnded
from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.store.control import attempts


def test_a_run_that_ends_without_its_core_is_closed(story) -> None:
    conn, run_id = story.conn, story.run_id
    changes = [
        (1.0, AttemptBegan(1, 1, Verb.START, "ada", 0)),
        (2.0, AttemptEnded(1, RunStatus.KILLED, RunReason.USER_REQUEST, "enough", "ada", 3, {"speaker": 3})),
        (3.0, AttemptBegan(2, 3, Verb.RETRY, "ada", 3)),
    ]
    attempts.write_attempts(conn, run_id, changes)
    conn.execute("INSERT INTO store.handled VALUES (%s, 'verb:a', 1), (%s, 'verb:b', 2)", [run_id, run_id])
    attempts.write_outcomes(conn, run_id, [(2.5, VerbEnded("a", True, RunStatus.RUNNING, ""))])
    attempts.close(conn, run_id, RunReason.ORCHESTRATOR_ERROR, "cannot go on", 5)
    rows = conn.execute("SELECT no, status, reason_text, last_step FROM store.attempt ORDER BY no").fetchall()
    assert rows == [(1, "killed", "enough", 3), (2, "failed", "cannot go on", 5)]
    ended = conn.execute("SELECT producer_key, succeeded, text FROM store.verb_outcome ORDER BY 1").fetchall()
    assert ended == [("verb:a", True, ""), ("verb:b", False, "cannot go on")]
    attempts.close(conn, run_id, RunReason.ORCHESTRATOR_ERROR, "again", 6)
    assert conn.execute("SELECT reason_text FROM store.attempt WHERE no = 2").fetchall() == [("cannot go on",)]
