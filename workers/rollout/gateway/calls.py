"""One call of an agent program in a session: who asked again, and the answer that it waits for. Of no dialect."""

import asyncio
import re
from dataclasses import dataclass, field, fields
from typing import Self

from flexmarl.language.dialects.calls import CallAnswer, CallRefused, ModelCall

SEND_LESS = "Send less, or set agents.ROLE.context_tokens in the run; the session goes on"
UNHELD = re.compile(r"^engine: (?:bad_request|too_complex): .*structured: ")
UNREADABLE = re.compile(r"^environment: TemplateError: ")


def ended(reason: str) -> CallRefused:
    """Make the refusal of calls in a session that is over. 410: clients ask again after a 409."""
    if UNHELD.match(reason):
        return CallRefused(400, "invalid_value", reason, "")
    if UNREADABLE.match(reason):
        return CallRefused(400, "invalid_value", reason, "messages")
    return over(reason)


def too_long(reason: str) -> CallRefused:
    """Make the refusal of a call that its model has no room for; as other services say it, so clients know it."""
    return CallRefused(400, "context_length_exceeded", f"{reason}. {SEND_LESS}", "messages")


def over(reason: str) -> CallRefused:
    """Make the refusal of calls that come after the one that its end was told to."""
    return CallRefused(410, "session_ended", f"The session has ended: {reason}")


def _unanswered() -> "asyncio.Future[CallAnswer]":
    """Return a future whose refusal may stay unread: its client may have gone."""
    future: asyncio.Future[CallAnswer] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda one: one.cancelled() or one.exception())
    return future


@dataclass(slots=True, eq=False)
class ProgramCall(ModelCall):
    """A call in a session, whose model is one of its seats."""

    digest: str = ""
    """Of path and body: what a repetition shares."""
    again: bool | None = None
    """Whether it repeats an earlier one, where its client says so."""
    id: str = ""
    """Given by its session."""
    answer: "asyncio.Future[CallAnswer]" = field(default_factory=_unanswered)

    @classmethod
    def of(cls, call: ModelCall, digest: str, again: bool | None) -> Self:
        """Return a call that was understood, with what tells whether it is a repetition."""
        said = {one.name: getattr(call, one.name) for one in fields(call)}
        return cls(**said, digest=digest, again=again)

    @property
    def seat(self) -> str:
        """The seat that it asks."""
        return self.model

    def refuse(self, refused: CallRefused) -> None:
        """Answer it with a refusal, unless it has an answer."""
        if not self.answer.done():
            self.answer.set_exception(refused)
