"""What a virtual rollout worker tells of its demand, when the real one would."""

from dataclasses import dataclass, field

from flexmarl.contracts import events as e
from tests.support.virtual.store import VirtualStore

REPORT_S = 1.0
REPORT_AGAIN_S = 5.0


@dataclass
class Reports:
    """The reports of one worker: on change, and again before the last one counts no more."""

    no: int = 0
    last: dict[str, e.RequestedTurns] = field(default_factory=dict)
    at: float = 0.0

    def tell(self, worker: str, asks: dict[tuple[int, int], tuple[str, bool]], now: float, store: VirtualStore) -> bool:
        """Put a report into the inbox if it is due and none of this worker waits there."""
        found: dict[str, e.RequestedTurns] = {}
        for policy in sorted({policy for policy, _ in asks.values()}):
            served = [at_engine for own, at_engine in asks.values() if own == policy]
            found[policy] = e.RequestedTurns(waiting=served.count(False), in_flight=served.count(True))
        due = found != self.last or (found and now - self.at >= REPORT_AGAIN_S)
        if not due or any(key.startswith(f"demand:{worker}:") for key in store.inbox):
            return False
        self.no, self.last, self.at = self.no + 1, found, now
        return store.put(f"demand:{worker}:{self.no}", e.DemandReported(worker=worker, policies=found))
