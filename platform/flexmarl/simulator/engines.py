"""A model of a serving engine: prompts one after the other, then all replies together, one token each per step.

All running replies advance alike, so an engine keeps one count of steps, and each reply the count at which it ends. The
clock is asked for that moment anew only when it comes earlier; one that came too early asks again.

Invariants: a turn is answered by weights it may be answered by, or not at all; its segments say which made how many of
its tokens; a turn that was cancelled or handed back leaves nothing behind.
"""

from collections import deque
from math import inf

from flexmarl.algorithms.routing import EngineLoad
from flexmarl.contracts.hardware import Hardware
from flexmarl.contracts.wire import PolicyPin
from flexmarl.simulator.batch import Batch
from flexmarl.simulator.clock import Clock
from flexmarl.simulator.scenario import EngineModel
from flexmarl.simulator.trace import Trace
from flexmarl.simulator.turns import Holdings, Turn


class Busy:
    """The intervals in which an engine generates."""

    def __init__(self, trace: Trace, lease_id: int, held: Holdings) -> None:
        self.generates = False
        self._trace, self._lease_id, self._held = trace, lease_id, held
        self._open = 0
        self._tokens = 0.0

    def turn(self, now: float, tokens: float) -> None:
        """Begin or end an interval."""
        self.generates = not self.generates
        if self.generates:
            names = self._held.newest
            policy = next(iter(names)) if len(names) == 1 else ""  # of several, nobody could say whose it is
            self._open, self._tokens = self._trace.begin(self._lease_id, "rollout", now, policy), tokens
        else:
            self._trace.end(self._open, now, tokens - self._tokens)


class Engine:
    def __init__(
        self, clock: Clock, trace: Trace, model: EngineModel, lease_id: int, hardware: Hardware = Hardware.ANY
    ) -> None:
        self.lease_id = lease_id
        self.load = EngineLoad(f"engine-{lease_id:05d}", hardware=hardware)
        """As a router sees it: always up to date."""
        self.held = Holdings()
        self.asked: dict[str, int] = {}
        """Policy -> its requests here; a fleet counts those of all its engines in one place."""
        self._clock, self._model = clock, model
        self._queue: deque[Turn] = deque()
        self._prompts: dict[int, Turn] = {}
        self._batch = Batch(model)
        self._busy = Busy(trace, lease_id, self.held)
        self._cells = 0.0
        self._prompts_until = 0.0

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
        return self._model.slots * self._model.replicas

    def cache_use(self) -> float | None:
        """Return the share of its cache that is taken or set apart, as it was when something last happened here.

        None where there is no end of it.
        """
        room = self._model.kv_tokens * self._model.replicas
        if room == inf:
            return None
        return (self._cells + (self._batch.cells if self._model.cache == "grown" else 0.0)) / room

    def made(self) -> float:
        """Return the tokens it has made up to now."""
        self._batch.advance(self._clock.now)
        return self._batch.tokens

    def made_of(self, turn: Turn) -> float:
        """Return the tokens that one of its requests has."""
        self._batch.advance(self._clock.now)
        return self._batch.made(turn) if turn.phase == "reply" else turn.made

    @property
    def pace(self) -> float:
        """Return how many times as long everything takes here."""
        return self._batch.pace / self._mixed

    def slow(self, pace: float) -> None:
        """Take so many times as long for everything from now on."""
        self._batch.advance(self._clock.now)
        self._batch.slow(pace * self._mixed)
        self._look()

    @property
    def _mixed(self) -> float:
        return self._model.mixed if self._prompts else 1.0

    def requests(self) -> list[Turn]:
        """List all requests, those with a slot first."""
        return [*self._batch.turns(), *self._prompts.values(), *self._queue]

    def asked_of(self, policy: str) -> list[Turn]:
        """List the requests of a policy, those with a slot first."""
        return [turn for turn in self.requests() if turn.policy == policy]

    def ask(self, turn: Turn) -> None:
        """Take a request in. It must hold what the request asks for."""
        pin = self.held.answering(turn)
        assert pin is not None, f"{self.name} holds nothing for a turn of {turn.policy}"
        made = int(turn.made) - sum(turn.segments[1::2]) if turn.version != pin.version else 0
        if made > 0:  # it was begun elsewhere, with older weights
            turn.segments += (turn.version, made)
        turn.engine, turn.version = self, pin.version
        self.asked[turn.policy] = self.asked.get(turn.policy, 0) + 1
        self.load.tokens += turn.expected
        if not self._queue and self._fits(turn):
            self._begin(turn)
        else:
            turn.phase = "queued"
            self._queue.insert(self._place(turn), turn)
            self.load.waiting += 1

    def _place(self, turn: Turn) -> int:
        place = len(self._queue)
        while place and self._queue[place - 1].rank < turn.rank:
            place -= 1
        return place

    def drop(self, turn: Turn) -> None:
        """Forget a request: it was cancelled, or goes on elsewhere with the tokens it has."""
        if turn.phase == "queued":
            self._queue.remove(turn)
            self.load.waiting -= 1
        else:
            if turn.phase == "prompt":
                self._prompts_change(turn, begins=False)
                self._prompts_hold(-turn.prompt - turn.made)
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

    def serve(self, policy: str, pin: PolicyPin, keeps: tuple[int, ...]) -> None:
        """Hold new weights, and let them make the rest of the replies that follow them."""
        self.held.take(policy, pin, keeps)
        self._batch.advance(self._clock.now)
        anew = []
        for turn in self.asked_of(policy):
            if turn.follow and turn.version < pin.version:
                if turn.phase == "reply" and self._hand_over(turn):
                    anew.append(turn)
                turn.version = pin.version
        if anew:
            self._anew(anew)
        self._look()

    def flow(self, generates: bool, tokens: float, running: int) -> None:
        """Note what was made here since the last time, where turns are not asked one by one."""
        if self._busy.generates != generates:
            self._busy.turn(self._clock.now, self._batch.tokens)
        self._batch.tokens += tokens
        self.load.running = running

    def _fits(self, turn: Turn) -> bool:
        """Tell whether there is a slot, and room in the cache: whoever is alone gets all there is."""
        running, model = self.load.running, self._model
        many = model.replicas
        if running >= model.slots * many:
            return False
        if model.cache == "grown":
            self._batch.advance(self._clock.now)
            used, more = self._cells + self._batch.cells, turn.prompt + turn.made
        else:
            used, more = self._cells, turn.cells
        return not running or used + more <= model.kv_tokens * many

    def _admit(self) -> None:
        """Give slots and cache to whoever waits, in the order of the queue."""
        queue = self._queue
        while queue and self._fits(queue[0]):
            self.load.waiting -= 1
            self._begin(queue.popleft())

    def _begin(self, turn: Turn) -> None:
        if self._model.cache == "reserved":
            self._cells += turn.cells
        self.load.running += 1
        self._prompt(turn)

    def _prompts_change(self, turn: Turn, begins: bool) -> None:
        """Begin or end with a prompt; steps of replies take longer while there is one."""
        pace = self.pace
        if begins:
            self._prompts[id(turn)] = turn
        else:
            del self._prompts[id(turn)]
        if self._model.mixed != 1.0 and len(self._prompts) == begins:  # the first one, or the last
            self.slow(pace)

    def _prompts_hold(self, cells: float) -> None:
        """Set cache apart for prompts under way, or no more of it, where replies get it as they grow."""
        if self._model.cache == "grown":
            self._batch.advance(self._clock.now)
            self._cells += cells
            self._batch.room = self._model.kv_tokens * self._model.replicas - self._cells
            self._batch.changed()
            self._look()

    def _free(self, turn: Turn) -> None:
        """Give back what was set apart for a reply at its beginning."""
        if self._model.cache == "reserved":
            self._cells -= turn.cells

    def _prompt(self, turn: Turn) -> None:
        """Compute a prompt, and what exists of the reply, behind those that came before."""
        turn.phase = "prompt"
        self._prompts_change(turn, begins=True)
        self._prompts_hold(turn.prompt + turn.made)
        clock = self._clock
        begins = self._prompts_until if self._prompts_until > clock.now else clock.now
        computed = self.held.computed[turn.policy]
        fresh = turn.prompt * (1.0 - turn.shared(computed))
        computed.update(turn.prefixes)  # prompts behind this one find it
        seconds = (fresh + turn.made) / self._model.prefill * turn.scale * self.pace
        turn.ready = begins + seconds
        self._prompts_until = begins + seconds / self._model.replicas
        clock.at(turn.ready, self._prompt_done, turn)

    def _prompt_done(self, turn: Turn) -> None:
        now = self._clock.now
        if turn.engine is not self or turn.phase != "prompt" or turn.ready != now:
            return  # it was dropped meanwhile
        self._prompts_change(turn, begins=False)
        turn.phase = "reply"
        self._prompts_hold(-turn.prompt - turn.made)
        self._batch.advance(now)
        self._batch.enter(turn)
        self._look()

    def _look(self) -> None:
        """See to it that the clock calls when the next reply ends. The batch is up to now."""
        batch, busy = self._batch, self._busy
        if busy.generates != (len(batch) > 0):
            busy.turn(self._clock.now, batch.tokens)
        if batch.end < batch.called:
            batch.called = batch.end
            self._clock.at(batch.end, self._called, batch.end)

    def _called(self, when: float) -> None:
        batch = self._batch
        if when != batch.called:
            return  # the clock was asked for an earlier moment since
        batch.called = inf
        now = self._clock.now
        if batch.end > now:  # what ended next took longer than it seemed
            self._look()
            return
        batch.advance(now)
        ended = batch.ended()
        for turn in ended:
            self._free(turn)
            self.load.tokens -= turn.expected
            self.asked[turn.policy] -= 1
            turn.made, turn.phase, turn.engine = float(turn.reply), "ended", None
        self.load.running -= len(ended)
        if not ended:
            self._make_room()
        elif self._queue:
            self._admit()
        self._look()
        for turn in ended:
            turn.done(turn)

    def _make_room(self) -> None:
        """Let the youngest replies wait until others have ended; what they had in the cache is computed again then."""
        while self._batch.full:
            turn = self._batch.youngest()
            self._batch.leave([turn])
            turn.phase = "queued"
            self._queue.appendleft(turn)
            self.load.running -= 1
            self.load.waiting += 1

    def _hand_over(self, turn: Turn) -> bool:
        """Note what older weights made of a running reply; tell whether its prompt is to be computed anew."""
        made = int(self._batch.made(turn))
        before = sum(turn.segments[1::2])
        if turn.follow != "restart_turn" and made > before:
            turn.segments += (turn.version, made - before)
        return turn.follow != "continue"

    def _anew(self, turns: list[Turn]) -> None:
        """Compute the prompts of running replies again: they go on, or begin once more."""
        self._batch.leave(turns)
        for turn in turns:
            again = turn.follow == "restart_turn"
            turn.made = 0.0 if again else float(int(turn.made))
            turn.segments = () if again else turn.segments
            self._prompt(turn)
