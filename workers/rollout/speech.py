"""What the seats of one attempt have read and said: how an environment's ask becomes a prompt, and a reply an answer.

Invariant: an environment of words asks with its whole observation, which is the prompt; one of messages asks with what
is new, and the prompt is its seat's chain, which holds the ids that were sampled as they were sampled.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flexmarl.contracts.specification.team import ExternalModel
from flexmarl.contracts.wire import PolicyPin
from flexmarl.language.chains import Chain
from flexmarl.language.instructed import instructed
from flexmarl.language.messages import Message
from flexmarl.language.renderer import Renderer
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
    max_tokens: int
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


def prompt_tokens(seats: "Mapping[str, Seat]", ask: Ask) -> int:
    """Count the ids of an ask that is the first one of its seat. Raises as `Speech.prompt` does."""
    return len(Speech(seats).prompt(ask))


class NoChatTemplate(ValueError):
    """An environment speaks in messages to a model that knows only words."""


@dataclass(slots=True)
class Speech:
    """The chains and the turns of an attempt's seats."""

    seats: Mapping[str, Seat]
    calls: dict[str, int] = field(default_factory=dict)
    """Turns that each role has had."""
    chains: dict[str, Chain] = field(default_factory=dict)
    rows: dict[str, tuple[object, int]] = field(default_factory=dict)
    """Of each role asked in messages: what its training row is the same as long as, and the row's first turn."""
    breaks: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """Cause -> role and turn of each chain that began anew because of it."""

    def turn_of(self, role: str) -> int:
        """Return the number of the role's next turn."""
        return self.calls.get(role, 0)

    def prompt(self, ask: Ask) -> tuple[int, ...]:
        """Return the ids that an ask puts to its seat.

        Raises UnknownWord, TemplateError or NoChatTemplate, and ValueError where instructions do not render.
        """
        seat = self.seats[ask.role]
        if not ask.messages:
            return tuple(seat.codec.encode(ask.observation))
        if seat.renderer is None:
            raise NoChatTemplate(f"{ask.role} is asked in messages, and its model has no chat template")
        if ask.fresh:
            self.chains.pop(ask.role, None)
            self.rows.pop(ask.role, None)
        if ask.broken:
            self.breaks.setdefault(ask.broken, []).append((ask.role, self.turn_of(ask.role)))
        chain = self.chains.setdefault(ask.role, Chain(seat.renderer))
        broken = chain.number
        messages = ask.messages if chain.said else self._instructed(ask)
        prompt = chain.ask(messages, ask.tools, seat.context_tokens)
        for cause in chain.breaks[broken:]:
            self.breaks.setdefault(cause.value, []).append((ask.role, self.turn_of(ask.role)))
        row = (chain.number, ask.allowed)  # a row has one mask
        if self.rows.get(ask.role, (None, 0))[0] != row:
            self.rows[ask.role] = (row, self.turn_of(ask.role))
        return prompt

    def begins(self, ask: Ask) -> int:
        """Return the first turn of the row that an ask's reply is part of, once it has its prompt."""
        return self.rows[ask.role][1] if ask.messages else self.turn_of(ask.role)

    def hear(self, ask: Ask, answer: CompletionChoice) -> Reply:
        """Take in what a seat answered; returns it as its environment reads it, without what a stop string cuts off."""
        self.calls[ask.role] = self.turn_of(ask.role) + 1
        seat, ids, finish = self.seats[ask.role], answer.token_ids, answer.finish_reason
        if not ask.messages:
            return Reply(ask.role, before(seat.codec.decode(ids), seat.sampling.stop), None, finish, len(ids))
        prompt_tokens = len(self.chains[ask.role].ids)
        message = self.chains[ask.role].answer(ids)
        message = replace(message, content=before(message.content, seat.sampling.stop))
        return Reply(ask.role, message.content, message, finish, len(ids), prompt_tokens)

    def conversation(self, ask: Ask) -> tuple[Message, ...]:
        """Return all that a seat has seen and said when it is asked; in words, only what it is told before."""
        return self.chains[ask.role].said if ask.messages else self._instructed(ask)

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
        chains = {role: copy.copy(chain) for role, chain in self.chains.items()}
        return Speech(
            self.seats,
            dict(self.calls),
            chains,
            dict(self.rows),
            {cause: list(at) for cause, at in self.breaks.items()},
        )
