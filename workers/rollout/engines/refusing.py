"""What an engine answers to what went wrong with a request: a status and a code, the same for every engine. Pure."""

from dataclasses import dataclass, field

import msgspec

from workers.memory import lacks_memory
from workers.models.adapter import WrongAdapterError
from workers.models.architecture import UnsupportedModel
from workers.models.checks import NonfiniteWeights
from workers.rollout.engines.base import EngineFailedError
from workers.rollout.engines.requests import BadRequestError, NotHeldError
from workers.transfer.base import StateError


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    code: str
    request_ids: list[str] = field(default_factory=list)
    """The requests that are wrong, where only some are."""


def refusal_of(error: Exception) -> Refusal | None:
    """Return how an error is answered; None for one that nobody foresaw. Memory runs out under many names."""
    match error:
        case NotHeldError():
            return Refusal(409, "not_held")
        case StateError():
            return Refusal(409, error.code)
        case UnsupportedModel():
            return Refusal(422, "unsupported_model")
        case WrongAdapterError():
            return Refusal(422, "wrong_adapter")
        case NonfiniteWeights():
            return Refusal(422, "nonfinite_weights")
        case BadRequestError():
            return Refusal(422, error.code, error.request_ids)
        case msgspec.DecodeError():
            return Refusal(422, "bad_request")
        case _ if lacks_memory(error):
            return Refusal(503, "out_of_memory")
        case EngineFailedError():
            return Refusal(422, "engine_failed")
    return None
