"""The loop of a run's turns: facts are read ahead, and the core decides while the decision before is being written.

Invariants: decisions reach the database in the order in which they were made, each as one transaction with the facts it
was made on; a turn is told only when its transaction is durable. A decision on a state that turns out not to be durable
is refused by the server (its place in the log is not free), and the session is of no use then.
"""

import math
import time
from collections import deque
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import Connection, Cursor

from flexmarl.controlplane.runs.driver.session import BATCH, CommittedTurn, CoreRaised, Decided, RunSession
from flexmarl.store.control import decisions, inbox
from flexmarl.store.control.inbox import WaitingFact

LOOK_BACK = 16
"""Numbers of facts become visible out of order: every so many answers are asked for from the first number on."""


class FactPrefetch:
    """The oldest facts of a run's inbox, up to two batches of them, and the time at which they waited."""

    def __init__(self, run_id: int) -> None:
        self.facts: deque[WaitingFact] = deque()
        self.now = 0.0
        self.more = False
        """The last answer was full: there may be more."""
        self._run_id = run_id
        self._repeated: list[int] = []
        self._behind = 0
        self._reads = 0
        self._room = 0

    def ask(self, conn: Connection) -> Cursor[Any]:
        """Ask for as many facts as there is room for, besides those that are here."""
        self._room = 2 * BATCH - len(self.facts)
        self._reads += 1
        if self._reads % LOOK_BACK == 0:
            self._behind = 0
        here = (*(fact.id for fact in self.facts), *self._repeated)
        besides = [number for number in here if number > self._behind]
        return inbox.ask(conn, self._run_id, self._behind, besides, self._room)

    def hear(self, answer: Cursor[Any]) -> None:
        """Take the answer in. Raises what went wrong with anything that was sent before it."""
        waiting = inbox.heard(answer)
        self.now = waiting.now
        # A full answer goes on behind its last fact. Whoever has seen everything looks at everything again.
        self.more = len(waiting.facts) == self._room
        self._behind = waiting.facts[-1].id if self.more else 0
        self._repeated += [fact.id for fact in waiting.facts if fact.known]
        self.facts += [fact for fact in waiting.facts if not fact.known]

    def repeated(self) -> list[int]:
        """Hand over the repetitions that are to be discarded."""
        gone, self._repeated = self._repeated, []
        return gone


@dataclass(frozen=True, slots=True)
class PendingDecision:
    """A decision that was sent to the database and whose result has not been read."""

    decided: Decided
    answer: Cursor[Any]
    """To the question for facts that was sent with it."""
    commit: Cursor[Any]


def turns(
    session: RunSession, conn: Connection, poisoned: Collection[str] = (), until: float = math.inf
) -> Generator[CommittedTurn, None, None]:
    """Take batches of facts, decide and commit until nothing is left to do. What comes meanwhile has its own hint.

    No batch is begun after `until` (monotonic clock). Go through all of them: what is decided ahead is kept only then.
    Raises CoreRaised when the core raises; then and on any other error the session is of no use any more.
    """
    ahead = FactPrefetch(session.lease.run_id)
    ahead.hear(ahead.ask(conn))
    if ahead.more or len(ahead.facts) > BATCH:
        with decisions.sending(conn, session.lease):
            yield from _overlapped(session, conn, ahead, poisoned, until)
    while session.due(ahead.facts, ahead.now) and time.monotonic() < until:
        decided = session.decide(ahead.facts, ahead.now, poisoned)
        decisions.commit(conn, session.lease, decided.stored, decided.replaced)
        session.announce(decided.stored)
        yield decided.turn
    inbox.discard(conn, session.lease.run_id, ahead.repeated())


def _overlapped(
    session: RunSession, conn: Connection, ahead: FactPrefetch, poisoned: Collection[str], until: float
) -> Iterator[CommittedTurn]:
    """Decide on a batch while the server writes what the batch before led to."""
    under_way: PendingDecision | None = None
    while (goes_on := session.due(ahead.facts, ahead.now) and time.monotonic() < until) or under_way is not None:
        decided, raised = None, None
        if goes_on:
            try:
                decided = session.decide(ahead.facts, ahead.now, poisoned)
            except CoreRaised as error:
                raised = error
        if under_way is not None:
            yield _announced(session, ahead, under_way)
            under_way = None
        if raised is not None:
            raise raised
        if decided is not None:
            under_way = _sent(session, conn, ahead, decided)


def _sent(session: RunSession, conn: Connection, ahead: FactPrefetch, decided: Decided) -> PendingDecision:
    """Send a decision as one transaction, with the question for more facts; wait for no answer."""
    conn.execute("BEGIN")
    decisions.write(conn, session.lease, decided.stored, [*decided.replaced, *ahead.repeated()])
    answer = ahead.ask(conn)
    return PendingDecision(decided, answer, conn.execute("COMMIT"))


def _announced(session: RunSession, ahead: FactPrefetch, sent: PendingDecision) -> CommittedTurn:
    """Wait until a decision is durable."""
    ahead.hear(sent.answer)
    if sent.commit.statusmessage != "COMMIT":
        raise RuntimeError(f"the decision ended in {sent.commit.statusmessage}")
    session.announce(sent.decided.stored)
    return sent.decided.turn
