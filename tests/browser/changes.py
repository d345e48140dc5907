"""Random changes of a seeded run, as its driver and its people make them. Needs Django."""

import random
import time

from flexmarl.contracts.decisions import NoteLevel, RunNote
from flexmarl.contracts.events import TimerFired
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import RunReason
from flexmarl.controlplane.accounts.models import User
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import actions, queries
from flexmarl.controlplane.runs.driver.pages import Pages
from flexmarl.store.control import decisions, runs
from flexmarl.store.control.decisions import LogEntry, Logged, StoredDecision

STEPS, OTHERS = 4, 6


def make(key: str, seed: int) -> None:
    """Commit steps and names in a random order; the run stays running."""
    rng = random.Random(seed)
    actor = actor_of_user(User.objects.get(username="ada"))
    conn = store_connection()

    def step() -> None:
        run = queries.find_run(actor, key)
        taken = "UPDATE store.run_state SET owner = 'other', fence = fence + 1 WHERE run_id = %s RETURNING fence"
        lease = runs.RunLease(run.no, "other", conn.execute(taken, [run.no]).fetchone()[0])
        state = runs.load_run(conn, run.no)
        now, reached = run.state.step + 1, round(rng.random(), 3)
        progress = Progress.model_validate({**run.state.progress, "step": now, "reward": reached})
        seq = state.seq + 1
        notes = [Logged(seq, time.time(), RunNote(NoteLevel.WARNING, f"Change {seed} at step {now}", "driver"))]
        made = StoredDecision(
            [LogEntry(seq, time.time(), TimerFired())], state.status, RunReason.NONE, "", state.epoch, now, progress,
            None, notes=notes,
        )  # fmt: skip
        decisions.append(conn, lease, made)
        Pages().announce(run.no, seq, moved=False)

    def rename() -> None:
        actions.update_run(actor, queries.find_run(actor, key), name=f"Name {rng.randrange(1000)}")

    todo = [step] * STEPS + [rng.choice([step, rename]) for _ in range(OTHERS)]
    rng.shuffle(todo)
    for act in [*todo, step]:
        act()
        time.sleep(rng.random() * 0.3)
