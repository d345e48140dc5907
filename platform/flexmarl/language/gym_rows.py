"""Rows of NeMo Gym's data: a request of OpenAI's Responses API, and what the environment's verifier reads beside it.

Invariant: the row itself is kept as it was written; what an agent reads is derived from it.
Source: `responses_create_params` of the package nemo-gym, versions 0.4 and 0.7.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flexmarl.contracts.specification.openenv import PLAYER
from flexmarl.language.dataset_rows import DatasetRow
from flexmarl.language.dialects import responses
from flexmarl.language.dialects.calls import CallRefused, ModelCall
from flexmarl.language.messages import Message

REQUEST = "responses_create_params"
"""Column of a row that is the request."""


class NotOfGym(ValueError):
    """A row has no request that an agent of a run can be asked; the text says why."""


@dataclass(frozen=True, slots=True)
class GymTask:
    row: Mapping[str, Any]
    """As the file has it: what the server is sent."""
    call: ModelCall
    """What the agent reads before anything else, and which tools it may call."""


def task_of(row: DatasetRow) -> GymTask:
    """Return the task of a row. Raises NotOfGym."""
    if REQUEST not in row.columns:
        raise NotOfGym(f"it has no column {REQUEST}")
    return GymTask(row.columns, request_of(row.columns[REQUEST]))


def request_of(given: object) -> ModelCall:
    """Return a request as it is asked. Raises NotOfGym."""
    if not isinstance(given, Mapping):
        raise NotOfGym(f"{REQUEST} is not an object with input and tools")
    try:
        call = responses.read({**given, "model": given.get("model") or PLAYER})
    except CallRefused as refused:
        raise NotOfGym(f"{REQUEST}: {refused}") from refused
    if call.follows:
        raise NotOfGym(f"{REQUEST}: previous_response_id: the answer that it goes on from is not known here")
    return replace(call, messages=_one_system(call.messages))


def words_of(call: ModelCall) -> tuple[Message, ...]:
    """Return what a request says in words, up to the last message of the user.

    Where the user says nothing, since the server will, all of it stands as one message.
    """
    spoken = [one for one in call.messages if one.role != "tool" and one.content.strip()]
    last = max((place for place, one in enumerate(spoken, start=1) if one.role == "user"), default=0)
    if spoken and not last:
        return (Message("user", "\n\n".join(one.content for one in spoken)),)
    return tuple(Message(one.role, one.content) for one in spoken[:last])


def _one_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages whose first ones of the system are one, since templates take one. Raises NotOfGym."""
    count = next((place for place, one in enumerate(messages) if one.role != "system"), len(messages))
    if any(one.role == "system" for one in messages[count:]):
        raise NotOfGym(f"{REQUEST}: input: a message of the system or developer stands behind others")
    if count < 2:
        return tuple(messages)
    return (Message("system", "\n\n".join(one.content for one in messages[:count])), *messages[count:])
