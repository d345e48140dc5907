"""A turn on its way: what is asked, what engines made of it so far, and how a try ends.

Invariants. Tokens, log-probabilities and version segments of a reply are taken in together or not at all, so they stay
aligned however often the reply moves. A try has one future: what its engine says after the turn has gone elsewhere
finds that future settled and changes nothing. What is carried on is copied, so an engine left behind cannot reach it.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Self

import msgspec

from flexmarl.contracts.wire import PolicyPin
from flexmarl.language.messages import Message
from workers.rollout.engines import version_segments
from workers.rollout.engines.wire import PLAIN, UNCERTAINTIES, CompletionChoice, Done, SamplingParameters
from workers.rollout.pausing import FREE, Hold

MAX_MOVES = 5
"""Times a turn goes on at another engine, or the same one anew, after one took it and did not finish it."""
OVERFLOW = "context_overflow"
"""Code of the refusal of a prompt that has no room in its model's context with the reply."""
HANDED_BACK = {"abort": "aborted", "out_of_memory": "out_of_memory"}
"""Finish reasons of a reply that its engine did not finish, with what they count as."""


@dataclass(frozen=True, slots=True)
class Where:
    """Which turn of which episode attempt it is: for people, no reply depends on it."""

    draw: int = -1
    member: int = 0
    attempt: int = 0
    turn: int = 0
    since: float = 0.0
    """When the attempt began, in seconds since the epoch."""


NOWHERE = Where()


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """Everything a reply depends on. Requests that agree on all but prompt and seed share one HTTP request."""

    policy: str
    pin: PolicyPin
    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    temperature: float
    allowed: tuple[int, ...]
    stop: tuple[int, ...]
    sampling: SamplingParameters = PLAIN
    follow: str = ""
    """Empty: exactly the pinned weights. Else the pinned version is the oldest allowed, see `CompletionRequest`."""
    role: str = ""
    """Replies of one role are expected to be alike in length."""
    prefixes: tuple[str, ...] = ()
    """Whose turns begin alike, the most alike first: a router may keep them together."""
    where: Where = NOWHERE
    engine: int = 0
    """Lease of the engine that is to answer, as long as it holds the weights; 0: any."""
    conversation: tuple[Message, ...] = ()
    """For models that read no ids: what `prompt` renders, or what the agent is told before an ask in words."""
    begun: Done | None = field(default=None, compare=False, repr=False)
    """What its reply begins with: another said it to the same prompt."""
    hold: Hold = field(default=FREE, compare=False, repr=False)
    """Whether it stands still: of what it is a part."""

    @property
    def alike(self) -> str:
        """Return what turns of the same role on the same task share; empty when unknown."""
        return self.prefixes[-1] if self.prefixes else ""

    def shape(self) -> tuple[object, ...]:
        drawn = (self.max_tokens, self.temperature, self.allowed, self.stop, self.sampling)
        return (self.policy, self.pin, *drawn, self.follow)


@dataclass(frozen=True, slots=True)
class TurnReply:
    choice: CompletionChoice
    incarnation: str
    latency_ms: float
    moves: int = 0
    """Engines that took it and did not finish it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call of an episode, token-exact."""

    role: str
    turn: int
    prompt: tuple[int, ...]
    allowed: tuple[int, ...]
    temperature: float
    reply: TurnReply
    begins: int
    """First turn of its chain: its prompt begins with all that the chain's earlier turns read and said."""
    carried: bool = False
    """Of several answers to one turn, the one with which the episode went on."""
    structured: str = ""
    """What its reply was held to, a `StructuredOutput` as JSON; empty: nothing."""
    stop: tuple[int, ...] = ()
    """Ids that end its reply."""

    @classmethod
    def of(cls, request: TurnRequest, reply: TurnReply, turn: int, begins: int) -> Self:
        """Write down what was asked and answered."""
        return cls(
            request.role, turn, request.prompt, request.allowed, request.temperature, reply, begins,
            structured=request.sampling.structured, stop=request.stop,
        )  # fmt: skip


class TurnTimeoutError(TimeoutError):
    """No engine answered a turn before its deadline."""


class TooManyMovesError(TurnTimeoutError):
    """Engine after engine took a turn and did not finish it."""


class WeightsTimeoutError(TimeoutError):
    """Weights that were certain when a turn was asked for did not come in time."""


class TurnRefusedError(Exception):
    """No engine can answer a turn: asking again would be refused again. `code` is the engine's."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class TryElsewhereError(Exception):
    """An engine could not answer; `code` says why and is counted."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class SoFar:
    """What engines made of a reply that is not finished."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    uncertainty: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, begun: Done | None) -> "SoFar":
        """Return what there is before any engine made something."""
        return cls() if begun is None else cls(*map(list, msgspec.structs.astuple(begun)))

    def take(self, choice: CompletionChoice) -> None:
        """Put what an engine told where it belongs; it may have begun anew. Raises TryElsewhereError for a gap."""
        made = len(choice.token_ids)
        if choice.at > len(self.token_ids) or len(choice.logprobs) != made:
            raise TryElsewhereError("not_aligned")
        if version_segments.count(choice.segments) != made:
            raise TryElsewhereError("not_aligned")
        self.token_ids[choice.at :] = choice.token_ids
        self.logprobs[choice.at :] = choice.logprobs
        self.uncertainty[UNCERTAINTIES * choice.at :] = choice.uncertainty
        self.segments = version_segments.joined(version_segments.until(self.segments, choice.at), choice.segments)

    def copy(self) -> "SoFar":
        return SoFar(list(self.token_ids), list(self.logprobs), list(self.segments), list(self.uncertainty))

    def done(self) -> Done:
        """Return it as the next engine is told of it."""
        return Done(self.token_ids, self.logprobs, self.segments, self.uncertainty)

    def choice(self, finish_reason: str) -> CompletionChoice:
        """Return it as a whole reply."""
        told = self.uncertainty
        return CompletionChoice(0, self.token_ids, self.logprobs, finish_reason, self.segments, uncertainty=told)

    def ended(self, request: TurnRequest) -> str:
        """Return why the reply is at its end, although nobody said so; empty while it is not."""
        if self.token_ids and self.token_ids[-1] in request.stop:
            return "stop"
        return "length" if len(self.token_ids) >= request.max_tokens else ""


@dataclass(slots=True)
class WaitingTurn:
    """One try of a turn."""

    request: TurnRequest
    future: "asyncio.Future[TurnReply]"
    asked_at: float
    so_far: SoFar
    moves: int = 0
    had: int = 0
    """Tokens that were made before this try."""
    expected: float = 0.0
    """Tokens that are still to be made, as far as can be told."""
    taken: bool = False
    """Whether an engine accepted it, and did not hand it back as it came."""
    engine: str = ""
    """To which it went."""
    before: str = ""
    """Engine of the try before, which gave it back: any other comes first."""
    to: int = 0
    """Lease of the engine that comes first of all; 0: none does."""
    sent_on: bool = False
    """Its engine gave it back to go on there: by a decision, not since anything broke."""
    recalled: bool = False
    """It is to stand still, by a decision as well: whoever has it gives it back."""

    def settle(self, choice: CompletionChoice, incarnation: str, now: float) -> None:
        """Take in what an engine said; a finished reply ends the try, an aborted one gives it back."""
        if self.future.done():
            return
        to = choice.to
        try:
            if choice.at or self.so_far.token_ids or not choice.finish_reason:
                self.so_far.take(choice)
                choice = self.so_far.choice(choice.finish_reason)
            if choice.finish_reason in HANDED_BACK:
                self.to, self.sent_on = to or self.to, to != 0
                if choice.finish_reason == "abort" and len(choice.token_ids) == self.had:
                    self.taken = False  # it only stood in a queue whose policy left: nothing of it moves
                self.so_far = SoFar(choice.token_ids, choice.logprobs, choice.segments, choice.uncertainty)
                raise TryElsewhereError(HANDED_BACK[choice.finish_reason])
            if choice.finish_reason == "nonfinite":
                raise TurnRefusedError("nonfinite_logprobs", self._spoilt(choice))
            if choice.finish_reason == "too_complex":
                raise TurnRefusedError("too_complex", f"structured: {self.request.policy} cannot go on; say less in it")
        except (TryElsewhereError, TurnRefusedError) as lost:
            self.future.set_exception(lost)
            return
        if choice.finish_reason:
            reply = TurnReply(choice, incarnation, (now - self.asked_at) * 1e3, self.moves)
            self.future.set_result(reply)

    def _spoilt(self, choice: CompletionChoice) -> str:
        version = choice.segments[-2] if choice.segments else self.request.pin.version
        text = f"the log-probability of token {len(choice.token_ids)} of a reply of {self.request.policy} v{version}"
        return f"{text} is not a number; weights or activations overflow: lower the learning rate"

    def refuse(self, refused: TurnRefusedError) -> None:
        """End the try, and the turn with it: no engine can answer it."""
        if not self.future.done():
            self.future.set_exception(refused)

    def give_back(self, code: str) -> None:
        """End the try without an answer."""
        if not self.future.done():
            self.future.set_exception(TryElsewhereError(code))

    def again(self, resumes: bool) -> "WaitingTurn":
        """Return the next try: with what this one made, where a reply may be carried on."""
        carried = (
            self.so_far.copy() if resumes and self.request.follow != "restart_turn" else SoFar.of(self.request.begun)
        )
        future: asyncio.Future[TurnReply] = asyncio.get_running_loop().create_future()
        moves = self.moves + (self.taken and not (self.sent_on or self.recalled))
        before = "" if self.recalled else self.engine
        return WaitingTurn(
            self.request, future, self.asked_at, carried, moves, len(carried.token_ids), before=before, to=self.to
        )
