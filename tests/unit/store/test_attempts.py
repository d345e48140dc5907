"""Attempts and outcomes in the store: what the upgrade makes of older runs, and a run that ends without its core."""

from collections.abc import Callable
from importlib.resources import files

import psycopg

from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.store.control import attempts
from flexmarl.store.control.attempts import BegunAttempt, EndedAttempt, VerbOutcome


def apply(conn: psycopg.Connection, name: str) -> None:
    conn.execute(files("flexmarl.store").joinpath(*name.split("/")).read_text(encoding="utf-8").encode())


def test_runs_of_before_get_their_one_attempt_and_their_verbs_an_outcome(make_database: Callable[[str], str]) -> None:
    with psycopg.connect(make_database("template1"), autocommit=True) as conn:
        apply(conn, "schema.sql")
        apply(conn, "upgrades/0001_run_terms.sql")
        conn.execute(
            """
            INSERT INTO store.run_state (run_id, spec, status, reason, step, epoch, started_at, finished_at) VALUES
              (1, '{}', 'draft', '', 0, 1, NULL, NULL), (2, '{}', 'running', '', 4, 1, now(), NULL),
              (3, '{}', 'killed', 'user_request', 7, 2, now(), now());
            INSERT INTO store.event (run_id, seq, kind, body, at) VALUES (3, 1, 'run_verb', '{}', now());
            INSERT INTO store.handled VALUES (3, 'verb:a', 1);
            INSERT INTO store.note (run_id, seq, ord, level, text, at) VALUES (3, 1, 0, 'info', 'run is killed', now());
            """
        )
        apply(conn, "upgrades/0010_attempts.sql")
        found = conn.execute("SELECT run_id, no, verb, status, reason, last_step, ended_at IS NULL FROM store.attempt")
        assert sorted(found.fetchall()) == [
            (2, 1, "start", "", "", None, True),
            (3, 1, "start", "killed", "user_request", 7, False),
        ]
        outcomes = conn.execute("SELECT run_id, producer_key, succeeded FROM store.verb_outcome").fetchall()
        assert outcomes == [(3, "verb:a", True)]
        assert conn.execute("SELECT cause FROM store.note").fetchall() == [("",)]


def test_a_run_that_ends_without_its_core_is_closed(story) -> None:
    conn, run_id = story.conn, story.run_id
    changes = [
        BegunAttempt(1, 1, "start", "ada", 1.0, 0),
        EndedAttempt(1, RunStatus.KILLED, RunReason.USER_REQUEST, "enough", "ada", 2.0, 3, {"speaker": 3}),
        BegunAttempt(2, 3, "retry", "ada", 3.0, 3),
    ]
    attempts.write_attempts(conn, run_id, changes)
    conn.execute("INSERT INTO store.handled VALUES (%s, 'verb:a', 1), (%s, 'verb:b', 2)", [run_id, run_id])
    attempts.write_outcomes(conn, run_id, [VerbOutcome("a", True, RunStatus.RUNNING, "", 2.5)])
    attempts.close(conn, run_id, RunReason.ORCHESTRATOR_ERROR, "cannot go on", 5)
    rows = conn.execute("SELECT no, status, reason_text, last_step FROM store.attempt ORDER BY no").fetchall()
    assert rows == [(1, "killed", "enough", 3), (2, "failed", "cannot go on", 5)]
    ended = conn.execute("SELECT producer_key, succeeded, text FROM store.verb_outcome ORDER BY 1").fetchall()
    assert ended == [("verb:a", True, ""), ("verb:b", False, "cannot go on")]
    attempts.close(conn, run_id, RunReason.ORCHESTRATOR_ERROR, "again", 6)
    assert conn.execute("SELECT reason_text FROM store.attempt WHERE no = 2").fetchall() == [("cannot go on",)]
