"""What an engine answers to what went wrong with a request: a status and a code, the same for every engine. Pure."""

from dataclasses import dataclass, field

import msgspec

from workers.memory import lacks_memory
from workers.models.adapter import WrongAdapterError
from workers.models.architecture import UnsupportedModel
from workers.models.checks import NonfiniteWeights
from workers.rollout.engines.base import EngineFailedError
from workers.rollout.engines.requests import BadRequestError, NotHeldError
from workers.rollout.engines.sleeping import AsleepError, BusyError, CannotSleepError
from workers.rollout.engines.tokenizers import TokenizerDiffersError
from workers.transfer.base import StateError


@dataclass(frozen=True, slots=True)
class EngineRefusal:
    status: int
    code: str
    request_ids: list[str] = field(default_factory=list)
    """The requests that are wrong, where only some are."""


PLAIN: dict[type[Exception], EngineRefusal] = {
    NotHeldError: EngineRefusal(409, "not_held"),
    AsleepError: EngineRefusal(409, "asleep"),
    BusyError: EngineRefusal(409, "busy"),
    CannotSleepError: EngineRefusal(422, "cannot_sleep"),
    UnsupportedModel: EngineRefusal(422, "unsupported_model"),
    WrongAdapterError: EngineRefusal(422, "wrong_adapter"),
    TokenizerDiffersError: EngineRefusal(422, "tokenizer_differs"),
    NonfiniteWeights: EngineRefusal(422, "nonfinite_weights"),
    msgspec.DecodeError: EngineRefusal(422, "bad_request"),
}


def refusal_of(error: Exception) -> EngineRefusal | None:
    """Return how an error is answered; None for one that nobody foresaw. Memory runs out under many names."""
    if isinstance(error, StateError):
        return EngineRefusal(409, error.code)
    if isinstance(error, BadRequestError):
        return EngineRefusal(422, error.code, error.request_ids)
    plain = next((refusal for kind, refusal in PLAIN.items() if isinstance(error, kind)), None)
    if plain is None and lacks_memory(error):
        return EngineRefusal(503, "out_of_memory")
    return EngineRefusal(422, "engine_failed") if plain is None and isinstance(error, EngineFailedError) else plain
