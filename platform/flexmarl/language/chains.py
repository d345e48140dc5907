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
    """The conversation up to the last ask, without what was left out."""
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

    def ask(
        self, delta: Sequence[Message], tools: Sequence[dict[str, Any]] = (), most: int | None = None
    ) -> tuple[int, ...]:
        """Append new messages; returns the prompt. `tools` are those that the seat has now.

        A prompt of more than `most` ids begins a new chain without the oldest messages, if it can be made short enough.
        Raises TemplateError, and then nothing has changed. A second call before an answer is an error of the caller.
        """
        if self._sampled is None or self._reply is None:
            if self.said:
                raise ValueError("the chain waits for an answer")
            said, broken = tuple(delta), None
            text = self.renderer.text(said, tools)
            ids = self.renderer.encode(text)
        else:
            said = (*self.said, self._reply, *delta)
            bridge = self.renderer.bridge(self._text, self._sampled, said, tools)
            text, broken = bridge.text, bridge.broken
            ids = self.renderer.encode(text) if broken else self.ids + bridge.ids
        if most is not None and len(ids) > most and (short := self._shortened(said, tools, most)) is not None:
            said, text, ids = short
            broken = Break.SHORTENED if self.said else None
        if broken:
            self.breaks += (broken,)
        self.said, self.ids, self._text, self._sampled, self._reply = said, ids, text, None, None
        return self.ids

    def _shortened(
        self, said: tuple[Message, ...], tools: Sequence[dict[str, Any]], most: int
    ) -> tuple[tuple[Message, ...], str, tuple[int, ...]] | None:
        """Return what is left of a conversation with its text and ids; None where its last part alone is too long.

        It is what stands before the first message of a user, and all from a later one on: templates want that order.
        """
        asked = [place for place, message in enumerate(said) if message.role == "user"]
        for place in asked[1:]:
            left = (*said[: asked[0]], *said[place:])
            text = self.renderer.text(left, tools)
            ids = self.renderer.encode(text)
            if len(ids) <= most:
                return left, text, ids
        return None

    def answer(self, sampled: Sequence[int]) -> Message:
        """Append what the model sampled; returns it as a message."""
        self._sampled = tuple(sampled)
        self._reply = self.renderer.parse(self._sampled)
        self.ids += self._sampled
        return self._reply
