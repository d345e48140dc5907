"""What replies are held to, by llguidance over the vocabulary of a policy: which ids may come next.

Invariants. A grammar is compiled once per policy and kept; each reply walks a copy of its own. An id that ends replies
may come exactly where the reply is whole, and where nothing else may follow it is the only one. The masks of a reply
are a function of its grammar and the ids so far, so one that is carried on goes on behind them.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from threading import Lock

from llguidance import LLMatcher, LLTokenizer

from flexmarl.contracts.reply_grammars import LIBRARY
from workers import reply_masks
from workers.reply_masks import NoMasks
from workers.rollout.engines.requests import BadRequestError, Request

KEPT = 64
"""Compiled grammars; a request whose own was forgotten compiles it again."""
KEPT_TOKENIZERS = 8
Key = tuple[str, int, tuple[int, ...], str]
"""Policy, words, ids that end a reply, what it must be."""


class Grammars:
    """The grammars of an engine. They may be compiled by one thread while another begins replies."""

    def __init__(self, tokenizer_of: Callable[[str], bytes | None]) -> None:
        """`tokenizer_of`: policy -> its tokenizer.json; None where it has none."""
        self._tokenizer_of = tokenizer_of
        self._tokenizers: dict[tuple[str, int, tuple[int, ...]], LLTokenizer] = {}
        self._compiled: OrderedDict[Key, LLMatcher] = OrderedDict()
        self._lock = Lock()

    def check(self, requests: Iterable[tuple[Request, int]]) -> None:
        """Compile what requests need that is not there yet; beside each the words of its model.

        Raises BadRequestError.
        """
        for request, words in requests:
            check_terms([request])
            if request.sampling.structured and not self._known(_key(request, words)):
                self._compile(request, words)
            if request.sampling.structured and request.done:
                self.begin(request, words)

    def begin(self, request: Request, words: int) -> LLMatcher:
        """Return where a reply stands, behind the tokens it has. Raises BadRequestError."""
        key = _key(request, words)
        with self._lock:
            kept = self._compiled.get(key)
        reply = (self._compile(request, words) if kept is None else kept).deep_copy()
        if not reply.consume_tokens(list(request.done)):
            raise _refusal(request, "its tokens so far are none that it allows; send the reply without done")
        return reply

    def _known(self, key: Key) -> bool:
        with self._lock:
            if key not in self._compiled:
                return False
            self._compiled.move_to_end(key)
            return True

    def _compile(self, request: Request, words: int) -> LLMatcher:
        try:
            output = reply_masks.output_of(request.sampling.structured)
            made = reply_masks.matcher(self._tokenizer(request, words), output)
        except NoMasks as error:
            raise _refusal(request, str(error)) from error
        with self._lock:
            self._compiled[_key(request, words)] = made
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return made

    def _tokenizer(self, request: Request, words: int) -> LLTokenizer:
        key = (request.policy, words, request.stop)
        if (known := self._tokenizers.get(key)) is not None:
            return known
        body = self._tokenizer_of(request.policy)
        if body is None:
            raise _refusal(request, f"the model of {request.policy} has no tokenizer of text; send allowed_token_ids")
        try:
            made = reply_masks.reader(body.decode(), words, request.stop)
        except NoMasks as error:
            text = f"the tokenizer of {request.policy} cannot be held to it ({error}); ask another model"
            raise _refusal(request, text) from error
        if len(self._tokenizers) >= KEPT_TOKENIZERS:
            self._tokenizers.clear()
        self._tokenizers[key] = made
        return made


def _key(request: Request, words: int) -> Key:
    return request.policy, words, request.stop, request.sampling.structured


def check_terms(requests: Iterable[Request]) -> None:
    """Refuse requests whose replies cannot be held to what they must be, whatever that is. Raises BadRequestError."""
    for request in requests:
        if not request.sampling.structured:
            continue
        if request.allowed:
            raise _refusal(request, "does not go with allowed_token_ids; send one of the two")
        if not request.stop:
            raise _refusal(request, "needs an id that ends a whole reply; send stop_token_ids")
        if request.sampling.library not in ("", LIBRARY):
            text = f"its masks are to be those of {request.sampling.library}, and this engine has {LIBRARY}"
            raise _refusal(request, f"{text}; install the same version on every host")


def _refusal(request: Request, text: str) -> BadRequestError:
    return BadRequestError(f"structured: {text}", request_ids=[request.request_id])
