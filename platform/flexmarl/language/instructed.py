"""What an agent is told before anything else."""

from collections.abc import Sequence

from flexmarl.contracts.specification.instructions import render_instructions
from flexmarl.language.messages import Message


def instructed(messages: Sequence[Message], text: str, role: str, team: Sequence[str]) -> tuple[Message, ...]:
    """Return messages with the instructions of their agent in front; `team`: all agents, in their order.

    A first message of the system is what the instructions may repeat, and goes. Raises ValueError where they do not
    render.
    """
    if not text:
        return tuple(messages)
    own = [message.content for message in messages[:1] if message.role == "system"]
    told = render_instructions(text, role, tuple(team), "".join(own))
    return (Message("system", told), *messages[len(own) :])
