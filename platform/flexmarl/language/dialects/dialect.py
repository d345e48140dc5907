"""What a dialect is, and which one a path speaks."""

from collections.abc import Iterator
from typing import Any, Protocol

from flexmarl.language.dialects import chat, messages, responses
from flexmarl.language.dialects.calls import CallAnswer, CallRefused, ModelCall
from flexmarl.language.dialects.fields import FieldRules


class Dialect(Protocol):
    """How programs speak: one module each."""

    RULES: FieldRules

    def read(self, body: Any, rules: FieldRules = ...) -> ModelCall:
        """Read a body. Raises CallRefused."""

    def whole(self, call: ModelCall, answer: CallAnswer) -> dict[str, Any]:
        """Return an answer in one piece."""

    def events(self, call: ModelCall, answer: CallAnswer) -> Iterator[bytes]:
        """Yield an answer as the events of a stream."""

    def refusal(self, refused: CallRefused) -> dict[str, Any]:
        """Return the body of a refusal."""


class AnswerEvents(Protocol):
    """The events of an answer that comes bit by bit, in a dialect whose answers are one message."""

    def opened(self) -> Iterator[bytes]:
        """Yield what stands in front of all words."""

    def more(self, reasoning: str, content: str) -> Iterator[bytes]:
        """Yield thoughts and words that came."""

    def ended(self, answer: CallAnswer) -> Iterator[bytes]:
        """Yield what has not been said of an answer, and its end."""

    def failed(self, refused: CallRefused) -> Iterator[bytes]:
        """Yield why there is no whole answer."""


def dialect_of(path: str) -> Dialect:
    """Return the dialect in which requests to a path are answered."""
    if path.startswith("/v1/responses"):
        return responses
    return messages if path.startswith("/v1/messages") else chat
