"""A model of a serving engine: prompts one after the other, then all replies together, one token each per step.

A step of b requests takes `token * (1 + (b - 1) / batch)`. All running replies advance alike, so an engine keeps one
count of steps, and each reply the count at which it ends: a change of the batch costs one look at the heap's top.

Invariants: a turn is answered by weights it may be answered by, or not at all; its segments say which made how many of
its tokens; a turn that was cancelled or handed back leaves nothing behind.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

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
    scale: float = 1.0
    made: float = 0.0
    """Tokens that exist."""
    segments: list[int] = field(default_factory=list)
    """version, tokens, ... of what newer weights took over."""
    version: int = 0
    """Weights that make its tokens now."""
    engine: "Engine | None" = None
    began: float = 0.0
    """The engine's count of steps at which its tokens began, less those made before."""
    phase: str = "asked"
    """asked, queued, prompt, reply or ended."""

    @property
    def cells(self) -> float:
        """Return the places of the cache that it may come to need."""
        return self.prompt + self.reply


class Holdings:
    """Which weights an engine holds: of each policy the newest, and those that are still asked for."""

    def __init__(self) -> None:
        self.newest: dict[str, PolicyPin] = {}
        self._former: dict[str, dict[int, PolicyPin]] = {}

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

    def forget(self, policy: str) -> None:
        """Hold nothing of a policy any more."""
        self.newest.pop(policy, None)
        self._former.pop(policy, None)


class Batch:
    """The replies that an engine makes at a time. Whoever changes it brings it up to now first."""

    def __init__(self, model: EngineModel) -> None:
        self.tokens = 0.0
        """Made so far, all replies together."""
        self.pace = 1.0
        """How many times as long a step takes as the model says."""
        self._model = model
        self._replies: list[tuple[float, int, Turn]] = []
        self._steps = 0.0
        self._at = 0.0
        self._entered = 0

    def __len__(self) -> int:
        return len(self._replies)

    def turns(self) -> list[Turn]:
        """List its turns."""
        return [turn for _, _, turn in self._replies]

    def advance(self, now: float) -> None:
        """Make the tokens that belong to the time since the last look."""
        count = len(self._replies)
        if count and now > self._at:
            steps = (now - self._at) / self._step_s(count)
            self._steps += steps
            self.tokens += steps * count
        self._at = now

    def enter(self, turn: Turn) -> None:
        """Begin, or go on, with a reply."""
        self._entered += 1
        turn.began = self._steps - turn.made * turn.scale
        heappush(self._replies, (turn.began + turn.reply * turn.scale, self._entered, turn))

    def leave(self, turn: Turn) -> None:
        """Stop with a reply; it keeps the tokens it has."""
        turn.made = self.made(turn)
        self._replies = [entry for entry in self._replies if entry[2] is not turn]
        heapify(self._replies)

    def made(self, turn: Turn) -> float:
        """Return the tokens that a running reply has."""
        return min(float(turn.reply), (self._steps - turn.began) / turn.scale)

    def next_end(self) -> float:
        """Return when the next reply ends if nothing changes; infinite while there is none."""
        if not self._replies:
            return inf
        return self._at + (self._replies[0][0] - self._steps) * self._step_s(len(self._replies))

    def ended(self) -> list[Turn]:
        """Take out the replies that end now: the next one, and all that end with it."""
        self._steps = max(self._steps, self._replies[0][0])  # what rounding left of the last step
        found = []
        while self._replies and self._replies[0][0] <= self._steps:
            found.append(heappop(self._replies)[2])
        return found

    def _step_s(self, count: int) -> float:
        return self.pace * self._model.token * (1.0 + (count - 1) / self._model.batch)


class Busy:
    """The intervals in which an engine generates."""

    def __init__(self, trace: Trace, lease_id: int) -> None:
        self._trace, self._lease_id = trace, lease_id
        self._open = 0
        self._tokens = 0.0

    def note(self, generates: bool, now: float, tokens: float) -> None:
        """Begin or end an interval when that has changed."""
        if generates and not self._open:
            self._open, self._tokens = self._trace.begin(self._lease_id, "rollout", now), tokens
        elif not generates and self._open:
            self._trace.end(self._open, now, tokens - self._tokens)
            self._open = 0


class Engine:
    def __init__(self, clock: Clock, trace: Trace, model: EngineModel, lease_id: int) -> None:
        self.lease_id = lease_id
        self.name = f"engine-{lease_id:05d}"
        self.held = Holdings()
        self._clock, self._model = clock, model
        self._queue: deque[Turn] = deque()
        self._prompts: dict[int, Turn] = {}
        self._batch = Batch(model)
        self._busy = Busy(trace, lease_id)
        self._cells = 0.0
        self._prompts_until = 0.0
        self._watch = 0
        """Number of the last call that was asked of the clock: earlier ones are void."""

    @property
    def running(self) -> int:
        """Count the requests that have a slot."""
        return len(self._batch) + len(self._prompts)

    @property
    def waiting(self) -> int:
        """Count the requests that have none."""
        return len(self._queue)

    def made(self) -> float:
        """Return the tokens it has made up to now."""
        self._batch.advance(self._clock.now)
        return self._batch.tokens

    def pace(self, slow: float) -> None:
        """Take so many times as long for everything from now on."""
        self._batch.advance(self._clock.now)
        self._batch.pace = slow
        self._look()

    def asked(self) -> list[Turn]:
        """List all requests, those with a slot first."""
        return [*self._batch.turns(), *self._prompts.values(), *self._queue]

    def asked_of(self, policy: str) -> list[Turn]:
        """List the requests of a policy, those with a slot first."""
        return [turn for turn in self.asked() if turn.policy == policy]

    def ask(self, turn: Turn) -> None:
        """Take a request in. It must hold what the request asks for."""
        pin = self.held.answering(turn)
        assert pin is not None, f"{self.name} holds nothing for a turn of {turn.policy}"
        turn.engine, turn.version, turn.phase = self, pin.version, "queued"
        self._queue.append(turn)
        self._admit()

    def drop(self, turn: Turn) -> None:
        """Forget a request: it was cancelled, or goes on elsewhere with the tokens it has."""
        if turn.phase == "queued":
            self._queue.remove(turn)
        else:
            if turn.phase == "prompt":
                del self._prompts[id(turn)]
            else:
                self._batch.advance(self._clock.now)
                self._batch.leave(turn)
            self._cells -= turn.cells
        turn.engine, turn.phase = None, "asked"
        self._admit()

    def serve(self, policy: str, pin: PolicyPin, keeps: tuple[int, ...]) -> None:
        """Hold new weights, and let them make the rest of the replies that follow them."""
        self.held.take(policy, pin, keeps)
        self._batch.advance(self._clock.now)
        for turn in self.asked_of(policy):
            if turn.follow and turn.version < pin.version:
                self._follow(turn, pin.version)
        self._look()

    def _admit(self) -> None:
        """Give slots and cache to whoever waits, first come first served, and look at the clock anew."""
        while self._queue and self.running < self._model.slots:
            turn = self._queue[0]
            if self._cells + turn.cells > self._model.kv_tokens and self.running:
                break
            self._queue.popleft()
            self._cells += turn.cells
            self._prompt(turn)
        self._look()

    def _prompt(self, turn: Turn) -> None:
        """Compute a prompt, and what exists of the reply, behind those that came before."""
        turn.phase = "prompt"
        self._prompts[id(turn)] = turn
        seconds = (turn.prompt + turn.made) / self._model.prefill * turn.scale * self._batch.pace
        self._prompts_until = max(self._clock.now, self._prompts_until) + seconds
        self._clock.at(self._prompts_until, self._prompt_done, turn)

    def _prompt_done(self, turn: Turn) -> None:
        if turn.engine is not self or turn.phase != "prompt":
            return  # it was dropped meanwhile
        del self._prompts[id(turn)]
        turn.phase = "reply"
        self._batch.advance(self._clock.now)
        self._batch.enter(turn)
        self._look()

    def _look(self) -> None:
        """Ask the clock for the end of the reply that ends next. The batch is up to now."""
        self._batch.advance(self._clock.now)
        self._busy.note(len(self._batch) > 0, self._clock.now, self._batch.tokens)
        self._watch += 1
        if len(self._batch):
            self._clock.at(self._batch.next_end(), self._ended, self._watch)

    def _ended(self, watch: int) -> None:
        if watch != self._watch:
            return
        self._batch.advance(self._clock.now)
        ended = self._batch.ended()
        for turn in ended:
            self._cells -= turn.cells
            turn.made, turn.phase, turn.engine = float(turn.reply), "ended", None
        self._admit()
        for turn in ended:
            turn.done(turn)

    def _follow(self, turn: Turn, version: int) -> None:
        if turn.phase == "reply":
            made = int(self._batch.made(turn))
            before = sum(turn.segments[1::2])
            if turn.follow != "restart_turn" and made > before:
                turn.segments += [turn.version, made - before]
            if turn.follow != "continue":
                self._batch.leave(turn)
                turn.made = 0.0 if turn.follow == "restart_turn" else float(made)
                turn.segments = [] if turn.follow == "restart_turn" else turn.segments
                self._prompt(turn)
        turn.version = version
