"""A chain: the token-faithful, append-only sequence of what one seat of an episode read and wrote.

Invariants. A chain only grows: `ask` appends what the model reads (context, never trained), `answer` what it sampled.
Where the next prompt does not extend it, a new chain begins and its cause is kept. The prompt of a turn is all that its
chain holds when it is asked, so the concatenation of context and sampled ids is what the engine saw, token by token.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flexmarl.language.messages import Message
from flexmarl.language.renderer import Break, Renderer


@dataclass(slots=True)
class Chain:
    """What one seat has seen and said since its last break. Its parts are immutable: `copy.copy` is a whole copy."""

    renderer: Renderer
    ids: tuple[int, ...] = ()
    breaks: tuple[Break, ...] = ()
    """Why each earlier chain of this seat ended."""
    said: tuple[Message, ...] = ()
    """The conversation up to the last ask."""
    _text: str = ""
    """The prompt of the last ask as the template writes it."""
    _sampled: tuple[int, ...] | None = None
    _reply: Message | None = None

    @property
    def number(self) -> int:
        """How many chains of this seat came before."""
        return len(self.breaks)

    @property
    def breaks_by_cause(self) -> Counter[Break]:
        """How many earlier chains of this seat ended by each cause."""
        return Counter(self.breaks)

    def ask(self, delta: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> tuple[int, ...]:
        """Append new messages; returns the prompt. `tools` are those that the seat has now.

        Raises TemplateError, and then nothing has changed. A second call before an answer is an error of the caller.
        """
        if self._sampled is None or self._reply is None:
            if self.said:
                raise ValueError("the chain waits for an answer")
            said = tuple(delta)
            text = self.renderer.text(said, tools)
            self.ids = self.renderer.encode(text)
        else:
            said = (*self.said, self._reply, *delta)
            bridge = self.renderer.bridge(self._text, self._sampled, said, tools)
            text = bridge.text
            if bridge.broken is None:
                self.ids += bridge.ids
            else:
                self.breaks += (bridge.broken,)
                self.ids = self.renderer.encode(text)
        self.said, self._text, self._sampled, self._reply = said, text, None, None
        return self.ids

    def answer(self, sampled: Sequence[int]) -> Message:
        """Append what the model sampled; returns it as a message."""
        self._sampled = tuple(sampled)
        self._reply = self.renderer.parse(self._sampled)
        self.ids += self._sampled
        return self._reply
