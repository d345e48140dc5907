"""Whether a reply has come to a stop string: its text, by the policy's own tokenizer, looked at after every token.

Invariant: a reply is looked at after each of its tokens, so the one that completes a stop string is its last. Engines
read no other text.
"""

from collections.abc import Callable, Iterable, Sequence

from tokenizers import Tokenizer

from workers.rollout.engines.requests import BadRequestError, Request

SLACK = 4
"""Tokens before those of a stop string that are decoded with it: a letter may consist of so many."""


class StopStrings:
    def __init__(self, tokenizer_of: Callable[[str], bytes | None]) -> None:
        """`tokenizer_of`: policy -> its tokenizer.json; None where it has none."""
        self._tokenizer_of = tokenizer_of
        self._known: dict[str, Tokenizer] = {}

    def check(self, requests: Iterable[Request]) -> None:
        """Make the tokenizers ready that requests need. Raises BadRequestError where there is none."""
        for request in requests:
            if request.sampling.stop and request.policy not in self._known:
                body = self._tokenizer_of(request.policy)
                if body is None:
                    text = f"stop: the model of {request.policy} has no tokenizer of text; send stop_token_ids"
                    raise BadRequestError(text, request_ids=[request.request_id])
                self._known[request.policy] = Tokenizer.from_str(body.decode())

    def ended(self, request: Request, tail: Sequence[int]) -> bool:
        """Tell whether a reply whose last tokens these are has come to a stop string."""
        text = self._known[request.policy].decode(list(tail), skip_special_tokens=False)
        return any(stop in text for stop in request.sampling.stop)


def tail_of(request: Request) -> int:
    """Return how many of a reply's last tokens can hold a stop string: each of them has one byte at least."""
    return SLACK + max((len(stop.encode()) for stop in request.sampling.stop), default=0)
