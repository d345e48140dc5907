"""What a request must satisfy before any engine computes it: fields, ranges, and what it carries on."""

from collections.abc import Iterable

from workers.rollout.engines import version_segments
from workers.rollout.engines.requests import BadRequestError, Request
from workers.rollout.engines.wire import UNCERTAINTIES, SamplingParameters


def check_all(asked: Iterable[tuple[Request, int, int]], whole: bool = False) -> None:
    """Check requests that came together, each with its model's words and positions; names all that are wrong."""
    wrong: dict[str, BadRequestError] = {}
    for request, words, positions in asked:
        try:
            check(request, words, positions)
            check_done(request, whole)
        except BadRequestError as refused:
            wrong[request.request_id] = refused
    if wrong:
        first = next(iter(wrong.values()))
        raise BadRequestError(str(first), first.code, list(wrong))


def check(request: Request, words: int, positions: int) -> None:
    """Refuse what a model of so many words and positions could never answer."""
    if not request.prompt:
        raise BadRequestError("prompt: is empty; it needs at least one token id")
    if request.max_tokens < 1:
        raise BadRequestError(f"max_tokens: {request.max_tokens} is below 1")
    if len(request.prompt) + request.max_tokens > positions:
        asked = len(request.prompt) + request.max_tokens
        text = f"prompt and max_tokens: {asked} positions exceed the model's {positions}"
        raise BadRequestError(text, code="context_overflow")
    if request.temperature < 0:
        raise BadRequestError(f"temperature: {request.temperature} is negative")
    _check_sampling(request.sampling)
    for field in ("prompt", "allowed", "stop", "done"):
        ids = getattr(request, field)
        if ids and not (min(ids) >= 0 and max(ids) < words):
            raise BadRequestError(f"{field}: holds a token id outside 0..{words - 1}")


def _check_sampling(sampling: SamplingParameters) -> None:
    legal = {
        "top_p": (0.0 < sampling.top_p <= 1.0, "above 0 and at most 1"),
        "top_k": (sampling.top_k >= 0, "at least 0"),
        "min_p": (0.0 <= sampling.min_p <= 1.0, "between 0 and 1"),
        "repetition_penalty": (sampling.repetition_penalty > 0.0, "above 0"),
        "stop": (all(sampling.stop), "texts that are not empty"),
    }
    for field, (holds, rule) in legal.items():
        if not holds:
            raise BadRequestError(f"{field}: {getattr(sampling, field)!r} is not {rule}")


def check_done(request: Request, whole: bool = False) -> None:
    """Refuse to carry on what does not fit together, or what is to be made from its first token."""
    made = len(request.done)
    if not made:
        return
    if whole or request.follow == "restart_turn":
        raise BadRequestError("done: this reply is made from its first token on; send it without")
    if len(request.done_logprobs) != made or version_segments.count(request.done_segments) != made:
        raise BadRequestError(f"done: {made} tokens need as many log-probabilities and segments of as many")
    if request.sampling.uncertainty and len(request.done_uncertainty) != UNCERTAINTIES * made:
        raise BadRequestError(f"done: {made} tokens need {UNCERTAINTIES} numbers of uncertainty each")
    if made >= request.max_tokens or request.done[-1] in request.stop:
        raise BadRequestError("done: this reply is at its end already")
