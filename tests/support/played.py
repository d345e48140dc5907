"""A run of the control plane with everything in the store that its pages read."""

import time
from dataclasses import dataclass

from django.utils import timezone
from tokenizers import Tokenizer, models, pre_tokenizers

from flexmarl.contracts.decisions import Metric, NoteLevel, RunNote
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.live import AgentProgress, Progress
from flexmarl.contracts.status import RunReason
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import ConsistencyCheck, Run
from flexmarl.controlplane.telemetry.checks import checking
from flexmarl.store.control import decisions, leases, runs
from flexmarl.store.control.decisions import Logged, StoredDecision
from flexmarl.store.reads.report import full_report
from flexmarl.store.telemetry import intervals
from tests.support.store_story import Story

STEPS = 3
WORDS = ("<pad>", "red", "blue", "round", "square", "big", "small", "yes")
"""Vocabulary of the story's policy: the story's response ids 4, 5, 6 read "square big small"."""


@dataclass
class Played:
    story: Story
    trajectory: str
    leases: dict[DeviceUse, int]
    busy_s: float
    """Busy seconds of the engine, inside the last minute."""


def play(run: Run) -> Played:
    """Let a run play two groups, train once, and write series, lines, intervals and a checkpoint."""
    conn = store_connection()
    story = Story(conn, run_id=run.no, progress=Progress(step=STEPS, max_steps=400, step_seconds=2.0))
    [story.lease] = [held for held in runs.claim_runs(conn, story.owner, 60.0) if held.run_id == run.no]
    held = story.granted()
    story.hosted(held[DeviceUse.ENGINE], DeviceUse.ENGINE, "e1.1.1")
    story.hosted(held[DeviceUse.TRAINER], DeviceUse.TRAINER, "t1.1.1")
    story.bind(held[DeviceUse.TRAINER], "t1.1.1", None)
    conn.execute("UPDATE store.tokenizer SET body = %s WHERE run_id = %s", [_tokenizer(), run.no])
    story.settle(0, 1)
    story.cut(0, 0, 1)
    story.accumulate(held[DeviceUse.TRAINER], 0, "0:t1.1.1")
    story.step(held[DeviceUse.TRAINER], "0:t1.1.1", (0,), 1)
    story.decide()
    _write_figures(story, run)
    busy = _write_intervals(run, held)
    conn.execute(
        "INSERT INTO store.checkpoint (run_id, label, step, versions, path, bytes, parts) "
        "VALUES (%s, 'best', 3, %s, %s, 9, %s)",
        [
            run.no,
            '{"solver": 1}',
            "runs/1/best",
            f'{{"speaker": {{"version": 1, "digest": "{"a" * 64}", "state": ""}}}}',
        ],
    )
    return Played(story, "1-1-1", held, busy)


def _tokenizer() -> str:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer.to_str()


def _write_figures(story: Story, run: Run) -> None:
    at = time.time()
    points = [(at + step, Metric("reward/team", step, step / 10, samples=8 * step)) for step in range(1, STEPS + 1)]
    points += [(at, Metric("reward/agent", 1, 0.25, agent="speaker", samples=8))]
    note = Logged(story._seq, at, RunNote(NoteLevel.INFO, "Step 1 is done.", actor="driver", target="solver"))
    progress = story.progress.model_copy(update={"reward": 0.3, "agents": {"speaker": AgentProgress(version=1)}})
    assert story.lease is not None
    decision = StoredDecision(
        (), story.status, RunReason.NONE, "", 1, STEPS, progress, None, metrics=points, notes=(note,)
    )
    decisions.append(story.conn, story.lease, decision)


def _write_intervals(run: Run, held: dict[DeviceUse, int]) -> float:
    """The engine works 10 s twice, 5 s of it double; the trainer 3 s. All end within the last minute."""
    conn, now = store_connection(), time.time()
    conn.execute("UPDATE store.lease SET granted_at = now() - interval '40 seconds' WHERE run_id = %s", [run.no])
    rollout = [
        intervals.BusyInterval(0, "rollout", "solver", now - 30, now - 20, 100),
        intervals.BusyInterval(1, "rollout", "solver", now - 15, now - 5, 100),
        intervals.BusyInterval(2, "load", "solver", now - 10, now - 5, 0),
    ]
    training = [intervals.BusyInterval(0, "train", "solver", now - 20, now - 17, 50)]
    for use, rows in ((DeviceUse.ENGINE, rollout), (DeviceUse.TRAINER, training)):
        endpoint = leases.endpoint(conn, held[use])
        assert endpoint is not None
        device = conn.execute("SELECT device_id FROM store.lease WHERE id = %s", [held[use]]).fetchone()
        intervals.put(conn, run.no, held[use], device[0], incarnation="i", rows=rows)
    return 20.0


def remember_check(run: Run) -> None:
    """Check the rows as they are in this transaction, and remember what was found as a check does."""
    found = full_report(store_connection(), run.no)
    ConsistencyCheck.objects.create(
        run=run, state="done", ok=all(one.ok for one in found.checks), finished_at=timezone.now(),
        result=checking._result(found),
    )  # fmt: skip
