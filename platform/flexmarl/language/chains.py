"""A chain: the token-faithful, append-only sequence of what one seat of an episode read and wrote.

Invariants. A chain only grows: `ask` appends what the model reads (context, never trained), `answer` what it sampled.
Where the next prompt does not extend it, a new chain begins and its cause is kept. The prompt of a turn is all that its
chain holds when it is asked, so the concatenation of context and sampled ids is what the engine saw, token by token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flexmarl.language.messages import Message
from flexmarl.language.renderer import Break, Renderer


@dataclass(slots=True)
class Chain:
    """What one seat has seen and said since its last break. Its parts are immutable: `copy.copy` is a whole copy."""

    renderer: Renderer
    ids: tuple[int, ...] = ()
    number: int = 0
    """How many chains of this seat came before."""
    breaks: tuple[Break, ...] = ()
    """Why each of them ended."""
    said: tuple[Message, ...] = ()
    """The conversation up to the last ask."""
    _sampled: tuple[int, ...] | None = None

    def ask(self, delta: Sequence[Message]) -> tuple[int, ...]:
        """Append new messages; returns the prompt. A second call before an answer is an error of the caller."""
        if self._sampled is None:
            if self.said:
                raise ValueError("the chain waits for an answer")
            self.ids = self.renderer.render(delta)
            self.said = tuple(delta)
            return self.ids
        bridge = self.renderer.bridge(self.said, self._sampled, delta)
        self.said += (self.renderer.parse(self._sampled), *delta)
        if bridge.broken is None:
            self.ids += bridge.ids
        else:
            self.breaks += (bridge.broken,)
            self.number += 1
            self.ids = self.renderer.render(self.said)
        self._sampled = None
        return self.ids

    def answer(self, sampled: Sequence[int]) -> Message:
        """Append what the model sampled; returns it as a message."""
        self._sampled = tuple(sampled)
        self.ids += self._sampled
        return self.renderer.parse(sampled)
