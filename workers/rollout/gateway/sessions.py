"""A session of an agent program: an episode that waits for calls from outside, and for the report that ends it.

Invariants. A call has one answer, which is recorded as a turn before it is given; a call that repeats an earlier one of
its seat shares its answer. Calls that wait at the same time are answered together, each in a conversation of its own. A
session that has ended refuses every call by the reason for which it ended, and so does one that awaits its reward. Time
runs for the program alone: while no call of its waits, and until it has ended.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

from flexmarl.contracts.specification.program import ProgramEnvironment
from flexmarl.language.dialects.calls import CallAnswer, CallRefused, ModelCall
from flexmarl.language.messages import Message, characters
from flexmarl.language.renderer import Break
from flexmarl.store.control.program_sessions import SessionMeter
from workers.rollout.environments.base import Ask, Outcome, Reply
from workers.rollout.gateway.calls import ProgramCall, ended, too_long
from workers.rollout.gateway.histories import MOST_CONVERSATIONS, Continuation, SeatHistories
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.speech import FormatRefused, TrainedFormatRefused

Count = Callable[[Ask], int]
"""How many ids the prompt of an ask has."""
MOST_CHARACTERS = 4 * 2**20
"""Of the messages and tools of a call: a million ids of most tokenizers."""
FINISHED = "its program has reported"
"""Why a session that ended as it should takes no further call."""
NO_CALL = "program: it asked no agent; have its client use the session's base_url and key, and a seat as the model"
"""Why one whose program reported a reward earned nothing: there is nothing to train on."""
AWAITS = "its program has ended and its reward comes later"
"""Why one that awaits its reward takes none."""


@dataclass(slots=True)
class _ProgramSeat:
    """What a program asked of a seat."""

    count: Count
    histories: SeatHistories = field(default_factory=SeatHistories)
    calls: int = 0
    answered: int = 0
    """How many of the calls have an answer."""
    latest: dict[str, ProgramCall] = field(default_factory=dict)
    """The last calls, by what a repetition shares."""

    def repeated(self, call: ProgramCall) -> ProgramCall | None:
        """Return the earlier call that a call repeats; without its client's word only the last one can be meant."""
        before = self.latest.get(call.digest)
        if before is None or call.again is False:
            return None
        return before if call.again or before is next(reversed(self.latest.values())) else None

    def take(self, call: ProgramCall) -> None:
        """Keep a call for repetitions of it."""
        self.calls += 1
        self.latest.pop(call.digest, None)
        self.latest[call.digest] = call
        if len(self.latest) > MOST_CONVERSATIONS:
            self.latest.pop(next(iter(self.latest)))


@dataclass(slots=True)
class _Account:
    """What a session has come to, and the time that its program has left."""

    limit_s: float
    calls: int = 0
    tokens: int = 0
    last_message: str = ""
    """What an agent said last."""
    refused: str = ""
    """Why the last call was refused that its model had no room for."""
    _spent_s: float = 0.0
    _since: float | None = None

    def left_s(self) -> float:
        """Return how long the program may still take between calls."""
        going = 0.0 if self._since is None else time.monotonic() - self._since
        return max(0.0, self.limit_s - self._spent_s - going)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Have the program's time run."""
        self._since = began = time.monotonic()
        try:
            yield
        finally:
            self._spent_s += time.monotonic() - began
            self._since = None


@dataclass(slots=True)
class _ProgramEnd:
    """How a program has ended."""

    report: dict[str, Any] | None = None
    rewarded_later: bool = False
    """Whether it ended before this was known."""

    @property
    def came(self) -> bool:
        """Whether it makes no further calls."""
        return self.rewarded_later or self.report is not None


class ProgramSession:
    """One session. Leave it in every case."""

    def __init__(
        self, id: UUID, spec: ProgramEnvironment, task: int, leave: Callable[["ProgramSession"], None], count: Count
    ) -> None:
        """`leave` is called once, when the session is over."""
        self.id = id
        self.spec = spec
        self.over = ""
        """Why it takes no calls any more."""
        self.task: dict[str, object] = {"title": f"Task {task}", "facts": {"task": str(task), "session": str(id)}}
        self.opened_at = int(time.time())
        self._leave = leave
        self._seats = {seat: _ProgramSeat(count) for seat in spec.seats}
        self._waiting: list[ProgramCall] = []
        self._asked: list[tuple[ProgramCall, Ask]] = []
        self._end = _ProgramEnd()
        self._happened = asyncio.Event()
        self._account = _Account(spec.run_timeout_s)

    @property
    def reported(self) -> bool:
        """Whether it ended with a report that counts."""
        return self._end.report is not None and self.over == FINISHED

    @property
    def awaits_reward(self) -> bool:
        """Whether its program has ended without saying what it earned."""
        return self._end.rewarded_later and self._end.report is None

    @property
    def called(self) -> bool:
        """Whether a call of its program was answered."""
        return self._account.calls > 0

    @property
    def unheard(self) -> str:
        """Why a program whose calls were all refused earned nothing; empty where none was."""
        last = self._account.refused
        return last and f"program: none of its calls was answered; the last one: {last}"

    @property
    def last_message(self) -> str:
        """What an agent said last."""
        return self._account.last_message

    def asked(self, question: str) -> None:
        """Note what the task is, for people."""
        facts = {"question": question, **cast("dict[str, object]", self.task["facts"])}
        self.task = {**self.task, "facts": facts}

    def meter(self) -> SessionMeter:
        """Return how far it is."""
        account = self._account
        return SessionMeter(self.id, account.calls, account.tokens, account.left_s())

    # What the gateway tells ---------------------------------------------------------------------------------------

    def call(self, call: ProgramCall) -> ProgramCall:
        """Take a call in; returns it, or the earlier one that it repeats. Raises CallRefused."""
        seat = self._seat(call)
        if (before := seat.repeated(call)) is not None:
            return before
        if self.over or self._end.came:
            raise ended(self.over or (FINISHED if self._end.report is not None else AWAITS))
        if seat.calls >= self.spec.max_calls:
            detail = (
                f"{call.seat} has answered {seat.calls} calls of this session; environment.max_calls allows no more."
            )
            raise CallRefused(403, "calls_used_up", detail)
        if call.follows:
            call.messages = self._followed(call)
        _refuse_long(call)
        if call.structured:
            self._held(call)
        seat.take(call)
        call.id = f"{self.id.hex[:12]}_{call.seat}_{seat.calls}"
        self._waiting.append(call)
        self._happened.set()
        return call

    def _held(self, call: ProgramCall) -> None:
        """Refuse a call whose reply cannot be held to its format, at no cost to the session, or leave the format out.

        Raises CallRefused.
        """
        try:
            self._seat(call).count(Ask(call.seat, "", 1, tools=call.tools, structured=call.structured))
        except FormatRefused as refused:
            if isinstance(refused, TrainedFormatRefused) and self.spec.formats == "learned":
                call.structured = ""
                return
            detail = f"{call.structured_field}: {refused}."
            raise CallRefused(400, "invalid_value", detail, call.structured_field) from refused

    def _followed(self, call: ProgramCall) -> tuple[Message, ...]:
        """Return the whole conversation of a call that brings what is new. Raises CallRefused."""
        for seat in self._seats.values():
            if (found := seat.histories.ended_by(call.follows)) is not None:
                before, said = found
                own, old = int(call.instructed), said[int(before.instructed) :]
                return (*call.messages[:own], *old, *call.messages[own:])
        rule = "send the id of a seat's last response, or leave it out and send all items of the conversation as input"
        detail = f"previous_response_id: is of no response that this session still has; {rule}."
        raise CallRefused(400, "previous_response_not_found", detail, "previous_response_id")

    def count(self, call: ModelCall) -> int:
        """Return how many ids a call would read if its chain began with it; may run in any thread.

        Raises CallRefused.
        """
        seat = self._seat(call)
        _refuse_long(call)
        try:
            return seat.count(Ask(call.model, "", 1, messages=call.messages, tools=call.tools))
        except ValueError as error:  # the chat template cannot write it
            raise CallRefused(400, "invalid_value", f"messages: {error}", "messages") from error

    def _seat(self, call: ModelCall) -> _ProgramSeat:
        if (seat := self._seats.get(call.model)) is None:
            seats = ", ".join(self._seats)
            raise CallRefused(404, "model_not_found", f"model: there is no {call.model!r}; one of {seats}.", "model")
        return seat

    def taken(self) -> None:
        """Note that a program has taken the session."""
        self._happened.set()

    def reward_later(self) -> None:
        """Note that the program has ended, and what it earned is reported later."""
        self._end.rewarded_later = True
        if self.awaits_reward:
            for call in self._waiting:
                call.refuse(ended(AWAITS))
            self._waiting = []
        self._happened.set()

    @property
    def overdue_reason(self) -> str:
        """Why it ends where its reward does not arrive."""
        limit = f"{self.spec.reward_timeout_s:g} s"
        return f"reward: no reward arrived within {limit} of the program's end (environment.reward_timeout_s)"

    def report(self, said: dict[str, Any]) -> None:
        """Take in what the program reports: it makes no further calls."""
        self._end.report = said
        self._happened.set()

    def fail(self, reason: str) -> None:
        """Note why the program, which was started here, earned nothing."""
        self.report({"failed": reason})

    # What the player asks -----------------------------------------------------------------------------------------

    async def begin(self, limit: float | None) -> None:
        """Wait for a program, and for what it does first. Raises EnvironmentBroke.

        `limit`: seconds until a program has taken it; None where whoever starts one sees to that.
        """
        try:
            async with asyncio.timeout(limit):
                await self._happened.wait()
        except TimeoutError as late:
            raise EnvironmentBroke(f"boot: no program took the session within {limit:g} s") from late
        self._happened.clear()
        await self._next()

    def asks(self) -> list[Ask]:
        return [ask for _, ask in self._asked]

    async def score(self, replies: list[Reply]) -> None:
        """Do nothing: the program reports what it earned."""

    async def act(self, replies: list[Reply]) -> None:
        """Answer the calls, and wait for what the program does next. Raises EnvironmentBroke."""
        for (call, ask), reply in zip(self._asked, replies, strict=True):
            seat = self._seats[call.seat]
            answer = _answer_of(call, reply)
            seat.histories.answered(ask.conversation, call, answer.message)
            seat.answered += 1
            self._account.calls += 1
            self._account.tokens += reply.tokens
            self._account.last_message = answer.message.content
            if not call.answer.done():
                call.answer.set_result(answer)
        self._asked = []
        await self._next()

    def refuse(self, ask: Ask, why: str) -> None:
        """Refuse the call of an ask; its program may send less in another one."""
        call = next(call for call, asked in self._asked if asked is ask)
        self._asked = [(one, asked) for one, asked in self._asked if asked is not ask]
        self._seats[call.seat].histories.refused(ask.conversation)
        self._account.refused = why
        call.refuse(too_long(why))

    async def _next(self) -> None:
        """Wait until a call is there, or the program has ended."""
        while not self._waiting and not self._end.came:
            self._happened.clear()
            try:
                with self._account.waiting():
                    async with asyncio.timeout(self._account.left_s()):
                        await self._happened.wait()
            except TimeoutError as late:
                limit = f"environment.run_timeout_s: {self.spec.run_timeout_s:g} s"
                raise EnvironmentBroke(f"run: the program reported nothing in its time ({limit})") from late
        if self._end.report is not None:
            self._heed(self._end.report)
        elif not self._end.rewarded_later:
            self._ask()

    async def rewarded(self) -> None:
        """Wait for the report; its deadline is kept by who says that it passed. Raises EnvironmentBroke."""
        while self._end.report is None:
            self._happened.clear()
            await self._happened.wait()
        self._heed(self._end.report)

    def _heed(self, report: dict[str, Any]) -> None:
        """Raise EnvironmentBroke for a report without a reward, and for one of a program that asked no agent."""
        if said := report.get("error"):
            raise EnvironmentBroke(f"program: {said}")
        if said := report.get("failed"):
            raise EnvironmentBroke(said)
        if not self.called:
            raise EnvironmentBroke(self.unheard or NO_CALL)

    def _ask(self) -> None:
        """Ask for all calls that wait, but for those that would be one conversation too many of their seat."""
        places = [(call, self._seats[call.seat].histories.begin(call.messages)) for call in self._waiting]
        self._waiting = [call for call, place in places if place is None]
        self._asked = [(call, self._asking(call, place)) for call, place in places if place is not None]

    def _asking(self, call: ProgramCall, place: Continuation) -> Ask:
        most = self.spec.reply_tokens
        new = None if self.spec.rows == "call" else place.new
        cause = Break.OTHER_HISTORY if place.new is None else Break.EACH_CALL
        return Ask(
            call.seat,
            "",
            most if call.max_tokens is None else min(most, call.max_tokens),
            messages=call.messages if new is None else new,
            tools=call.tools,
            conversation=place.conversation,
            fresh=new is None,
            broken=cause.value if new is None and self._seats[call.seat].answered else "",
            structured=call.structured,
        )

    def outcome(self) -> Outcome:
        """Return what the program reported; only when `asks` is empty."""
        assert self._end.report is not None
        team, scores = self.spec.rewards_of(self._end.report)
        self.over = FINISHED
        return Outcome(scores, team, team >= self.spec.best_reward)

    def leave(self, reason: str = "") -> None:
        """End the session: whatever still waits is refused."""
        self.over = reason or self.over or "rollout: the run does not need it any more"
        for call in [*self._waiting, *(call for call, _ in self._asked)]:
            call.refuse(ended(self.over))
        self._leave(self)


def _refuse_long(call: ModelCall) -> None:
    """Refuse, before anything is made of it, what no model reads. Raises CallRefused."""
    length = characters(call.messages, call.tools)
    if length > MOST_CHARACTERS:
        detail = (
            f"messages: with tools they have {length} characters, and at most {MOST_CHARACTERS} are read; send fewer."
        )
        raise CallRefused(400, "context_length_exceeded", detail, "messages")


def _answer_of(call: ProgramCall, reply: Reply) -> CallAnswer:
    assert reply.message is not None
    calls = tuple(replace(one, id=f"call_{call.id}_{no}") for no, one in enumerate(reply.message.tool_calls))
    message = replace(reply.message, tool_calls=calls)
    return CallAnswer(call.id, message, reply.finish, reply.prompt_tokens, reply.tokens, int(time.time()))
