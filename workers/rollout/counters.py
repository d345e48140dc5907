"""What a client counted, and what of it is news: where turns went and why, and which did not stay there."""

from collections import Counter
from dataclasses import dataclass, field

from flexmarl.algorithms.routing import Choice
from workers.rollout.demand import TurnDemand
from workers.rollout.open_turns import OpenTurnTracker


@dataclass(slots=True)
class ClientCounters:
    turns: int = 0
    requests: int = 0
    retries: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Turns that an engine took and did not finish, by (why, engine)."""
    open: OpenTurnTracker = field(default_factory=OpenTurnTracker)
    routed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Turns by (engine, why it was chosen), where there was a choice."""
    demand: TurnDemand = field(default_factory=TurnDemand)
    latest: dict[str, Choice] = field(default_factory=dict)
    """The last choice for each reason, with the loads that justified it; those that are not told yet."""
    _told: "tuple[Counter[tuple[str, str]], Counter[str]]" = field(default_factory=lambda: (Counter(), Counter()))

    @property
    def moved(self) -> Counter[str]:
        """Return the turns that an engine took and did not finish, by why."""
        found: Counter[str] = Counter()
        for (why, _), turns in self.left.items():
            found[why] += turns
        return found

    def chose(self, choice: Choice) -> None:
        """Count where a turn goes."""
        self.routed[choice.engine, choice.reason] += 1
        self.latest[choice.reason] = choice

    def news(self) -> dict[str, str]:
        """Return what was routed and moved since this was last asked, as fields of a log line; empty without any."""
        routed, moved = self.routed - self._told[0], self.moved - self._told[1]
        self._told = Counter(self.routed), Counter(self.moved)
        lines = {
            "routed": ", ".join(f"{engine} {reason} {count}" for (engine, reason), count in sorted(routed.items())),
            "latest": "; ".join(_justified(choice) for _, choice in sorted(self.latest.items())),
            "moved": ", ".join(f"{why} {count}" for why, count in sorted(moved.items())),
        }
        self.latest = {}
        return {name: line for name, line in lines.items() if line}


def _justified(choice: Choice) -> str:
    loads = ", ".join(f"{load.engine} {load.outstanding}" for load in choice.loads)
    return f"{choice.reason} {choice.engine} of {loads}"
