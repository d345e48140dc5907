"""A model of a serving engine: prompts one after the other, then all replies together, one token each per step.

A step of b requests takes `token * (1 + (b - 1) / batch)`. All running replies advance alike, so an engine keeps one
count of steps, and each reply the count at which it ends: a change of the batch costs one look at the heap's top. The
clock is asked for that moment anew only when it comes earlier; one that came too early asks again.

Invariants: a turn is answered by weights it may be answered by, or not at all; its segments say which made how many of
its tokens; a turn that was cancelled or handed back leaves nothing behind.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

from flexmarl.algorithms.routing import EngineLoad
from flexmarl.contracts.wire import PolicyPin
from flexmarl.simulator.clock import Clock
from flexmarl.simulator.scenario import EngineModel
from flexmarl.simulator.trace import Trace


@dataclass(slots=True, eq=False)
class Turn:
    """One request, from its asking to its reply."""

    policy: str
    pin: PolicyPin
    follow: str
    prompt: float
    reply: int
    done: Callable[["Turn"], None]
    role: str = ""
    scale: float = 1.0
    expected: float = 0.0
    """Tokens that were expected of it when an engine took it."""
    rank: float = 0.0
    """Whoever has a higher one is given a slot before it; among equals, who came first."""
    made: float = 0.0
    """Tokens that exist."""
    segments: tuple[int, ...] = ()
    """version, tokens, ... of what newer weights took over."""
    version: int = 0
    """Weights that make its tokens now."""
    engine: "Engine | None" = None
    began: float = 0.0
    """The engine's count of steps at which its tokens began, less those made before."""
    ready: float = 0.0
    """When its prompt is computed."""
    phase: str = "asked"
    """asked, queued, prompt, reply or ended."""

    @property
    def task(self) -> str:
        """Return what replies share that are the most alike; empty: nothing."""
        return ""

    @property
    def key(self) -> int:
        """Return what chances of its own are drawn by."""
        return 0

    @property
    def cells(self) -> float:
        """Return the places of the cache that it may come to need."""
        return self.prompt + self.reply


class Holdings:
    """Which weights an engine holds: of each policy the newest, and those that are still asked for."""

    def __init__(self) -> None:
        self.newest: dict[str, PolicyPin] = {}
        self._former: dict[str, dict[int, PolicyPin]] = {}
        self._changed: Callable[[], None] | None = None

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever other weights are held."""
        self._changed = changed

    def answering(self, turn: Turn) -> PolicyPin | None:
        """Return the weights that would answer a turn, None when none may."""
        newest = self.newest.get(turn.policy)
        if turn.follow:
            return newest if newest is not None and newest.version >= turn.pin.version else None
        if newest is not None and newest.version == turn.pin.version:
            return newest
        return self._former.get(turn.policy, {}).get(turn.pin.version)

    def take(self, policy: str, pin: PolicyPin, keeps: tuple[int, ...]) -> None:
        """Hold new weights, and of the older ones those that are named, or the last."""
        before, kept = self.newest.get(policy), self._former.get(policy, {})
        if before is not None:
            kept = kept | {before.version: before}
            keeps = keeps or (before.version,)
        self.newest[policy] = pin
        self._former[policy] = {version: held for version, held in kept.items() if version in keeps}
        self._tell()

    def forget(self, policy: str) -> None:
        """Hold nothing of a policy any more."""
        self.newest.pop(policy, None)
        self._former.pop(policy, None)
        self._tell()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed()


class Batch:
    """The replies that an engine makes at a time. Whoever changes it brings it up to now first."""

    def __init__(self, model: EngineModel) -> None:
        self.tokens = 0.0
        """Made so far, all replies together."""
        self.count = 0
        self.end = inf
        """When the next reply ends if nothing changes."""
        self.called = inf
        """The earliest moment at which the clock was asked to call."""
        self.pace = 1.0
        """How many times as long a step takes as the model says."""
        self._model = model
        self._replies: list[tuple[float, int, Turn]] = []
        self._steps = 0.0
        self._step_s = model.token
        self._at = 0.0
        self._entered = 0

    def turns(self) -> list[Turn]:
        """List its turns."""
        return [turn for _, _, turn in self._replies]

    def advance(self, now: float) -> None:
        """Make the tokens that belong to the time since the last look."""
        count = self.count
        if count and now > self._at:
            steps = (now - self._at) / self._step_s
            self._steps += steps
            self.tokens += steps * count
        self._at = now

    def enter(self, turn: Turn) -> None:
        """Begin, or go on, with a reply."""
        self._entered += 1
        scale = turn.scale
        turn.began = began = self._steps - turn.made * scale
        heappush(self._replies, (began + turn.reply * scale, self._entered, turn))
        self._changed()

    def leave(self, gone: Sequence[Turn]) -> None:
        """Stop with replies; they keep the tokens they have."""
        for turn in gone:
            turn.made = self.made(turn)
        names = {id(turn) for turn in gone}
        self._replies = [entry for entry in self._replies if id(entry[2]) not in names]
        heapify(self._replies)
        self._changed()

    def made(self, turn: Turn) -> float:
        """Return the tokens that a running reply has."""
        return min(float(turn.reply), (self._steps - turn.began) / turn.scale)

    def ended(self) -> list[Turn]:
        """Take out the replies that end now: the next one, and all that end with it."""
        replies = self._replies
        steps = self._steps = max(self._steps, replies[0][0])  # what rounding left of the last step
        found = []
        while replies and replies[0][0] <= steps:
            found.append(heappop(replies)[2])
        self._changed()
        return found

    def slow(self, pace: float) -> None:
        """Take so many times as long as the model says from now on."""
        self.pace = pace
        self._changed()

    def _changed(self) -> None:
        self.count = count = len(self._replies)
        model = self._model
        share = count / model.replicas if count > model.replicas else 1.0
        self._step_s = step_s = self.pace * model.token * (1.0 + (share - 1.0) / model.batch)
        self.end = self._at + (self._replies[0][0] - self._steps) * step_s if count else inf


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
    def __init__(self, clock: Clock, trace: Trace, model: EngineModel, lease_id: int) -> None:
        self.lease_id = lease_id
        self.load = EngineLoad(f"engine-{lease_id:05d}")
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
        return self._batch.pace

    def slow(self, pace: float) -> None:
        """Take so many times as long for everything from now on."""
        self._batch.advance(self._clock.now)
        self._batch.slow(pace)
        self._look()

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
                del self._prompts[id(turn)]
            else:
                self._batch.advance(self._clock.now)
                self._batch.leave([turn])
            self._cells -= turn.cells
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
        room = not running or self._cells + turn.cells <= model.kv_tokens * many
        return running < model.slots * many and room

    def _admit(self) -> None:
        """Give slots and cache to whoever waits, in the order of the queue."""
        queue = self._queue
        while queue and self._fits(queue[0]):
            self.load.waiting -= 1
            self._begin(queue.popleft())

    def _begin(self, turn: Turn) -> None:
        self._cells += turn.cells
        self.load.running += 1
        self._prompt(turn)

    def _prompt(self, turn: Turn) -> None:
        """Compute a prompt, and what exists of the reply, behind those that came before."""
        turn.phase = "prompt"
        self._prompts[id(turn)] = turn
        clock, batch = self._clock, self._batch
        begins = self._prompts_until if self._prompts_until > clock.now else clock.now
        seconds = (turn.prompt + turn.made) / self._model.prefill * turn.scale * batch.pace
        turn.ready = begins + seconds
        self._prompts_until = begins + seconds / self._model.replicas
        clock.at(turn.ready, self._prompt_done, turn)

    def _prompt_done(self, turn: Turn) -> None:
        now = self._clock.now
        if turn.engine is not self or turn.phase != "prompt" or turn.ready != now:
            return  # it was dropped meanwhile
        del self._prompts[id(turn)]
        turn.phase = "reply"
        self._batch.advance(now)
        self._batch.enter(turn)
        self._look()

    def _look(self) -> None:
        """See to it that the clock calls when the next reply ends. The batch is up to now."""
        batch, busy = self._batch, self._busy
        if busy.generates != (batch.count > 0):
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
            self._cells -= turn.cells
            self.load.tokens -= turn.expected
            self.asked[turn.policy] -= 1
            turn.made, turn.phase, turn.engine = float(turn.reply), "ended", None
        self.load.running -= len(ended)
        if self._queue:
            self._admit()
        self._look()
        for turn in ended:
            turn.done(turn)

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
