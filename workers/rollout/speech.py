"""What the seats of one attempt have read and said: how an environment's ask becomes a prompt, and a reply an answer.

Invariants. An environment of words asks with its whole observation, which is the prompt; one of messages asks with what
is new, and the prompt is the chain of the seat's conversation, which holds the ids that were sampled as they were
sampled. A seat's turns are numbered in the order in which they were asked, over all its conversations.
"""

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flexmarl.contracts.specification.team import ExternalModel
from flexmarl.contracts.wire import PolicyPin
from flexmarl.language.chains import Chain
from flexmarl.language.instructed import instructed
from flexmarl.language.messages import Message, characters
from flexmarl.language.renderer import LONG, Renderer
from flexmarl.language.stops import before
from workers.rollout.engines.wire import PLAIN, CompletionChoice, SamplingParameters
from workers.rollout.environments.base import Ask, Reply
from workers.rollout.pausing import FREE, Hold
from workers.vocabulary import Codec


@dataclass(frozen=True, slots=True)
class Seat:
    """What a role plays with: its policy, the exact weights and how it samples."""

    policy: str
    pin: PolicyPin
    codec: Codec
    max_tokens: int | None
    """Of a reply; None: as many as it is asked for."""
    temperature: float
    sampling: SamplingParameters = PLAIN
    external: ExternalModel | None = None
    """Somebody else's model that plays this seat; then policy and pin only name it in the record."""
    follow: str = ""
    """How a running reply is taken over by newer weights; empty: the pinned ones make it to its end."""
    engine: int = 0
    """Lease of the engine that is to answer its turns; 0: any."""
    hold: Hold = FREE
    """Whether its command stands still."""
    instructions: str = ""
    """What its model is told before anything else, in place of the environment's own words; empty: those."""
    context_tokens: int | None = None
    """Most ids of a prompt; older messages are left out."""
    renderer: Renderer | None = None
    """By which messages become its ids; None where its model has no chat template."""
    trained: bool = False
    """Whether its policy is trained on what it says."""
    takes_formats: bool = True
    """Whether an ask may hold its replies to a format."""


V = TypeVar("V")
Talk = tuple[str, int]
"""A role and the number of its conversation."""


def _talk(ask: Ask) -> Talk:
    return (ask.role, ask.conversation)


def prompt_tokens(seats: "Mapping[str, Seat]", ask: Ask) -> int:
    """Count the ids of an ask that is the first one of its seat. Raises as `Speech.prompt` does."""
    return len(Speech(seats).prompt(ask))


class NoChatTemplate(ValueError):
    """An environment speaks in messages to a model that knows only words."""


class FormatRefused(ValueError):
    """A seat's replies cannot be held to what an ask says; the text says why, and what can be done."""


class TrainedFormatRefused(FormatRefused):
    """The seat is trained, and the run holds the replies of such seats to no format."""


@dataclass(slots=True)
class Speech:
    """The chains and the turns of an attempt's seats."""

    seats: Mapping[str, Seat]
    calls: dict[str, int] = field(default_factory=dict)
    """Turns that each role was asked for."""
    turns: dict[Talk, int] = field(default_factory=dict)
    """The turn that was last asked for in each conversation."""
    chains: dict[Talk, Chain] = field(default_factory=dict)
    rows: dict[Talk, tuple[object, int]] = field(default_factory=dict)
    """Of each conversation: what its training row is the same as long as, and the row's first turn."""
    breaks: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """Cause -> role and turn of each chain that began anew because of it."""

    def turn_of(self, ask: Ask) -> int:
        """Return the number of the turn that an ask is, once it has its prompt."""
        return self.turns[_talk(ask)]

    async def prompted(self, ask: Ask) -> tuple[int, ...]:
        """Do what `prompt` does, in a thread where the conversation is long: others play in this process."""
        known = self.chains.get(_talk(ask))
        if characters((*(known.said if known else ()), *ask.messages), ask.tools) < LONG:
            return self.prompt(ask)
        return await asyncio.to_thread(self.prompt, ask)

    def prompt(self, ask: Ask) -> tuple[int, ...]:
        """Begin a turn; returns the ids that its ask puts to the seat.

        Raises UnknownWord, TemplateError, NoChatTemplate or FormatRefused, and ValueError where instructions do not
        render.
        """
        seat, turn = self.seats[ask.role], self.calls.get(ask.role, 0)
        if ask.structured:
            _refuse_format(seat, ask)
        prompt = self._grown(ask, turn) if ask.messages else tuple(seat.codec.encode(ask.observation))
        self.turns[_talk(ask)] = turn
        if not ask.aside:
            self.calls[ask.role] = turn + 1
        return prompt

    def _grown(self, ask: Ask, turn: int) -> tuple[int, ...]:
        """Return the chain of an ask's conversation, with what is new in it."""
        seat, talk = self.seats[ask.role], _talk(ask)
        if seat.renderer is None:
            raise NoChatTemplate(f"{ask.role} is asked in messages, and its model has no chat template")
        if ask.fresh:
            self.chains.pop(talk, None)
            self.rows.pop(talk, None)
        if ask.broken:
            self.breaks.setdefault(ask.broken, []).append((ask.role, turn))
        chain = self.chains.setdefault(talk, Chain(seat.renderer))
        broken = chain.number
        messages = ask.messages if chain.said else self._instructed(ask)
        prompt = chain.ask(messages, ask.tools, seat.context_tokens)
        for cause in chain.breaks[broken:]:
            self.breaks.setdefault(cause.value, []).append((ask.role, turn))
        row = (chain.number, ask.allowed)  # a row has one mask
        if self.rows.get(talk, (None, 0))[0] != row:
            self.rows[talk] = (row, turn)
        return prompt

    def begins(self, ask: Ask) -> int:
        """Return the first turn of the row that an ask's reply is part of, once it has its prompt."""
        return self.rows[_talk(ask)][1] if ask.messages else self.turn_of(ask)

    def hear(self, ask: Ask, answer: CompletionChoice) -> Reply:
        """Take in what a seat answered; returns it as its environment reads it, without what a stop string cuts off."""
        seat, ids, finish = self.seats[ask.role], answer.token_ids, answer.finish_reason
        if not ask.messages:
            return Reply(ask.role, before(seat.codec.decode(ids), seat.sampling.stop), None, finish, len(ids))
        chain = self.chains[_talk(ask)]
        prompt_tokens = len(chain.ids)
        message = chain.answer(ids)
        message = replace(message, content=before(message.content, seat.sampling.stop))
        return Reply(ask.role, message.content, message, finish, len(ids), prompt_tokens)

    def conversation(self, ask: Ask) -> tuple[Message, ...]:
        """Return all that a seat has seen and said when it is asked; in words, only what it is told before."""
        return self.chains[_talk(ask)].said if ask.messages else self._instructed(ask)

    def _instructed(self, ask: Ask) -> tuple[Message, ...]:
        """Return the first messages to a seat, which begin with its instructions where it has any."""
        return instructed(ask.messages, self.seats[ask.role].instructions, ask.role, tuple(self.seats))

    def stop_ids(self, ask: Ask) -> tuple[int, ...]:
        """Return the ids that end a reply: the ask's words, and the end of turn of a model that reads messages."""
        seat = self.seats[ask.role]
        ends = seat.renderer.stop_ids if ask.messages and seat.renderer is not None else ()
        return tuple(dict.fromkeys((*seat.codec.ids_of(ask.stop), *ends)))

    def copied(self) -> "Speech":
        """Return what the same seats have said once more: neither copy feels what the other hears."""
        chains = {talk: copy.copy(chain) for talk, chain in self.chains.items()}
        return Speech(
            self.seats,
            dict(self.calls),
            dict(self.turns),
            chains,
            dict(self.rows),
            {cause: list(at) for cause, at in self.breaks.items()},
        )

    def take_back(self, ask: Ask, before: "Speech") -> None:
        """Undo the turn that an ask began: its conversation is as it was before."""
        talk, turn = _talk(ask), self.turns[_talk(ask)]
        _restore(self.chains, before.chains, talk)
        _restore(self.turns, before.turns, talk)
        _restore(self.rows, before.rows, talk)
        if self.calls.get(ask.role, 0) == turn + 1:
            self.calls[ask.role] = turn
        for cause, at in list(self.breaks.items()):
            at[:] = [one for one in at if one != (ask.role, turn)]
            if not at:
                del self.breaks[cause]

    def continued(self, breaks: dict[str, list[tuple[str, int]]]) -> "Speech":
        """Return a copy for another episode that goes on from here: its rows begin with what it says itself."""
        copied = self.copied()
        copied.rows.clear()
        copied.breaks = breaks
        return copied


def _restore(kept: dict[Talk, V], before: Mapping[Talk, V], talk: Talk) -> None:
    """Put what belonged to a conversation where it is."""
    kept.pop(talk, None)
    if talk in before:
        kept[talk] = before[talk]


def _refuse_format(seat: Seat, ask: Ask) -> None:
    """Raise FormatRefused where a seat's reply cannot be held to a format, or is not to be."""
    role = ask.role
    if not seat.takes_formats:
        rule = f"leave it out, or set environment.formats: held or learned, or trainable: false of {role}"
        raise TrainedFormatRefused(f"{role} is trained, and environment.formats of the run is refused; {rule}")
    if seat.external is not None:
        raise FormatRefused(f"{role} uses an external model; leave it out, or give {role} a policy of the run")
    if seat.sampling.structured:
        raise FormatRefused(f"the run says already what replies of {role} are (sampling.structured); leave it out")
    if ask.tools:
        raise FormatRefused("a reply that is held to a format calls no tools; leave one of the two out")
    if seat.renderer is not None and seat.renderer.thinks_first:
        raise FormatRefused(
            f"replies of {role} begin within a thought; leave it out, or ask a model that does not think"
        )
