"""One talk with an agent: from a question to its replies, whole or as they come.

Invariant: a place is taken before an engine is waited for and given back once, however the talk ends; so is what a
serving key reserves, which is charged then. An engine that let the version go before it answered is replaced once, by
one that a node brings up.
"""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from asgiref.sync import async_to_sync, sync_to_async
from tokenizers import Tokenizer

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.playground import engines, models_of
from flexmarl.controlplane.playground.engines import EngineFailed, ReplyPart, ServingEngine, VersionReleased
from flexmarl.controlplane.playground.models import ServingKey
from flexmarl.controlplane.playground.models_of import Model
from flexmarl.controlplane.playground.questions import Question
from flexmarl.controlplane.playground.quotas import Meter
from flexmarl.controlplane.playground.speaking import TokenizedQuestion, spoken, tokenizer_of
from flexmarl.controlplane.telemetry.trajectories.decoding import text_of, token_texts
from flexmarl.language.messages import Message
from flexmarl.language.renderer import Renderer
from flexmarl.language.stops import before, certain

WAIT_S = 20.0
"""How long a question waits for an engine to start, unless it says otherwise; a client then asks again."""


@dataclass
class PartialReply:
    """One reply so far. Tokens that only end it are no part of it."""

    tokenizer: Tokenizer
    ends: frozenset[int]
    stops: tuple[str, ...] = ()
    """Texts that end it and are no part of what is read."""
    renderer: Renderer | None = None
    """By which it is read as a message; None: it is words."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled: int = 0
    """Tokens that the engine sampled, those that only end it included."""
    finish: str = ""

    def take(self, part: ReplyPart) -> None:
        """Append what came."""
        ids, logprobs = part.token_ids, part.logprobs
        self.sampled += len(ids)
        if part.finish == "stop" and ids and ids[-1] in self.ends:
            ids, logprobs = ids[:-1], logprobs[:-1]
        self.ids += ids
        self.logprobs += logprobs
        self.finish = part.finish

    @property
    def text(self) -> str:
        """What the agent said, without special words where they mean nothing."""
        text = self._decoded
        # The first bytes of a character that goes on read as one that stands for none.
        return before(text, self.stops) if self.finish else certain(text.rstrip("\ufffd"), self.stops)

    @property
    def message(self) -> Message:
        """What the agent said, as a message; its calls have no ids yet."""
        return Message("assistant", self.text) if self.renderer is None else self.renderer.message(self.text)

    @property
    def said(self) -> tuple[str, str]:
        """Thoughts and words with which its message begins, whatever comes next."""
        if self.renderer is not None and not self.finish:
            return self.renderer.certain(self.text)
        message = self.message
        return message.reasoning, message.content

    @property
    def stopped_at(self) -> str | None:
        """The text that ended it; None where something else did."""
        places = [(place, stop) for stop in self.stops if (place := self._decoded.find(stop)) >= 0]
        return min(places)[1] if places else None

    @property
    def _decoded(self) -> str:
        return text_of(self.tokenizer, self.ids, special=self.renderer is not None)

    def tokens(self, since: int = 0) -> list[tuple[str, int, float]]:
        """Return text, id and log-probability of each token from a position on."""
        texts = token_texts(self.tokenizer, self.ids)
        return list(zip(texts, self.ids, self.logprobs, strict=True))[since:]


class Talk:
    """A question that was understood, and the engine that answers it."""

    def __init__(self, actor: Actor, question: Question, wait_s: float = WAIT_S, key: ServingKey | None = None) -> None:
        self.question = question
        self.model: Model = models_of.find(actor, question.model, key.model_names if key else ())
        self.tokenizer = tokenizer_of(self.model)
        self.asked: TokenizedQuestion = spoken(self.model, question, self.tokenizer)
        self._wait_s = wait_s
        held = engines.live(self.model)
        self._places = engines.LIVE_PLACES if held else engines.PLAY_PLACES
        self._made, self._open = 0, False
        self.meter = Meter(key) if key else None
        if self.meter:
            self.meter.open(self.prompt_tokens + self.asked.max_tokens * len(self.asked.prompts) * question.n)
        try:
            self._places.take()
            self._open = True
            self._engine: ServingEngine = held or engines.bring_up(self.model, wait_s)
        except BaseException:
            self.close()
            raise

    @property
    def prompt_tokens(self) -> int:
        """Token ids that were sent, counted once however many replies there are."""
        return sum(len(prompt) for prompt in self.asked.prompts)

    def replies(self) -> list[PartialReply]:
        """Return all replies, prompts times draws, when the last has ended."""

        async def collect() -> list[PartialReply]:
            replies = self.fresh()
            async for part in self.parts():
                replies[part.index].take(part)
            return replies

        try:
            return async_to_sync(collect)()
        finally:
            self.close()

    def fresh(self) -> list[PartialReply]:
        """Return the replies before anything came."""
        count = len(self.asked.prompts) * self.question.n
        ends = frozenset(self.asked.stop)
        stops, renderer = self.asked.stop_texts, self.asked.renderer
        return [PartialReply(self.tokenizer, ends, stops, renderer) for _ in range(count)]

    async def parts(self) -> AsyncIterator[ReplyPart]:
        """Yield what comes of the replies, and give the place back at the end."""
        seeds = self._seeds()
        try:
            try:
                async for part in engines.parts(self._engine, self.model, self.asked, seeds):
                    self._made += len(part.token_ids)
                    yield part
            except VersionReleased:
                other = await sync_to_async(engines.bring_up)(self.model, self._wait_s)
                async for part in engines.parts(other, self.model, self.asked, seeds):
                    self._made += len(part.token_ids)
                    yield part
        except VersionReleased:
            detail = f"{self.model.name} was unloaded during the request. Try again."
            raise EngineFailed(detail, headers={"Retry-After": "1"}) from None
        finally:
            self._leave()

    def close(self) -> None:
        """Give the place back, if it still is held, and charge what was made; a second time does nothing."""
        self._leave()
        if self.meter:
            self.meter.close(self.prompt_tokens if self._made else 0, self._made)

    def _leave(self) -> None:
        if self._open:
            self._open = False
            self._places.leave()

    def _seeds(self) -> list[int]:
        """One per reply: those that follow the caller's, so that a seed names all draws; or random ones."""
        first = secrets.randbits(63) if self.question.seed is None else self.question.seed
        return [(first + place) % 2**63 for place in range(len(self.asked.prompts) * self.question.n)]
