"""The replies that an engine makes at a time: how long its steps take, and when the next one ends.

A step takes what reading the weights and the cache takes, or what the arithmetic of all requests takes, whichever is
more. The cache grows by a token per reply and step, so between two changes of the batch a step's time grows evenly, and
what so many steps take has a closed form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf, sqrt

from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.scenarios.scenario import EngineModel

Stretch = tuple[float, float, float]
"""(time of the next step, what each one takes more than the one before, what none takes less than)"""


def seconds_of(stretch: Stretch, steps: float) -> float:
    """Return what so many steps take."""
    first, grows, least = stretch
    flat = min(steps, max(0.0, least - first) / grows) if grows else 0.0
    rest = steps - flat
    return flat * least + rest * (max(first, least) + grows * rest / 2.0)


def steps_of(stretch: Stretch, seconds: float) -> float:
    """Return how many steps are made in so much time."""
    first, grows, least = stretch
    if not grows:
        return seconds / max(first, least)
    flat = max(0.0, least - first) / grows
    if seconds <= flat * least:
        return seconds / least
    begins = max(first, least)
    return flat + (sqrt(begins * begins + 2.0 * grows * (seconds - flat * least)) - begins) / grows


@dataclass(frozen=True, slots=True)
class Rates:
    """A model of engines as they stand behind one device, in plain numbers: every event reads some of them."""

    token: float
    batch: float
    cell: float
    compute: float
    prefill: float
    mixed: float
    replicas: int
    slots: int
    """Of all replicas together, as `kv_tokens`."""
    kv_tokens: float
    grown: bool
    """Replies get cache as they grow, instead of all of it at their beginning."""
    plain: bool
    """A step takes what its requests make it take: neither the cache nor the arithmetic adds to it."""
    steady: bool
    """A prompt under way changes nothing for replies."""

    @classmethod
    def of(cls, model: EngineModel) -> "Rates":
        """Return those that a scenario states."""
        many, grown = model.replicas, model.cache == "grown"
        return cls(
            model.token, model.batch, model.cell, model.compute, model.prefill, model.mixed, many,
            model.slots * many, model.kv_tokens * many, grown,
            plain=not (model.cell or model.compute), steady=model.mixed == 1.0 and not grown,
        )  # fmt: skip

    def slowed(self, pace: float) -> "Rates":
        """Return those of steps that take so many times as long."""
        return replace(self, token=pace * self.token, cell=pace * self.cell, compute=pace * self.compute)


class DecodeBatch:
    """Whoever changes it brings it up to now first."""

    def __init__(self, rates: Rates) -> None:
        self.tokens = 0.0
        """Made so far, all replies together."""
        self.room = inf
        """Places of the cache that its replies may come to hold; a reply alone may hold all there are."""
        self.end = inf
        """When the next reply ends, or the cache is full, if nothing changes."""
        self.called = inf
        """The earliest moment at which the clock was asked to call."""
        self._rates = rates
        self._replies: list[tuple[float, int, SimulatedTurn]] = []
        self._steps = 0.0
        self._stretch: Stretch = (rates.token, 0.0, 0.0)
        self._at = 0.0
        self._entered = 0
        self._pens = 0.0
        """Tokens that a step makes: one per reply, less of those that take several steps for each."""
        self._older = 0.0
        """Cells of its replies beyond `tokens`; negative once most of these have left."""

    def __len__(self) -> int:
        return len(self._replies)

    @property
    def cells(self) -> float:
        """Return the places of the cache in use: prompts, and what exists of the replies."""
        return self.tokens + self._older

    @property
    def full(self) -> bool:
        """Tell whether its replies cannot all go on: there is no place for the next token of each."""
        return self.room < inf and len(self._replies) > 1 and self.cells > self.room - 0.5

    def turns(self) -> list[SimulatedTurn]:
        """List its turns."""
        return [turn for _, _, turn in self._replies]

    def youngest(self) -> SimulatedTurn:
        """Return who came last."""
        return max(self._replies, key=lambda entry: entry[1])[2]

    def advance(self, now: float) -> None:
        """Make the tokens that belong to the time since the last look."""
        if self._replies and now > self._at:
            first, grows, least = self._stretch
            passed = now - self._at
            steps = steps_of(self._stretch, passed) if grows else passed / first
            self._steps += steps
            self.tokens += steps * self._pens
            if grows:
                self._stretch = (first + grows * steps, grows, least)
        self._at = now

    def enter(self, turn: SimulatedTurn) -> None:
        """Begin, or go on, with a reply."""
        self._entered += 1
        scale, made = turn.scale, turn.made
        turn.began = began = self._steps - made * scale
        heappush(self._replies, (began + turn.reply * scale, self._entered, turn))
        self._pens += 1.0 / scale
        self._older += turn.prompt + made
        self.changed()

    def leave(self, gone: Sequence[SimulatedTurn]) -> None:
        """Stop with replies; they keep the tokens they have."""
        for turn in gone:
            turn.made = self.made(turn)
            self._pens -= 1.0 / turn.scale
            self._older -= turn.prompt + turn.made
        names = {id(turn) for turn in gone}
        self._replies = [entry for entry in self._replies if id(entry[2]) not in names]
        heapify(self._replies)
        self.changed()

    def held(self) -> float:
        """Return the tokens of its prompts and replies, turn by turn: exact where `cells` has been rounded for long."""
        steps, found = self._steps, 0.0
        for _, _, turn in self._replies:
            made, reply = (steps - turn.began) / turn.scale, turn.reply
            found += turn.prompt + (made if made < reply else reply)
        return found

    def made(self, turn: SimulatedTurn) -> float:
        """Return the tokens that a running reply has."""
        return min(float(turn.reply), (self._steps - turn.began) / turn.scale)

    def ended(self) -> list[SimulatedTurn]:
        """Take out the replies that end now: the next one, and all that end with it; none when the cache is full."""
        replies, steps, first = self._replies, self._steps, self._replies[0][0]
        if first > steps:
            if self.full:
                return []
            self._steps = steps = first  # what rounding left of the last step
        found = []
        while replies and replies[0][0] <= steps:
            turn = heappop(replies)[2]
            self._pens -= 1.0 / turn.scale
            self._older -= turn.prompt + turn.reply
            found.append(turn)
        self.changed()
        return found

    def slow(self, rates: Rates) -> None:
        """Take as long as these say from now on."""
        self._rates = rates
        self.changed()

    def changed(self) -> None:
        """Look anew how long steps take, and when something ends."""
        replies, rates = self._replies, self._rates
        count = len(replies)
        if not count:
            self.end, self._pens = inf, 0.0
            return
        share = count / rates.replicas if count > rates.replicas else 1.0
        first, grows = rates.token * (1.0 + (share - 1.0) / rates.batch), 0.0
        if rates.plain:
            self._stretch = (first, 0.0, 0.0)
        else:
            self._stretch = first, grows, _ = self._read(first, share)
        left = replies[0][0] - self._steps
        if count > 1 and self.room < inf:
            left = min(left, max(0.0, (self.room - self.cells) / self._pens))
        self.end = self._at + (seconds_of(self._stretch, left) if grows else left * first)

    def _read(self, first: float, share: float) -> Stretch:
        """Return what steps take that read the cache, or wait for the arithmetic of their requests."""
        rates, grows, least = self._rates, 0.0, 0.0
        if rates.cell:
            grows = rates.cell * self._pens / rates.replicas
            first += rates.cell * self.cells / rates.replicas
        if rates.compute:
            least = rates.compute * share
            first = first if grows else max(first, least)
        return first, grows, least
