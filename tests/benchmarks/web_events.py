"""Somebody who makes events in seeded runs as a driver does: commits a decision, then hints. Needs Django."""

import threading
import time

from flexmarl.contracts.events import TimerFired
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import RunReason
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.driver.pages import Pages
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.control import decisions, runs
from flexmarl.store.control.decisions import LogEntry, StoredDecision


class Committer:
    """Commits steps of runs, and remembers when each was committed."""

    def __init__(self) -> None:
        self.at: dict[tuple[str, int], float] = {}
        """(topic, sequence) -> time of its commit."""
        self._pages = Pages()

    def step(self, key: str) -> tuple[int, float]:
        """Commit one more step of a run and hint it. Returns the step and the time of the commit."""
        run = Run.objects.select_related("state").get(key=key)
        conn = store_connection()
        taken = "UPDATE store.run_state SET owner = 'bench', fence = fence + 1 WHERE run_id = %s RETURNING fence"
        lease = runs.RunLease(run.no, "bench", conn.execute(taken, [run.no]).fetchone()[0])
        state = runs.load_run(conn, run.no)
        step = run.state.step + 1
        progress = Progress.model_validate({**run.state.progress, "step": step})
        entry = LogEntry(state.seq + 1, time.time(), TimerFired())
        decisions.append(
            conn,
            lease,
            StoredDecision([entry], state.status, RunReason.NONE, "", state.epoch, step, progress, None),
        )
        at = time.time()
        self.at[f"run:{run.id}", entry.seq] = at
        self._pages.announce(run.no, entry.seq, moved=False)
        return step, at

    def seqs(self, topics: list[str]) -> dict[str, int]:
        """The newest sequence of each run's topic."""
        found = {f"run:{run.id}": run.state.seq for run in Run.objects.select_related("state")}
        return {topic: found[topic] for topic in topics}


class Beat(threading.Thread):
    """Commits a step of each run in turns, at a rate, until stopped."""

    def __init__(self, committer: Committer, keys: list[str], rate: float) -> None:
        super().__init__(name="beat", daemon=True)
        self._committer, self._keys, self._rate = committer, keys, rate
        self._stopping = threading.Event()

    def run(self) -> None:
        """Commit until stopped."""
        count = 0
        while not self._stopping.wait(1 / self._rate):
            self._committer.step(self._keys[count % len(self._keys)])
            count += 1

    def stop(self) -> None:
        """End after the step at hand."""
        self._stopping.set()
        self.join(10)
