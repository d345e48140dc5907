"""What a program's calls of one seat have in common: which conversation each goes on with, and which messages are new.

Invariants. Messages are new only behind all that a conversation has read and said, message by message with the same
content; ids of calls and thoughts, which programs need not send back, and blanks around a reply are no part of that. Of
several conversations the longest that a call goes on with is its own; whatever goes on with none begins another one, so
sub-agents and calls that are made at the same time each have theirs. A seat remembers `MOST_CONVERSATIONS`: another one
takes the place of the one that has rested longest.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from flexmarl.language.messages import Message
from workers.rollout.gateway.calls import ProgramCall

MOST_CONVERSATIONS = 16
"""As many histories does a worker hold for a seat of a session, and as many calls of a seat are answered at once."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where a call goes on."""

    conversation: int
    new: tuple[Message, ...] | None
    """None: the conversation begins with the call."""


class SeatHistories:
    """The conversations of one seat, as its program knows them."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[Message, ...]] = {}
        """By number, the one that has rested longest first."""
        self._ended_by: dict[int, ProgramCall] = {}
        """The call whose reply is the last message of a conversation."""
        self._asked: set[int] = set()
        """Those in which a call waits for its answer."""

    def begin(self, messages: Sequence[Message]) -> Continuation | None:
        """Take in a call that is asked now; None while as many conversations as there may be wait for answers."""
        free = [number for number in self._said if number not in self._asked]
        longest_first = sorted(free, key=lambda number: -len(self._said[number]))
        own = next((number for number in longest_first if _goes_on(self._said[number], messages)), None)
        unused = (number for number in range(MOST_CONVERSATIONS) if number not in self._said)
        place = own if own is not None else next(chain(unused, free), None)
        if place is None:
            return None
        self._said[place] = said = self._said.pop(place, ())
        self._asked.add(place)
        return Continuation(place, None if own is None else tuple(messages[len(said) :]))

    def answered(self, conversation: int, call: ProgramCall, reply: Message) -> None:
        """Take in what a seat said to a call."""
        self._asked.discard(conversation)
        self._said[conversation] = (*call.messages, reply)
        self._ended_by[conversation] = call

    def refused(self, conversation: int) -> None:
        """Take back a call that was asked: it gets no answer, and what was said before stays said."""
        self._asked.discard(conversation)
        if not self._said[conversation]:
            del self._said[conversation]

    def ended_by(self, id: str) -> tuple[ProgramCall, tuple[Message, ...]] | None:
        """Return a call and the conversation that its reply ends, by the call's id."""
        for number, call in self._ended_by.items():
            if call.id == id:
                return call, self._said[number]
        return None


def _goes_on(said: Sequence[Message], messages: Sequence[Message]) -> bool:
    return 0 < len(said) < len(messages) and all(map(_same, said, messages))


def _same(known: Message, sent: Message) -> bool:
    return _essence(known) == _essence(sent)


def _essence(message: Message) -> tuple[object, ...]:
    own = message.role == "assistant"
    calls = [(call.name, json.dumps(call.arguments, sort_keys=True)) for call in message.tool_calls]
    return (message.role, message.content.strip() if own else message.content, calls)
