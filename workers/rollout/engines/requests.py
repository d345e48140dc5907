"""What goes into an engine and what comes out; the two refusals."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.rollout.engines import version_segments
from workers.rollout.engines.wire import PLAIN, SamplingParameters


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to generate."""

    request_id: str
    policy: str
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float = 1.0
    allowed: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    version: int = -1
    """-1: the newest held."""
    digest: str = ""
    follow: str = ""
    """`continue`, `resume` or `restart_turn`: newer weights take it over, and `version` is the oldest allowed."""
    done: tuple[int, ...] = ()
    """Tokens made before: by another engine, or before newer weights took over."""
    done_logprobs: tuple[float, ...] = ()
    done_segments: tuple[int, ...] = ()
    """version, tokens, version, tokens, ... over `done`."""
    done_uncertainty: tuple[float, ...] = ()
    sampling: SamplingParameters = PLAIN

    @property
    def context(self) -> tuple[int, ...]:
        """Everything the next token depends on."""
        return self.prompt + self.done


@dataclass(frozen=True, slots=True)
class Finished:
    """A request's only answer: every submitted request is settled exactly once, by one of these."""

    request: Request
    token_ids: list[int]
    logprobs: list[float]
    reason: str
    """`stop`, `length`, `abort`, `nonfinite`, `too_complex` or `out_of_memory`; see `wire.Choice`."""
    version: int
    """That made the last tokens."""
    steps: Sequence[int] = ()
    """Of a reply made by block diffusion: in which step of its block each token was revealed, from 0."""
    uncertainty: list[float] = field(default_factory=list)
    """Of each token three numbers, see `wire.CompletionChoice`; empty where nobody asks."""

    @property
    def segments(self) -> list[int]:
        """version, tokens, version, tokens, ... over `token_ids`."""
        own = len(self.token_ids) - len(self.request.done)
        return version_segments.joined(self.request.done_segments, (self.version, own) if own > 0 else ())


@dataclass(frozen=True, slots=True)
class ReplyProgress:
    """What a running reply has from position `at` on; it goes on."""

    request_id: str
    at: int
    token_ids: list[int]
    logprobs: list[float]
    segments: list[int]
    uncertainty: list[float] = field(default_factory=list)


class NotHeldError(Exception):
    """The engine does not wholly hold the weights that a request names."""


class BadRequestError(Exception):
    """The request can never be answered; the text says which field and why.

    Of several requests that came together `request_ids` are those that are wrong; none named: all of them.
    """

    def __init__(self, text: str, code: str = "bad_request", request_ids: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.code, self.request_ids = code, list(request_ids)
