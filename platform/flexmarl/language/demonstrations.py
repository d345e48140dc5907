"""Conversations to imitate, token by token: which ids a model that says them reads, and which it samples.

Invariants: only what an assistant says is ever sampled, with the end of its turn; everything else is read. What is read
and sampled is what an engine would see and sample in that conversation, so a conversation that the template writes
otherwise as it goes on (it drops thoughts, say) is several chains, as it is when it is played.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from flexmarl.language.chains import Chain
from flexmarl.language.dataset_rows import DatasetRow
from flexmarl.language.messages import Message
from flexmarl.language.renderer import Renderer

SPEAKERS = ("system", "user", "assistant")


@dataclass(slots=True)
class DemonstratedChain:
    """A chain of a conversation; what is read and what is sampled take turns."""

    read: list[tuple[int, ...]] = field(default_factory=list)
    sampled: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Return the tokens of all turns."""
        return sum(map(len, self.read)) + sum(map(len, self.sampled))

    @property
    def learned(self) -> int:
        """Return the tokens that are sampled."""
        return sum(map(len, self.sampled))


def conversation_of(row: DatasetRow, column: str = "") -> tuple[Message, ...]:
    """Return what a row demonstrates, up to the last words of an assistant; empty where it demonstrates nothing.

    That is its answer behind its messages, or what a column says instead: a text, or a whole conversation.
    """
    said = row.columns.get(column) if column else row.answer
    if isinstance(said, str):
        return (*row.messages, Message("assistant", said)) if said.strip() else ()
    if not isinstance(said, list) or not all(map(_is_message, said)):
        return ()
    messages = [Message(one["role"], one["content"]) for one in said]
    while messages and messages[-1].role != "assistant":
        messages.pop()
    return tuple(messages)


def chains_of(renderer: Renderer, conversation: Sequence[Message]) -> list[DemonstratedChain]:
    """Return the chains of a conversation. Raises TemplateError where the template does not render it."""
    found = [DemonstratedChain()]
    chain, delta = Chain(renderer), list[Message]()
    for message in conversation:
        if message.role != "assistant":
            delta.append(message)
            continue
        before, number = len(chain.ids), chain.number
        prompt = chain.ask(delta)
        if chain.number != number:
            found.append(DemonstratedChain())
            before = 0
        sampled = renderer.demonstrated((*chain.said, message))
        chain.answer(sampled)
        found[-1].read.append(prompt[before:])
        found[-1].sampled.append(sampled)
        delta = []
    return [one for one in found if one.sampled]


def _is_message(one: object) -> bool:
    return isinstance(one, dict) and one.get("role") in SPEAKERS and isinstance(one.get("content"), str)
