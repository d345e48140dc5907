"""Plays what others said through the run's own environment: its prompts, its tokenizer, its score.

Invariants. An episode that is recited is played like any other, but its replies come from a rollout; so its reward is
what this run's environment says of it, and nothing that came with it. A rollout whose words are not replies to what is
asked here (another number of turns, unknown or special words, longer than allowed) is refused with a reason, in one
word. Nobody knows how probable its tokens were: their log-probability is `UNKNOWN_LOGPROB`.
"""

from collections import deque

from flexmarl.contracts.shared_rollouts import PublishedRollout, SharedTurn
from flexmarl.contracts.wire import UNKNOWN_LOGPROB, EpisodeStatus
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder, play_episode
from workers.rollout.recorder import SHARED
from workers.rollout.speech import Seat
from workers.rollout.stages import Stage
from workers.rollout.turns import TurnReply, TurnRequest
from workers.vocabulary import UnknownWord


class NotRecitable(ValueError):
    """A rollout is no reply to what is asked; the text says why, in one word."""


class Recital:
    """Answers turns with what a rollout says, in the place of engines."""

    def __init__(self, published: PublishedRollout, seats: dict[str, Seat], converses: bool) -> None:
        self._seats, self._converses = seats, converses
        self._engine = f"{SHARED}{published.member}"
        self._left: dict[str, deque[SharedTurn]] = {}
        for turn in published.rollout.turns:
            self._left.setdefault(turn.role, deque()).append(turn)
        self.refused = ""
        """Why it went no further, in one word."""

    @property
    def left(self) -> int:
        """Count the turns that nobody asked for."""
        return sum(map(len, self._left.values()))

    async def until_held(self, request: TurnRequest, at_most_s: float) -> float:
        """Wait for nothing: no weights answer."""
        return 0.0

    async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
        """Return the next thing that the role says. Raises NotRecitable."""
        try:
            ids, whole = self._ids(request)
        except NotRecitable as refused:
            self.refused = str(refused)
            raise
        reason, segments = "stop" if whole else "length", [request.pin.version, len(ids)]
        return TurnReply(CompletionChoice(0, ids, [UNKNOWN_LOGPROB] * len(ids), reason, segments), self._engine, 0.0)

    def _ids(self, request: TurnRequest) -> tuple[list[int], bool]:
        said = self._left.get(request.role)
        if not said:
            raise NotRecitable("too_few_turns")
        turn, codec = said.popleft(), self._seats[request.role].codec
        try:
            ids = codec.ids_of_text(turn.text) if self._converses else list(codec.ids_of(turn.text.split()))
        except UnknownWord:
            raise NotRecitable("unknown_words") from None
        if codec.decode(ids) != codec.decode(ids, special=True):
            raise NotRecitable("special_words")
        if turn.whole and request.stop and (not ids or ids[-1] not in request.stop):
            ids.append(request.stop[0])
        if not ids:
            raise NotRecitable("empty")
        if len(ids) > request.max_tokens:
            raise NotRecitable("too_long")
        if request.allowed and not set(ids) <= set(request.allowed):
            raise NotRecitable("words_not_allowed")
        return ids, turn.whole


async def recite(
    published: PublishedRollout, order: EpisodeOrder, stage: Stage, seats: dict[str, Seat], converses: bool
) -> tuple[EpisodeAttempt, str]:
    """Play a rollout as an episode; returns the attempt and why it is not one, in one word, or nothing."""
    recital = Recital(published, seats, converses)
    attempt = await play_episode(order, stage, seats, recital)
    if recital.refused:
        return attempt, recital.refused
    if attempt.status is not EpisodeStatus.FINISHED:
        return attempt, "not_playable"
    return attempt, "too_many_turns" if recital.left else ""
