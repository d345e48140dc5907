"""A model of a serving engine: prompts one after the other, then all replies together, one token each per step.

All running replies advance alike, so an engine keeps one count of steps, and each reply the count at which it ends. The
clock is asked for that moment anew only when it comes earlier; one that came too early asks again.

Invariants: a turn is answered by weights it may be answered by, or not at all; its segments say which made how many of
its tokens; a turn that was cancelled or handed back leaves nothing behind.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf

from flexmarl.algorithms.routing import EngineLoad
from flexmarl.contracts.hardware import Hardware
from flexmarl.simulator.devices.batch import DecodeBatch, Rates
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.trace import Trace
from flexmarl.simulator.devices.turns import Holdings, SimulatedTurn
from flexmarl.simulator.scenarios.scenario import EngineModel


class BusyTracker:
    """The intervals in which an engine generates."""

    def __init__(self, trace: Trace, lease_id: int, held: Holdings) -> None:
        self.generates = False
        self._trace, self._lease_id, self._held = trace, lease_id, held
        self._open = 0
        self._tokens = 0.0

    def turn(self, clock: Clock, tokens: float) -> None:
        """Begin or end an interval."""
        self.generates = not self.generates
        now = clock.real
        if self.generates:
            clock.begin()
            names = self._held.newest
            policy = next(iter(names)) if len(names) == 1 else ""  # of several, nobody could say whose it is
            self._open, self._tokens = self._trace.begin(self._lease_id, "rollout", now, policy), tokens
        else:
            clock.end()
            self._trace.end(self._open, now, tokens - self._tokens)


@dataclass(slots=True)
class Prompts:
    """Those under way, by identity, and when the engine is through with the last one."""

    turns: dict[int, SimulatedTurn] = field(default_factory=dict)
    until: float = 0.0


class SimulatedEngine:
    def __init__(
        self, clock: Clock, trace: Trace, model: EngineModel, lease_id: int, hardware: Hardware = Hardware.ANY
    ) -> None:
        self.lease_id = lease_id
        self.load = EngineLoad(f"engine-{lease_id:05d}", hardware=hardware)
        """As a router sees it: always up to date."""
        self.held = Holdings()
        self.asked: dict[str, int] = {}
        """Policy -> its requests here; a fleet counts those of all its engines in one place."""
        self.pace = 1.0
        """How many times as long everything takes here."""
        self._clock, self._rates = clock, Rates.of(model)
        self._queue: deque[SimulatedTurn] = deque()
        self._prompts = Prompts()
        self._batch = DecodeBatch(self._rates)
        self._busy = BusyTracker(trace, lease_id, self.held)
        self._cells = 0.0

    @property
    def name(self) -> str:
        """Return what it is called."""
        return self.load.engine

    @property
    def running(self) -> int:
        """Count the requests that have a slot."""
        return self.load.running

    @property
    def waiting(self) -> int:
        """Count the requests that have none."""
        return self.load.waiting

    @property
    def slots(self) -> int:
        """Return how many requests it answers at once."""
        return self._rates.slots

    def cache_use(self) -> float | None:
        """Return the share of its cache that is taken or set apart, as it was when something last happened here.

        None where there is no end of it.
        """
        if self._rates.kv_tokens == inf:
            return None
        return (self._cells + (self._batch.cells if self._rates.grown else 0.0)) / self._rates.kv_tokens

    def made(self) -> float:
        """Return the tokens it has made up to now."""
        self._batch.advance(self._clock.now)
        return self._batch.tokens

    def made_of(self, turn: SimulatedTurn) -> float:
        """Return the tokens that one of its requests has."""
        self._batch.advance(self._clock.now)
        return self._batch.made(turn) if turn.phase == "reply" else turn.made

    def cached(self) -> int:
        """Return the tokens of the prompts and replies that have a slot."""
        self._batch.advance(self._clock.now)
        prompts, under_way = 0.0, self._prompts.turns
        if under_way:
            prompts = sum([turn.prompt + turn.made for turn in under_way.values()])
        return round(prompts + self._batch.held())

    def slow(self, pace: float) -> None:
        """Take so many times as long for everything from now on."""
        self.pace = pace
        self._batch.advance(self._clock.now)
        self._batch.slow(self._rates.slowed(pace * self._rates.mixed if self._prompts.turns else pace))
        self._look()

    def requests(self) -> list[SimulatedTurn]:
        """List all requests, those with a slot first."""
        return [*self._batch.turns(), *self._prompts.turns.values(), *self._queue]

    def asked_of(self, policy: str) -> list[SimulatedTurn]:
        """List the requests of a policy, those with a slot first."""
        return [turn for turn in self.requests() if turn.policy == policy]

    def ask(self, turn: SimulatedTurn) -> None:
        """Take a request in. It must hold what the request asks for."""
        version = self.held.answering(turn)
        assert version is not None, f"{self.name} holds nothing for a turn of {turn.policy}"
        if turn.made and turn.version != version:  # it was begun elsewhere, with older weights
            made = int(turn.made) - sum(turn.segments[1::2])
            turn.segments += (turn.version, made) if made > 0 else ()
        turn.engine, turn.version = self, version
        asked, load, policy = self.asked, self.load, turn.policy
        asked[policy] = asked.get(policy, 0) + 1
        load.tokens += turn.expected
        if not self._queue and self._fits(turn):
            self._begin(turn)
        else:
            turn.phase = "queued"
            self._queue.insert(self._place(turn), turn)
            load.waiting += 1

    def _place(self, turn: SimulatedTurn) -> int:
        place = len(self._queue)
        while place and self._queue[place - 1].rank < turn.rank:
            place -= 1
        return place

    def drop(self, turn: SimulatedTurn) -> None:
        """Forget a request: it was cancelled, or goes on elsewhere with the tokens it has."""
        if turn.phase == "queued":
            self._queue.remove(turn)
            self.load.waiting -= 1
        else:
            if turn.phase == "prompt":
                self._prompt_over(turn)
            else:
                self._batch.advance(self._clock.now)
                self._batch.leave([turn])
            self._free(turn)
            self.load.running -= 1
        turn.engine, turn.phase = None, "asked"
        self.load.tokens -= turn.expected
        self.asked[turn.policy] -= 1
        self._admit()
        self._look()

    def serve(self, policy: str, version: int, keeps: tuple[int, ...]) -> None:
        """Hold new weights, and let them make the rest of the replies that follow them."""
        self.held.take(policy, version, keeps)
        self._batch.advance(self._clock.now)
        anew = []
        for turn in self.asked_of(policy):
            if turn.follow and turn.version < version:
                if turn.phase == "reply" and self._hand_over(turn):
                    anew.append(turn)
                turn.version = version
        if anew:
            self._anew(anew)
        self._look()

    def flow(self, generates: bool, tokens: float, running: int) -> None:
        """Note what was made here since the last time, where turns are not asked one by one."""
        if self._busy.generates != generates:
            self._busy.turn(self._clock, self._batch.tokens)
        self._batch.tokens += tokens
        self.load.running = running

    def _fits(self, turn: SimulatedTurn) -> bool:
        """Tell whether there is a slot, and room in the cache: whoever is alone gets all there is."""
        running, rates = self.load.running, self._rates
        if not running:
            return True
        if running >= rates.slots:
            return False
        if rates.grown:
            self._batch.advance(self._clock.now)
            return self._cells + self._batch.cells + (turn.prompt + turn.made) <= rates.kv_tokens
        return self._cells + (turn.prompt + turn.reply) <= rates.kv_tokens

    def _admit(self) -> None:
        """Give slots and cache to whoever waits, in the order of the queue."""
        queue = self._queue
        while queue and self._fits(queue[0]):
            self.load.waiting -= 1
            self._begin(queue.popleft())

    def _begin(self, turn: SimulatedTurn) -> None:
        if not self._rates.grown:
            self._cells += turn.prompt + turn.reply
        self.load.running += 1
        self._prompt(turn)

    def _prompt_over(self, turn: SimulatedTurn) -> None:
        """End with a prompt; steps of replies take less again when it was the last."""
        prompts, rates = self._prompts.turns, self._rates
        del prompts[id(turn)]
        if rates.mixed != 1.0 and not prompts:
            self.slow(self.pace)
        if rates.grown:
            self._hold(-turn.prompt - turn.made)

    def _hold(self, cells: float) -> None:
        """Set cache apart for prompts under way, or no more of it, where replies get it as they grow."""
        self._batch.advance(self._clock.now)
        self._cells += cells
        self._batch.room = self._rates.kv_tokens - self._cells
        self._batch.changed()
        self._look()

    def _free(self, turn: SimulatedTurn) -> None:
        """Give back what was set apart for a reply at its beginning."""
        if not self._rates.grown:
            self._cells -= turn.prompt + turn.reply

    def _prompt(self, turn: SimulatedTurn) -> None:
        """Compute a prompt, and what exists of the reply, behind those that came before."""
        rates, prompts, clock = self._rates, self._prompts, self._clock
        turn.phase = "prompt"
        prompts.turns[id(turn)] = turn
        if not rates.steady:
            self._disturb(turn)
        begins = max(prompts.until, clock.now)
        seconds = (self.held.fresh(turn) + turn.made) / rates.prefill * turn.scale * self.pace
        turn.ready = ready = begins + seconds
        prompts.until = begins + seconds / rates.replicas
        clock.at(ready, self._prompt_done, turn)

    def _disturb(self, turn: SimulatedTurn) -> None:
        """Let replies feel a prompt that begins: their steps take longer, or it needs some of their cache."""
        if self._rates.mixed != 1.0 and len(self._prompts.turns) == 1:
            self.slow(self.pace)
        if self._rates.grown:
            self._hold(turn.prompt + turn.made)

    def _prompt_done(self, turn: SimulatedTurn) -> None:
        now = self._clock.now
        if turn.engine is not self or turn.phase != "prompt" or turn.ready != now:
            return  # it was dropped meanwhile
        turn.phase = "reply"
        if self._rates.steady:
            del self._prompts.turns[id(turn)]
        else:
            self._prompt_over(turn)
        batch = self._batch
        batch.advance(now)
        batch.enter(turn)
        self._look()

    def _look(self) -> None:
        """See to it that the clock calls when the next reply ends. The batch is up to now."""
        batch, busy = self._batch, self._busy
        end = batch.end
        if busy.generates != (end < inf):  # nothing ends where nothing is made
            busy.turn(self._clock, batch.tokens)
        if end < batch.called:
            batch.called = end
            self._clock.at(end, self._called, end)

    def _called(self, when: float) -> None:
        batch = self._batch
        if when != batch.called:
            return  # the clock was asked for an earlier moment since
        batch.called = inf
        now = self._clock.now
        if batch.end > now:  # what ended next took longer than it seemed, or has left
            if batch.end < inf:
                batch.called = batch.end
                self._clock.at(batch.end, self._called, batch.end)
            return
        batch.advance(now)
        ended = batch.ended()
        self._settle(ended)
        if not ended:
            self._make_room()
        elif self._queue:
            self._admit()
        self._look()
        for turn in ended:
            turn.done(turn)

    def _settle(self, ended: list[SimulatedTurn]) -> None:
        """Forget replies that are complete."""
        load, grown = self.load, self._rates.grown
        for turn in ended:
            if not grown:
                self._cells -= turn.prompt + turn.reply
            load.tokens -= turn.expected
            self.asked[turn.policy] -= 1
            turn.made, turn.phase, turn.engine = float(turn.reply), "ended", None
        load.running -= len(ended)

    def _make_room(self) -> None:
        """Let the youngest replies wait until others have ended; what they had in the cache is computed again then."""
        while self._batch.full:
            turn = self._batch.youngest()
            self._batch.leave([turn])
            turn.phase = "queued"
            self._queue.appendleft(turn)
            self.load.running -= 1
            self.load.waiting += 1

    def _hand_over(self, turn: SimulatedTurn) -> bool:
        """Note what older weights made of a running reply; tell whether its prompt is to be computed anew."""
        made = int(self._batch.made(turn))
        before = sum(turn.segments[1::2])
        if turn.follow != "restart_turn" and made > before:
            turn.segments += (turn.version, made - before)
        return turn.follow != "continue"

    def _anew(self, turns: list[SimulatedTurn]) -> None:
        """Compute the prompts of running replies again: they go on, or begin once more."""
        self._batch.leave(turns)
        for turn in turns:
            again = turn.follow == "restart_turn"
            turn.made = 0.0 if again else float(int(turn.made))
            turn.segments = () if again else turn.segments
            self._prompt(turn)
