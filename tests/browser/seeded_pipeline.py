"""What passed through the pipeline of seeded runs in their newest steps, and what their processes said.

Moves the rows of the played cohorts into the steps that the curves tell of, and adds the commands behind them.
"""

import json
from typing import Any

from flexmarl.store.telemetry import logs
from flexmarl.store.telemetry.logs import LogLine

GROUPS = 4
STEPS = 3


def pipeline(conn: Any, run_no: int, story: Any, roles: list[str], start: float) -> None:
    """Give the newest steps of a run their times, from the first episode to the served weights."""
    leases = dict(conn.execute("SELECT use, id FROM store.lease WHERE run_id = %s", [run_no]).fetchall())
    number = 1000
    for place, cohort in enumerate(range(max(0, story.steps - STEPS), story.steps)):
        long = story.step_s
        begin = start + (cohort - 1) * long
        conn.execute(
            """
            UPDATE store.command SET created_at = to_timestamp(%s), taken_at = to_timestamp(%s),
              done_at = to_timestamp(%s) WHERE run_id = %s AND no = %s
            """,
            [begin, begin + 0.02, begin + 0.62 * long, run_no, place + 1],
        )
        conn.execute(
            """
            UPDATE store.episode SET started_at = to_timestamp(%(b)s + (0.03 + 0.06 * (draw %% 4)) * %(s)s),
              finished_at = to_timestamp(%(b)s + (0.22 + 0.11 * (draw %% 4)) * %(s)s)
            WHERE run_id = %(run)s AND cohort = %(cohort)s AND origin = 'train'
            """,
            {"b": begin, "s": long, "run": run_no, "cohort": cohort},
        )
        for i, role in enumerate(roles):
            own: list[tuple[str, int, dict[str, Any], float, float, float]] = []
            for group in range(GROUPS):
                cut = begin + (0.24 + 0.11 * group + 0.02 * i) * long
                micro_batch = place * GROUPS + group
                conn.execute(
                    """
                    UPDATE store.micro_batch SET cut_at = to_timestamp(%s), version = %s
                    WHERE run_id = %s AND policy = %s AND no = %s
                    """,
                    [cut, cohort + 1, run_no, role, micro_batch],
                )
                body = {"kind": "accumulate", "policy": role, "micro_batch": micro_batch}
                own.append(("trainer", 0, body, cut, cut + 0.02 * long, cut + 0.09 * long))
            at = begin + (0.74 + 0.04 * i) * long
            step = {"kind": "optimizer_step", "policy": role, "next_version": cohort + 1}
            load = {"kind": "load_weights", "policy": role, "version": cohort + 1}
            own.append(("trainer", 0, step, at, at + 0.01 * long, at + 0.05 * long))
            own.append(("engine", 0, load, at + 0.06 * long, at + 0.07 * long, at + 0.13 * long))
            for use, _, body, created, taken, done in own:
                number += 1
                conn.execute(
                    """
                    INSERT INTO store.command (run_id, no, seq, epoch, kind, route, lease_id, body, status, created_at,
                      taken_at, done_at)
                    VALUES (%s, %s, 3, 1, %s, 'node', %s, %s, 'done', to_timestamp(%s), to_timestamp(%s),
                      to_timestamp(%s))
                    """,
                    [run_no, number, body["kind"], leases[use], json.dumps(body), created, taken, done],
                )


def lines(conn: Any, run_no: int, roles: list[str], end: float) -> None:
    """Write what the run's processes said, hostile text included."""
    said = [
        ("info", "device", "child started", "", {"use": "engine", "pid": 4711}),
        ("info", "device", "child ready", "", {"endpoint": "http://127.0.0.1:40100"}),
        ("warning", "node", "lane pauses", "", {"error": "ChildUnreachable: engine e1.1.1"}),
        ("warning", "trainer", "refused", roles[0], {"code": "wrong_accumulator"}),
        ("info", "rollout", "command given up", "", {"reason": "<img src=x onerror=alert(1)>"}),
        ("error", "rollout", "command failed", roles[-1], {"error": "ValueError: no such word"}),
    ]
    logs.put(
        conn,
        run_no,
        [
            LogLine(run_no, end - 40 + i, level, component, text, agent, "atlas", fields)
            for i, (level, component, text, agent, fields) in enumerate(said)
        ],
    )
